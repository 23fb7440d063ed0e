"""`python -m finetune label` and `groups`: questions to a person, and what a model makes of the
answers."""

import json
import sys
from pathlib import Path

from finetune import api, arguments
from finetune.cli import options
from finetune.config import RunConfig
from finetune.jobs.label import LabelJob, named_labelling
from finetune.labels.labelling import Labelling, Question
from finetune.runs.store import RunStore, named_run

_KEYS = "a number answers (0: none), Enter skips, z takes back, +NAME adds a label, q ends"


def label(words: list[str] | None = None) -> int:
    """Label texts of a file, or pairs of its texts that may mean the same, by answering questions.
    Every third question is random, and measures how good a model would be. Answers are kept at
    once, and --resume goes on with them."""
    parser = options.parser_of(label)
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
    store = RunStore(args.runs)
    if (args.file is None) == (args.resume is None):
        parser.error("give --file for a new labelling, or --resume")
    if args.export and args.export.suffix not in (".csv", ".jsonl"):
        parser.error(f"--export is {args.export}: end its name in .csv or .jsonl")
    if args.resume:
        labelling = named_labelling(store, args.resume).labelling
    else:
        names = [name for name in args.labels.split(",") if name.strip()]
        config = RunConfig(**arguments.arguments_given(args))
        print(f"{args.file.name}: reading and comparing the texts ...", file=sys.stderr)
        labelling = api.label(
            args.file, names, args.other, args.column, args.several, config, store
        )
    if args.export:
        options.write_output(args.export, labelling.export(args.export.suffix))
        return 0
    _ask(labelling, args.who)
    columns = (
        "--sentence1_column text1 --sentence2_column text2"
        if labelling.pairs
        else ("--sentence1_column text --sentence2_column '(none)'")
    )
    name = labelling.folder.name
    print(f"go on with --resume {name}; for training: --resume {name} --export answers.jsonl, then")
    train = "python -m finetune train --train_file answers.jsonl --folds 5"
    print(f"  {train} {columns} --label_column label")
    return 0


def _ask(labelling: Labelling, who: str) -> None:
    """Ask until all is answered, or the person ends it."""
    print(_KEYS)
    while (question := labelling.next(who)) is not None:
        names = labelling.names
        print(f"\n{question.number}.")
        for text in question.texts:
            print(f"   {text}")
        print("   " + "  ".join(f"{n} {name}" for n, name in enumerate(names, 1)))
        try:
            typed = input("> ").strip()
        except EOFError:
            break
        if typed == "q":
            break
        if typed == "z":
            labelling.undo(who)
        elif typed.startswith("+"):
            labelling.add_name(typed[1:], who)
        else:
            _take(labelling, question, typed, who)


def _take(labelling: Labelling, question: Question, typed: str, who: str) -> None:
    numbers = typed.replace(",", " ").split()
    names = labelling.names
    if not all(one.isdecimal() and int(one) <= len(names) for one in numbers):
        print(f"   {typed!r} is none of these: {_KEYS}")
        return
    labels = [names[int(one) - 1] for one in numbers if int(one)]
    if numbers and len(labels) != 1 and not labelling.several:
        print("   One label is needed.")
        return
    given = labelling.answer(question.item, labels if numbers else None, who)
    if given.guess is not None:
        print(f"   the model would have said: {', '.join(given.guess) or 'none'}")
    found = labelling.estimate() if question.number % 10 == 0 else None
    if found is not None:
        now, twice = found.now, found.twice
        print(
            f"   a model would be right in {now.value:.0%} ({now.low:.0%} to {now.high:.0%}), with "
            f"twice as many answers {twice.value:.0%} ({twice.low:.0%} to {twice.high:.0%})"
        )


def groups(words: list[str] | None = None) -> int:
    """Group the texts of a labelled file that mean the same, by a model that was trained on the
    answers. A person's answers are kept as they are."""
    parser = options.parser_of(groups, of_a_run=True)
    about = "the labelling: the name of its file, or its id; by default the newest"
    parser.add_argument("--labelling", default="", help=about)
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    args = parser.parse_args(words)
    options.check_outputs(parser, {"out": args.out}, [])
    store = RunStore(args.runs)
    job = named_labelling(store, args.labelling) if args.labelling else _newest(store)
    found = api.groups(job.labelling, named_run(args.run, args.runs), args.out)
    if args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    print(f"{args.out}: {found['groups']:,} groups, with {found['grouped']:,} rows")
    for name in ("precision", "recall"):
        if found[name]:
            value, low, high = found[name]
            of = f"{found['measured']} random pairs"
            print(f"  {name} {value:.3f} ({low:.3f} to {high:.3f}), by {of}")
    return 0


def _newest(store: RunStore) -> LabelJob:
    found = [job for job in LabelJob.newest(store) if job.request.get("pairs")]
    return found[0] if found else named_labelling(store, "")
