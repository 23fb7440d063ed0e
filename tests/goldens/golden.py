"""What the product said before, as texts in this folder, and what it says now."""

import difflib
import json
import math
import os
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RENEW = "FINETUNE_RENEW_GOLDENS"
MOST = 120  # lines of a difference that are shown
SEEN = set()  # goldens that this process has compared
# Values that no two runs share.
PASSING = {
    "time", "seconds", "created", "samples_per_second", "busy", "memory", "milliseconds",
    "versions", "device", "fingerprint", "revision",
}  # fmt: skip
WIDTH = 100
_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?(?![\w.]*\d)")
_MASKS = {
    r"\b\d{8}-\d{6}-\d{6}[\w-]{12}": "RUN",
    r"(?<![.\w])[0-9a-f]{12,64}\b": "HASH",
    r"\b\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?": "WHEN",
    r"(127\.0\.0\.1|localhost):\d+": "HOST:PORT",
    r"\b\d+\.\d+\.\d+(\.\w+|\+cpu)?\b(?!\.)": "VERSION",
    r"\b\d+(\.\d+)? (ms|s)\b": "SECONDS",
    r"\b(\d+ h )?\d+ min\b": "MINUTES",
    r"\b[\d,.]+ (samples/s)": r"MANY \1",
    r"\[?(\d\d:){2}\d\d\]?": "WHEN",
    r"CPU \(\d+ threads?\)": "CPU",
    r"differ from PyTorch's by at most \S+": "differ from PyTorch's by at most LITTLE",
}


def compare(name, text, **words):
    """Assert that a text is the golden one of that name; numbers may differ by five in the
    third digit, as on another processor. A renewal keeps the text instead."""
    if problem := difference(name, masked(text, words)):
        raise AssertionError(problem)


def difference(name, text):
    """Return what differs from the golden text, as lines to read; empty if nothing does."""
    path = FOLDER / name
    SEEN.add(path)
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    if _same(golden, text):
        return ""
    if os.environ.get(RENEW):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return ""
    sides = golden.splitlines(), text.splitlines()
    lines = [*difflib.unified_diff(*sides, f"golden {name}", "now", lineterm="", n=2)]
    rest = [f"... and {len(lines) - MOST} lines more"] if len(lines) > MOST else []
    remedy = "If that is meant: python -m tests.goldens, and read the diff."
    return "\n".join([*lines[:MOST], *rest, remedy])


def masked(text, words):
    """The text without what no two runs share: `words` (its placeholder -> a text), ids, hashes,
    times and ports; with numbers in three digits and one line end at its end."""
    for placeholder, word in sorted(words.items(), key=lambda item: -len(str(item[1]))):
        text = text.replace(str(word), placeholder)
    text = _NUMBER.sub(lambda match: _rounded(match[0]), text)
    for pattern, placeholder in _MASKS.items():
        text = re.sub(pattern, placeholder, text)
    return text.rstrip("\n") + "\n"


def laid_out(value, indent=""):
    """A value as JSON, on one line what fits there or has no parts, and dots for what passes."""
    if isinstance(value, dict):
        value = {str(k): "..." if k in PASSING and v else v for k, v in value.items()}
    line = json.dumps(value, ensure_ascii=False)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if len(indent + line) <= WIDTH or not any(isinstance(part, dict | list) for part in parts):
        return line
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(k)}: {laid_out(v, inner)}" for k, v in value.items()]
    else:
        parts = [laid_out(item, inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{closing}"


def _rounded(number):
    value = float(number)
    return number if len(number.strip("-0.").replace(".", "")) <= 3 else f"{value:.3g}"


def _same(golden, text):
    if _NUMBER.split(golden) != _NUMBER.split(text):
        return False
    return all(map(_close, _NUMBER.findall(golden), _NUMBER.findall(text)))


def _close(golden, number):
    one, other = float(golden), float(number)
    size = max(abs(one), abs(other), 1e-4)
    last_digit = 10 ** (math.floor(math.log10(size)) - 2)
    return abs(one - other) <= 5.01 * last_digit
