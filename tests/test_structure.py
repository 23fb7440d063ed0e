"""The packages: they use each other's public modules only, and light modules do not load torch.
`lint-imports` says beside the tests that imports point down."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.running import loaded_by

ROOT = Path(__file__).resolve().parent.parent
# Modules that import torch or datasets when they are imported; the page loads them when needed.
HEAVY_MODULES = {
    "finetune.data.dataset_cache", "finetune.data.splits", "finetune.data.checks",
    "finetune.data.sources",
    "finetune.evaluation.corrections", "finetune.evaluation.quantization",
    "finetune.inference.explain", "finetune.training.layers", "finetune.inference.quick_layers",
    "finetune.inference.predictor", "finetune.inference.scorer",
    "finetune.inference.files", "finetune.metrics.scores.scores",
    "finetune.training.model", "finetune.hub.onnx", "finetune.engines.ray_files",
    "finetune.training.dataloaders", "finetune.training.loop",
    "finetune.training.step", "finetune.training.cuda_graphs",
}  # fmt: skip
HEAVY = {"torch", "transformers", "datasets", "accelerate"}
# Imported only where it is installed: an engine, a Space's own.
OPTIONAL = {"ray", "spaces"}
SLOW = HEAVY | {"scipy", "sklearn", "matplotlib"}  # what the page's first answer does not wait for


def test_light_modules_load_no_torch() -> None:
    names = (
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "finetune").rglob("*.py")
    )
    light = sorted(
        name for name in names if name not in HEAVY_MODULES and ".ui" not in name
        and ".templates" not in name and name != "finetune.__main__"
    )  # fmt: skip
    assert loaded_by(f"import {', '.join(light)}", HEAVY | {"gradio"}) == "[]"


def test_checkpoints_are_loaded_in_one_place() -> None:
    """A call elsewhere would trust the checkpoint's files. Templates of exported scripts are
    exempt."""
    scripts = ROOT / "finetune" / "hub" / "templates"
    calls = [
        str(path.relative_to(ROOT / "finetune"))
        for path in [ROOT / "app.py", *(ROOT / "finetune").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "from_pretrained"
        and scripts not in path.parents
    ]  # fmt: skip
    assert calls == ["data/checkpoint_files.py"]


def test_the_page_is_built_without_what_loads_slowly(tmp_path: Path) -> None:
    code = (
        "from finetune.runs.store import RunStore\n"
        "from finetune.ui import app\n"
        f"app.build(RunStore({str(tmp_path)!r}))"
    )
    assert loaded_by(code, SLOW) == "[]"


def imported(path: Path) -> set[str]:
    """The packages that a file imports, at any depth."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    return {name.split(".")[0] for name in names}


def required(*files: str) -> set[str]:
    """The distributions named in files of requirements."""
    text = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    return {plain(name) for name in re.findall(r"^[\w.-]+", text, re.MULTILINE) if name[0] != "-"}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("sources", "requirements"),
    [
        (("finetune", "app.py"), ("requirements.txt",)),
        (("tests",), ("requirements.txt", "tests/requirements.txt")),
    ],
)
def test_what_is_imported_stands_in_the_requirements(
    sources: tuple[str, ...], requirements: tuple[str, ...]
) -> None:
    own = {"finetune", "tests", "app", *OPTIONAL} | sys.stdlib_module_names
    files = [file for source in sources for file in (ROOT / source).rglob("*.py")]
    files += [ROOT / source for source in sources if source.endswith(".py")]
    known, listed = packages_distributions(), required(*requirements)
    missing = {
        package
        for file in files
        for package in imported(file) - own
        if not listed & set(map(plain, known.get(package, [package])))
    }
    assert missing == set()


def test_optuna_is_imported_whole() -> None:
    """A thread that imports one of its modules while another thread imports the package would get
    an ImportError, since they import each other; `import optuna` waits."""
    wrong = [
        f"{path.name}:{node.lineno}"
        for path in (ROOT / "finetune").rglob("*.py")
        for outer in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(outer, ast.FunctionDef)
        for before, node in pairwise([None, *outer.body])
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("optuna.")
        if not (isinstance(before, ast.Import) and before.names[0].name == "optuna")
    ]
    assert wrong == []
