"""The floors: imports point down, siblings do not import each other, only the page knows Gradio."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = [
    {
        "errors",
        "logs",
        "events",
        "sheets",
        "visitors",
        "process",
        "devices",
        "caches",
        "intervals",
        "curves",
        "calibration",
        "probes",
        "peek",
        "hashes",
        "jsonfile",
        "disk",
    },
    {
        "about",
        "config",
        "store",
        "catalog",
        "summary",
        "report",
        "labels",
        "uploads",
        "files",
        "child_process",
        "queue",
        "sweep",
        "archive",
        "identities",
        "slices",
        "space",
        "hub_errors",
        "hub_access",
    },
    {
        "sources",
        "checkpoints",
        "metrics",
        "launch",
        "trackers",
        "workers",
        "errands",
        "outcomes",
        "decision",
        "seen",
        "glance",
        "hub_allowance",
    }
    | {"hub", "picture", "demo"},
    {"corpus", "lengths", "looks", "scheduler", "analysis", "assessments", "batches", "script"}
    | {"conversions"},
    {"data", "preview", "card", "estimate"},
    {"batching", "model", "examination", "corrections", "baselines", "layers", "explain"},
    {"loop", "memory", "scoring"},
    {"train", "examine", "jobs", "predict", "publish", "spare", "history", "assess", "batch"}
    | {"export", "onnx", "deploy", "pushes", "convert"},
    {"ui"},
]
# Neighbours that build on each other, each for a reason.
NEIGHBOURS = {
    ("peek", "events"),  # is one
    ("caches", "logs"),  # is prepared with the same call
    ("catalog", "uploads"),  # an upload is a dataset too
    ("hub_errors", "catalog"),  # names the Hub's address
    ("hub_access", "catalog"),
    ("hub_access", "hub_errors"),  # what it refuses is told in those words
    ("disk", "errors"),  # says why a file cannot be written
    ("config", "catalog"),  # the defaults are names of the catalogue
    ("store", "config"),  # a run folder holds a configuration
    ("store", "summary"),  # and folds its events
    ("store", "uploads"),  # and may be of an upload
    ("store", "about"),  # and belongs to somebody
    ("spare", "train"),  # becomes a worker as that does it
    ("train", "assess"),  # and measures what it has trained
    ("sweep", "config"),  # makes several configurations of one
    ("archive", "store"),  # of what a run folder holds
    ("errands", "workers"),  # each is one's
    ("pushes", "publish"),  # in the background
    ("convert", "onnx"),  # for a run
    ("history", "jobs"),  # a run's state is in the table
}
LIGHT = [
    "errors", "events", "sheets", "config", "store", "catalog", "summary", "report", "labels",
    "uploads", "jobs", "publish", "checkpoints", "launch", "visitors", "process", "devices",
    "caches", "about", "queue", "workers", "errands", "looks", "sweep", "archive", "history",
    "intervals", "curves", "calibration", "slices", "probes", "outcomes", "decision", "analysis",
    "assessments", "batches", "corrections", "export", "deploy", "script", "hub",
    "picture", "demo", "card", "pushes", "conversions", "space", "peek", "estimate", "glance",
    "hashes", "seen", "lengths", "identities", "child_process", "files", "jsonfile",
    "hub_allowance", "disk",
    "hub_errors", "hub_access", "logs",
]  # fmt: skip
HEAVY = {"torch", "transformers", "datasets", "evaluate", "accelerate"}
LATE = HEAVY | {"scipy", "sklearn", "matplotlib"}  # what the page's first answer does not wait for


def modules() -> dict[str, list[Path]]:
    package = ROOT / "finetune"
    single = {path.stem: [path] for path in package.glob("*.py") if path.stem != "__init__"}
    return single | {"ui": sorted((package / "ui").glob("*.py"))}


def imported(path: Path) -> set[str]:
    """Dotted names a file imports, inside functions too, except for type checking."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def ours(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("finetune.")}


def floor(module: str) -> int:
    return next(level for level, names in enumerate(FLOORS) if module in names)


def test_every_module_stands_on_a_floor() -> None:
    assert set(modules()) == set.union(*FLOORS)


@pytest.mark.parametrize("module", sorted(set.union(*FLOORS)))
def test_imports_point_down(module: str) -> None:
    known = set.union(*FLOORS)
    for path in modules()[module]:
        for other in (ours(imported(path)) & known) - {module}:
            below = floor(other) < floor(module)
            assert below or (module, other) in NEIGHBOURS, f"{module} imports {other}"


def test_only_the_page_knows_gradio() -> None:
    for module, paths in modules().items():
        knows = any(name.split(".")[0] == "gradio" for path in paths for name in imported(path))
        assert knows == (module == "ui"), module


def test_tabs_do_not_import_each_other() -> None:
    tabs = {"data", "train", "runs", "predict", "publish"}
    for tab in tabs:
        names = imported(ROOT / "finetune" / "ui" / f"{tab}.py")
        assert not names & {f"finetune.ui.{other}" for other in tabs - {tab}}


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_no_torch(module: str) -> None:
    code = (
        f"import sys, finetune.{module}\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), 'gradio' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] False"


def test_the_page_is_built_without_what_loads_slowly(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from finetune.store import RunStore\n"
        "from finetune.ui import page\n"
        f"page.build(RunStore({str(tmp_path)!r}))\n"
        f"print(sorted({LATE!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().splitlines()[-1] == "[]"
