"""How many answers make a model: F1 after 25, 50, 100 and 200 chosen answers, beside random ones.

An oracle answers the questions of a labelling, as `finetune label` asks them: every third is
random. The other side's answers are all random. A small model of each, and one of all labels, are
scored by F1 on the half of the pairs about which nothing was asked. Two files: the bundled pairs,
and the candidates among 2,000 records of made-up products with known groups. Intervals are of the
mean over the seeds, which draw the halves.

Then the seconds from a file's drop to its first question, for the 2,000 records, and from an answer
to the next question. The ratio is the F1 of 100 chosen answers over that of 100 random ones.

    python -m tests.benchmarks.labels [--seeds 5] [--quick]
"""

import csv
import random
import time
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import f1_score

from finetune.config import RunConfig
from finetune.data import splits
from finetune.evaluation import baselines
from finetune.jobs import label
from finetune.labels import candidates
from finetune.labels.labelling import DIFFERENT, SAME, Labelling, write_deck
from finetune.labels.learning import Learner
from finetune.metrics.intervals import mean_interval
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore
from tests.benchmarks import machine

SIZES = (25, 50, 100, 200)
NAMES = [SAME, DIFFERENT]
MAKERS = "Noro Vela Kanto Brimo Ostra Fenn Luma Torv Palo Zinn Arko Delta"
THINGS = "chair table lamp bottle knife bag clock shelf desk mirror kettle towel brush rug"
QUALITIES = "red blue green small large wooden steel plastic garden kitchen office travel"


class Asked(NamedTuple):
    """What can be asked of a file, and the right answers."""

    texts: list[str]
    items: candidates.Items
    features: Any
    same: Any  # shape (items,)


def main():
    args = machine.parsed(__doc__, seeds=(5, 1))
    with machine.begun() as folder:
        records, ratios = made_up_records(), []
        for name, asked in {
            "bundled pairs": bundled_pairs(folder),
            "2,000 records": compared_records(records, folder, 300 if args.quick else 2000),
        }.items():
            ratios.append(compared(name, asked, args.seeds, folder))
        waited(records, folder, 300 if args.quick else 2000)
    print(f"labels: ratio {median(ratios):.3f}")


def made_up_records():
    """Titles of made-up products, each with its group; spelled in up to four ways."""
    drawn, found = random.Random(7), list[tuple[str, int]]()
    makers, things = MAKERS.split(), THINGS.split()

    def misspelled(text):
        place = drawn.randrange(1, len(text) - 1)
        return text[:place] + text[place + 1 :]

    while len(found) < 2000:
        maker, thing, size = drawn.choice(makers), drawn.choice(things), drawn.randrange(10, 99)
        first, second = drawn.sample(QUALITIES.split(), 2)
        base = f"{maker} {first} {second} {thing} {size} cm"
        ways = [
            base, misspelled(base), f"{thing} {first} {second}, {maker}, {size}cm",
            f"{maker.upper()} {thing} ({second}, {first}) {size} cm",
        ]  # fmt: skip
        group = len(found)
        found += [(text, group) for text in drawn.sample(ways, drawn.choice([1, 1, 2, 3, 4]))]
    return found[:2000]


def encoded(texts):
    """Return the vectors of texts by the bundled checkpoint."""
    from finetune.data import checkpoint_files

    folder = checkpoint_files.fetch(RunConfig().checkpoint)
    encoder, tokenizer, first_token = baselines.load_encoder(folder)
    vectors = baselines.encode(encoder, tokenizer, [texts], 128, first_token=first_token)
    return candidates.unit(vectors)


def bundled_pairs(root):
    """The pairs that are labelled among the bundled ones."""
    pairs = splits.load_pairs(RunConfig(), root)
    rows = [row for split in pairs.splits.values() for row in split]
    texts = list(dict.fromkeys(row[name] for row in rows for name in ("sentence1", "sentence2")))
    place = {text: number for number, text in enumerate(texts)}
    items = np.array([[place[row["sentence1"]], place[row["sentence2"]]] for row in rows], np.int32)
    items, first = np.unique(items, axis=0, return_index=True)
    same = np.array([row["label"] == pairs.target.positive for row in rows])[first]
    return Asked(texts, items, candidates.pair_features(texts, encoded(texts), items), same)


