"""`python -m finetune label`: questions to a person."""

import sys
from pathlib import Path

from finetune import api, arguments, disk
from finetune.cli import options
from finetune.config import RunConfig
from finetune.errors import DataError
from finetune.jobs.label import named_labelling
from finetune.labels.labelling import Labelling, Question
from finetune.runs.store import RunStore

_KEYS = "a number answers{none}, Enter skips, z takes back{adds}, q ends"


def label(words: list[str] | None = None) -> int:
    """Label texts of a file, or pairs of its texts that may mean the same, by answering questions.
    Every third question is random, and measures how good a model would be. Answers are kept at
    once, and --resume goes on with them."""
    parser = options.parser_of("label", label.__doc__)
    parser.add_argument("--file", type=Path, help="a file with a row for each text")
    parser.add_argument("--other", type=Path, help="a second file, to match with the first")
    about = "the labels, with commas between; without it pairs are asked about"
    parser.add_argument("--labels", default="", help=about)
    parser.add_argument("--column", default="", help="the column with the texts; guessed if absent")
    parser.add_argument("--several", action="store_true", help="a text may have several labels")
    arguments.add_arguments(parser, ("checkpoint", "max_length"), absent=False)
    parser.add_argument("--resume", metavar="NAME", help="an earlier labelling: its file or its id")
    parser.add_argument("--who", default="me", help="who answers (default: me)")
    about = "write the answers to this file, .csv or .jsonl, and ask nothing"
    parser.add_argument("--export", type=Path, help=about)
    args = parser.parse_args(words)
    store = RunStore(args.root)
    if (args.file is None) == (args.resume is None):
        parser.error("give --file for a new labelling, or --resume")
    options.check_alone(parser, args, "resume", ["who", "export"])
    if args.several and not args.labels:
        parser.error("--several is for --labels: a pair has one answer")
    if args.export and not args.resume:
        parser.error("--export is for --resume: a new labelling has no answers")
    if args.export and args.export.suffix not in (".csv", ".jsonl"):
        parser.error(f"--export is {args.export}: end its name in .csv or .jsonl")
    options.check_outputs(parser, {"export": args.export}, [])
    if args.resume is not None:
        labelling = named_labelling(store, args.resume).labelling
    else:
        names = args.labels.split(",") if args.labels else []
        config = RunConfig(**arguments.arguments_given(args))
        print(f"{args.file.name}: reading and comparing the texts ...", file=sys.stderr)
        labelling = api.label(
            args.file, names, args.other, args.column, args.several, config, store
        )
        column = labelling.request["columns"][0]
        print(f"{args.file.name}: the texts are those of the column {column!r}", file=sys.stderr)
    if args.export:
        disk.write_result(args.export, labelling.export(args.export.suffix))
        return 0
    _ask(labelling, args.who)
    name = labelling.folder.name
    print(f"go on with --resume {name}; for training: --resume {name} --export answers.jsonl, then")
    print("  python -m finetune train --train_file answers.jsonl --folds 5")
    return 0


def _ask(labelling: Labelling, who: str) -> None:
    """Ask until all is answered, or the person ends it."""
    none = " (0: none)" if labelling.several else ""
    keys = _KEYS.format(none=none, adds="" if labelling.pairs else ", +NAME adds a label")
    print(keys)
    while (question := labelling.next(who)) is not None:
        names = labelling.names
        print(f"\n{question.number}.", *question.texts, sep="\n   ")
        print("   " + "  ".join(f"{n} {name}" for n, name in enumerate(names, 1)))
        try:
            typed = input("> ").strip()
        except EOFError:
            typed = "q"
        numbers = typed.replace(",", " ").split()
        if typed == "q":
            break
        try:
            if typed == "z":
                labelling.undo(who)
            elif typed.startswith("+"):
                labelling.add_name(typed[1:], who)
            elif all(one.isdecimal() and int(one) <= len(names) for one in numbers):
                labels = [names[int(one) - 1] for one in numbers if int(one)]
                _take(labelling, question, labels if numbers else None, who)
            else:
                print(f"   {typed!r} is none of these: {keys}")
        except DataError as error:
            print(f"   {error}")


def _take(labelling: Labelling, question: Question, labels: list[str] | None, who: str) -> None:
    """Take an answer, and say what the model makes of it."""
    given = labelling.answer(question.item, labels, who)
    if given.guess is not None:
        print(f"   the model would have said: {', '.join(given.guess) or 'none'}")
    found = labelling.estimate() if question.number % 10 == 0 else None
    if found is not None:
        now, twice = found.now, found.twice
        print(
            f"   a model would be right in {now.value:.0%} ({now.low:.0%} to {now.high:.0%}), with "
            f"twice as many answers {twice.value:.0%} ({twice.low:.0%} to {twice.high:.0%})"
        )
