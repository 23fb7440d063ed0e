"""Take the benchmarks one after another, and write what they end with into this folder's README.

    python -m tests.benchmarks --all | NAME ...

Each has ten minutes. The table in README.md has a row for each benchmark and a column for each
processor; those of other processors stay as they are.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = (
    "training", "quality", "prediction", "load", "page", "memory", "analysis", "cost", "engines",
    "search", "batches",
)  # fmt: skip
LIMIT = 600  # seconds of each
BEGIN, END = "<!-- ratios -->\n", "<!-- end of ratios -->\n"
Table = dict[str, dict[str, str]]  # processor -> benchmark -> ratio


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], metavar="NAME")
    parser.add_argument("--all", action="store_true", help="every benchmark")
    args = parser.parse_args()
    if bool(args.names) == args.all:
        parser.error("name benchmarks, or say --all")
    file = HERE / "README.md"
    for name in NAMES if args.all else args.names:
        processor, ratio = take(name)
        text = file.read_text(encoding="utf-8")
        file.write_text(with_ratio(text, processor, name, ratio), encoding="utf-8")


def take(name: str) -> tuple[str, str]:
    """The processor and the ratio that a benchmark prints, or why there is none."""
    began = time.monotonic()
    command = [sys.executable, "-m", f"tests.benchmarks.{name}"]
    try:
        output = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=False
        ).stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
    lines = output.splitlines()
    print(output, f"{name}: {time.monotonic() - began:.0f} s", sep="\n", flush=True)
    first, last = (lines[0], lines[-1]) if lines else ("", "")
    ratio = re.fullmatch(rf"{name}: ratio ([\d.]+)", last)
    processor = re.search(r"^processor: ([^;]+)", first)
    return processor[1] if processor else "unknown", ratio[1] if ratio else "none"


def with_ratio(text: str, processor: str, name: str, ratio: str) -> str:
    """The README with one figure more, or another."""
    before, rest = text.split(BEGIN)
    table, after = rest.split(END)
    ratios = _read(table)
    ratios.setdefault(processor, {})[name] = ratio
    rows = [["", *ratios], ["---"] * (1 + len(ratios))]
    rows += [[f"`{one}`", *(column.get(one, "") for column in ratios.values())] for one in NAMES]
    drawn = "".join(f"|{''.join(f' {cell} |' if cell else ' |' for cell in row)}\n" for row in rows)
    return f"{before}{BEGIN}{drawn}{END}{after}"


def _read(table: str) -> Table:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    if not rows:
        return {}
    head, _, *body = rows
    return {
        processor: {row[0].strip("`"): row[at] for row in body if row[at]}
        for at, processor in enumerate(head[1:], 1)
    }


if __name__ == "__main__":
    main()