def compared_records(records, root, most):
    """The candidates among records."""
    group = dict(records[:most])
    texts = list(group)
    vectors = encoded(texts)
    items = candidates.candidate_pairs(vectors, np.zeros(len(texts), np.int8))
    same = np.array([group[texts[a]] == group[texts[b]] for a, b in items])
    return Asked(texts, items, candidates.pair_features(texts, vectors, items), same)


def compared(name, asked, seeds, root):
    """Print the F1 of both sides by the number of answers. Returns the ratio at 100."""
    found = {}
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(asked.items))
        half = len(order) // 2
        own, rest = np.sort(order[:half]), order[half:]
        chosen = answered(asked._replace(items=asked.items[own], features=asked.features[own],
                                         same=asked.same[own]), root / f"{name}{seed}")  # fmt: skip
        sides = {("all", half): own}
        for size in SIZES:
            sides |= {("chosen", size): own[chosen[:size]], ("random", size): order[:half][:size]}
        for side, rows in sides.items():
            found.setdefault(side, []).append(learned(asked, rows, rest))
    print(f"{name}: {len(asked.items):,} pairs, {asked.same.mean():.0%} the same")
    for (side, size), scores in found.items():
        interval = mean_interval(scores)
        ends = f" ({interval.low:.3f} to {min(1.0, interval.high):.3f})" if interval else ""
        print(f"  {side:>6} {size:>6,} answers: F1 {np.mean(scores):.3f}{ends}", flush=True)
    return float(np.mean(found["chosen", 100]) / np.mean(found["random", 100]))


def learned(asked, rows, rest):
    """F1 on the rest of the small model of some rows."""
    labels = [(SAME,) if same else (DIFFERENT,) for same in asked.same[rows]]
    learner = Learner(asked.features[rows], labels, NAMES, False)
    given = [own == (SAME,) for own in learner.answers(asked.features[rest])]
    return float(f1_score(asked.same[rest], given, zero_division=0.0))


def answered(asked, folder):
    """Let an oracle answer; returns the asked items in their order."""
    folder.mkdir()
    request = {"pairs": True, "several": False, "names": [], "files": ["pairs"]}
    JobFolder(folder).describe_job("label", "", request)
    pq.write_table(pa.table({"text": asked.texts}), folder / "texts.parquet")
    order = candidates.question_order(asked.features[:, :4].sum(axis=1))
    write_deck(folder, asked.items, order, asked.features)
    labelling = Labelling(folder)
    for _ in range(max(SIZES)):
        question = labelling.next("oracle")
        assert question is not None
        place = labelling.deck.place_of[question.item]
        labelling.answer(question.item, [SAME if asked.same[place] else DIFFERENT], "oracle")
    return [labelling.deck.place_of[one.item] for one in labelling.answers()]


def waited(records, root, most):
    """Print the seconds to the first question, and from an answer to the next one."""
    file = root / "records.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([["title"], *([text] for text, _ in records[:most])])
    began, group = time.monotonic(), dict(records)
    job = label.start_labelling(RunStore(root / "runs"), [file], pairs=True)
    while not job.labelling.ready:
        time.sleep(0.01)
    job.labelling.next("me")
    first = time.monotonic() - began
    while job.state().running:
        time.sleep(0.05)
    prepared, labelling, seconds = time.monotonic() - began, job.labelling, []
    for _ in range(60):
        question = labelling.next("me")
        assert question is not None
        same = len({group[text] for text in question.texts}) == 1
        began = time.perf_counter()
        labelling.answer(question.item, [SAME if same else DIFFERENT], "me")
        labelling.next("me")
        seconds.append(time.perf_counter() - began)
    print(
        f"{most:,} texts: first question after {first:.1f} s, all prepared after {prepared:.1f} s; "
        f"from an answer to the next question {1000 * median(seconds):.0f} ms (median)"
    )


if __name__ == "__main__":
    main()
