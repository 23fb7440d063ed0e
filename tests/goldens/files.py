"""Files as people have them, of every format and with what is odd in them. All texts are made up
here, by templates."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import openpyxl  # type: ignore[import-untyped]
import pandas as pd

PLACES = ["kitchen", "garage", "office", "cellar", "garden", "hall", "library", "workshop"]
THINGS = ["lamp", "printer", "kettle", "window", "heater", "door", "clock", "drawer", "radio"]
FAULTS = ["hums", "sticks", "leaks", "flickers", "rattles", "squeaks", "smells", "jams"]
ADVICE = ["call the caretaker", "order a new one", "oil it first", "wait until Monday"]
NAMES = ["first", "second", "verdict"]
KINDS = ["noise", "water", "heat"]
Row = Sequence[Any]


def sentences(count: int, seed: int = 1) -> list[str]:
    """Different sentences."""
    draw, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        place, thing, fault, advice = map(draw.choice, (PLACES, THINGS, FAULTS, ADVICE))
        found[f"The {thing} in the {place} {fault} at {draw.randrange(1, 13)}, so {advice}."] = None
    return list(found)


def pairs(count: int = 60, labels: Sequence[Any] = ("no", "yes"), seed: int = 1) -> list[Row]:
    """Pairs of sentences, no sentence twice, with labels in turns."""
    texts = sentences(2 * count, seed)
    return [(texts[2 * n], texts[2 * n + 1], labels[n % len(labels)]) for n in range(count)]


def separated(rows: Iterable[Row], head: Row | None = NAMES, **dialect: Any) -> str:
    """The text of a file with quotes where they are needed."""
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n", **dialect).writerows([*([head] if head else []), *rows])
    return file.getvalue()


def joined(rows: Iterable[Row], delimiter: str = "\t", head: Row = NAMES) -> str:
    """The text of a file that knows no quotes."""
    return "".join(delimiter.join(map(str, row)) + "\n" for row in [head, *rows])


def records(rows: Iterable[Row], head: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    return [dict(zip(head, row, strict=True)) for row in rows]


def lines(values: Iterable[Any]) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


def workbook() -> bytes:
    book, file = openpyxl.Workbook(), io.BytesIO()
    book.active.title = "About"
    book.active.append(["Tickets of the house, by hand"])
    sheet = book.create_sheet("Tickets")
    for row in [["Collected in spring"], [], NAMES, *pairs()]:
        sheet.append(row)
    book.save(file)
    return file.getvalue()


def open_document() -> bytes:
    file = io.BytesIO()
    pd.DataFrame(records(pairs())).to_excel(file, index=False, engine="odf")
    return file.getvalue()


def parquet() -> bytes:
    file = io.BytesIO()
    pd.DataFrame(records(pairs(60, [0, 1]))).to_parquet(file, index=False)
    return file.getvalue()


def quoted_speech() -> list[Row]:
    """Texts with quotation marks that open and never close, as in files without quoting."""
    forms = ('"{}', '{}" he said', '"{}" she said', "{}", 'about "{}')
    return [
        (forms[n % 5].format(a), forms[n * 3 % 5].format(b), label)
        for n, (a, b, label) in enumerate(pairs(80))
    ]


def broken() -> str:
    whole = separated(pairs()).splitlines()
    whole[10] = "only one cell"
    whole[20] += ",and,two more"
    whole[30] = ""
    whole[40] = whole[40].rsplit(",", 1)[0] + ","
    return "\n".join(whole) + "\n"


def unclosed() -> str:
    whole = separated(pairs()).splitlines()
    whole[25] = '"' + whole[25]
    return "\n".join(whole) + "\n"


def with_labels(mark: str = ";") -> list[Row]:
    return [
        (text, mark.join(kind for at, kind in enumerate(KINDS) if n >> at & 1))
        for n, text in enumerate(sentences(80))
    ]


def repeated() -> list[Row]:
    """Duplicates, contradictions and swapped pairs."""
    rows = pairs()
    swapped = [(b, a, label) for a, b, label in rows[20:24]]
    contrary = [(a, b, "yes" if label == "no" else "no") for a, b, label in rows[10:15]]
    return [*rows, *rows[:6], *contrary, *swapped]


def missing() -> list[Row]:
    rows = pairs()
    rows[3:6] = [("", *rows[3][1:]), (rows[4][0], "", "no"), (*rows[5][:2], "")]
    rows[9:11] = [(*rows[9][:2], "NA"), (*rows[10][:2], "?")]
    return rows


GERMAN = separated(pairs(), ["Übergang", "Größe", "Straße"])
GERMAN = GERMAN.replace("kettle", "Kännchen").replace("door", "Tür für Gäste")
VALIDATION = [*pairs(20, seed=2), *pairs()[:4]]  # four of the training rows
# Name of the case -> its files' names and contents: training, validation and test rows.
FILES: dict[str, dict[str, str | bytes | Callable[[], bytes]]] = {
    "plain": {"tickets.csv": separated(pairs())},
    "three splits": {
        "train.csv": separated(pairs()),
        "validation.csv": separated(VALIDATION),
        "test.csv": separated(pairs(20, seed=3)),
    },
    "semicolons and decimal commas": {
        "scores.csv": separated(
            [(*texts, f"{n % 11 / 2:.1f}".replace(".", ",")) for n, (*texts, _) in
             enumerate(pairs(66))], delimiter=";",
        )
    },
    "tabs without quoting": {"msr_pairs.txt": joined(quoted_speech())},
    "bars": {"tickets.txt": separated(pairs(), delimiter="|")},
    "separator named": {"tickets.csv": "sep=;\r\n" + separated(pairs(), delimiter=";")},
    "byte order mark": {
        "tickets.csv": separated(pairs()).replace("\n", "\r\n").encode("utf-8-sig")
    },
    "Windows encoding": {"tickets.csv": GERMAN.encode("cp1252")},
    "sixteen bits": {"tickets.tsv": joined(pairs()).encode("utf-16")},
    "backslashes": {
        "tickets.csv": separated(
            quoted_speech(), quoting=csv.QUOTE_ALL, doublequote=False, escapechar="\\"
        )
    },
    "line breaks in cells": {"tickets.csv": separated(
        [(a.replace(", so", ",\nso"), b.replace(" in", "\r\nin"), c) for a, b, c in pairs()])},
    "title above": {"tickets.csv": "Tickets of the house,,\n,,\n" + separated(pairs())},
    "no header": {"mail.tsv": joined([(c, a) for a, _, c in pairs()], head=("spam", "Buy now."))},
    "header again": {"tickets.csv": separated(pairs()) + separated(pairs(30, seed=2))},
    "broken rows": {"tickets.csv": broken()},
    "unclosed quote": {"tickets.csv": unclosed()},
    "empty cells": {"tickets.csv": separated(missing())},
    "duplicates": {"tickets.csv": separated(repeated())},
    "spellings of a class": {"tickets.csv": separated(
        pairs(60, ["Yes", "no", "yes ", "NO", "yes", "n/a"]))},
    "answer in the text": {"tickets.csv": separated(
        [(n, a, f"{b} [{label}]", label) for n, (a, b, label) in enumerate(pairs())],
        ["id", *NAMES])},
    "one class": {"tickets.csv": separated(pairs(60, ["yes"]))},
    "rare classes": {"tickets.csv": separated([*pairs(), *pairs(2, ["odd", "rare"], seed=2)])},
    "stars": {"reviews.csv": separated([(a, n % 5 + 1) for n, a in enumerate(sentences(100))],
                                       ["review", "stars"])},
    "no labels": {"texts.csv": separated([(a, b) for a, b, _ in pairs()], NAMES[:2])},
    "labels in a cell": {"faults.csv": separated(with_labels(), ["text", "faults"])},
    "labels in columns": {"faults.csv": separated(
        [(n, text, n % 2, n // 2 % 2, n // 4 % 2) for n, text in enumerate(sentences(80))],
        ["id", "text", *KINDS])},
    "labels in lists": {
        "faults.jsonl": lines(
            {"text": text, "faults": [kind for kind in kinds.split(";") if kind]}
            for text, kinds in with_labels()
        )
    },
    "JSON lines": {"tickets.jsonl": lines(records(pairs(60, [0, 1])))},
    "JSON array": {"tickets.json": json.dumps({"version": 1, "data": records(pairs())})},
    "JSON columns": {
        "tickets.json": json.dumps(
            {name: dict(enumerate(column)) for name, column in
             zip(NAMES, zip(*pairs(), strict=True), strict=True)}
        )
    },
    "workbook": {"tickets.xlsx": workbook},
    "OpenDocument": {"tickets.ods": open_document},
    "Parquet": {"tickets.parquet": parquet},
    "packed": {"tickets.csv.gz": gzip.compress(separated(pairs()).encode(), mtime=0)},
    "not a table": {"tickets.csv": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8},
    "empty": {"tickets.csv": "\n\n"},
}  # fmt: skip


def write(folder: Path, case: str) -> list[Path]:
    """Write the files of a case into a folder."""
    paths = []
    for name, contents in FILES[case].items():
        paths.append(folder / name)
        made = contents() if callable(contents) else contents
        paths[-1].write_bytes(made.encode() if isinstance(made, str) else made)
    return paths
