"""Every text of the page that is translated, as the catalogues' keys.

`python -m tests.support.translations` prints them as JSON, in the order in which they are found;
with the name of a language, those that its catalogue lacks.
"""

from __future__ import annotations

import ast
import json
import re
import string
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from finetune import config
from finetune.data import catalog
from finetune.environment import space
from finetune.evaluation import baselines, examples, report
from finetune.runs.store import RunStore
from finetune.runs.summary import MAJORITY
from finetune.ui import app, checks_view, course_view, i18n, run_table_view, run_view
from finetune.ui.tabs import publish

UI = Path(app.__file__).parent
# Words that `term` is given: lists that are kept elsewhere.
LISTS: tuple[tuple[str, ...], ...] = (
    examples.SELECTIONS,
    report.HISTORIES,
    tuple(run_table_view.HEADS.values()),
    tuple(run_table_view.STATUSES),
    tuple(checks_view.WORDS.values()),
    checks_view.HEADS,
    checks_view.DOINGS,
    (MAJORITY, baselines.TFIDF, baselines.COSINE),
    # the kinds of pairs
    ("words", "overlap", "number", "number differs", "negation", "negation differs", "name"),
    ("class", "yes", "no"),
    tuple(run_view.PHASES.values()),
    tuple(run_view.SAVES.values()),
    tuple(run_view.ENDINGS.values()),
    run_view.STARTS,
    course_view.STAGES,
    tuple(one.text for one in course_view.LESSONS.values()),
    tuple(course_view.WHAT.values()),
    publish.TOKEN,
    # on a Space only
    tuple(space.Space("CPU", True, 0, False).notices()),
    tuple(space.Space("CPU", False, 0, True).notices()),
    # what a push does
    ("checking", "committing", "committed", "loading it back to compare", "making the demo Space"),
)
# Texts that stay as they are: names of fields, which are the same in code, files and papers.
NAMES = {
    *config.knobs(),
    *(one.label for one in (*catalog.DATASETS[1:], *catalog.CHECKPOINTS)),
    *publish.LICENCES[:-1],
    *publish.HARDWARE,
    "sentence1",
    "sentence2",
    "F1",
    "Accuracy",
    # arguments of endpoints
    "run_id", "both_orders", "threshold", "calibrated", "batch", "file",
}  # fmt: skip


def said() -> list[str]:
    """The texts of `say` and `page_text` in the page's code.

    Raises:
        ValueError: when one is not written where it is said.
    """
    found = []
    for path in sorted(UI.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _called(node) in ("say", "page_text"):
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    found.append(first.value)
                elif path.name != "i18n.py":
                    raise ValueError(f"{path.name}:{node.lineno} says something unwritten")
    return found


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def shown(folder: Path) -> list[str]:
    """The texts that stand on the page from the start."""
    built = app.build(RunStore(folder))
    return [text for _, _, text in i18n.texts(built) if text not in NAMES]


def keys() -> list[str]:
    """All of them, once each."""
    with tempfile.TemporaryDirectory() as folder:
        static = shown(Path(folder))
    listed = [one for names in LISTS for one in names]
    return list(dict.fromkeys(one for one in (*static, *said(), *listed) if one not in NAMES))


def placeholders(text: str) -> Iterator[tuple[str, str]]:
    """The placeholders of a text with their formats."""
    for _, name, how, _ in string.Formatter().parse(text):
        if name is not None:
            yield name, how or ""


def tags(text: str) -> list[str]:
    """The HTML in a text."""
    return sorted(re.findall(r"<[^>]*>|&\w+;|&#\w+;", text))


if __name__ == "__main__":
    wanted = keys()
    if len(sys.argv) > 1:
        known = json.loads((i18n.FOLDER / f"{sys.argv[1]}.json").read_text(encoding="utf-8"))
        wanted = [one for one in wanted if one not in known]
    print(json.dumps(wanted, ensure_ascii=False, indent=1))
