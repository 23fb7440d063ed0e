"""Every text of the page that is translated, as the catalogues' keys.

`python -m tests.support.translations` prints them as JSON, in the order in which they are found;
with the name of a language, those that its catalogue lacks.
"""

import ast
import json
import re
import string
import sys
import tempfile
from functools import cache
from itertools import chain
from pathlib import Path

from babel.messages import extract
from babel.messages.frontend import parse_mapping_cfg
from babel.messages.pofile import read_po

from finetune import config
from finetune.data import catalog, checkpoint_catalog
from finetune.errors import FinetuneError
from finetune.evaluation import baselines, examples
from finetune.metrics.catalog import OPTIONAL
from finetune.runs.store import RunStore
from finetune.tasks.single_label import SingleLabel
from finetune.ui import app, i18n
from finetune.ui.tabs import publish

SOURCE = Path(app.__file__).parent.parent
KEYWORDS = dict.fromkeys(("_", "_html", "gettext", "gettext_html", "message", "page_text"))


def _error_names(kind):
    return {kind.__name__}.union(*map(_error_names, kind.__subclasses__()))


ERRORS = _error_names(FinetuneError)
# Texts that are kept elsewhere.
LISTED = (
    *examples.SELECTIONS,
    *(SingleLabel.constant, baselines.TFIDF, baselines.COSINE),
    # the kinds of pairs
    *("words", "overlap", "number", "number differs", "negation", "negation differs"),
    *("class", "yes", "no"),
    *(field.help for field in config.hyperparameters().values()),
    *("duplicates", "leaked"),  # why rows are left out
    *("reading train", "reading validation", "reading test"),
    *(app.ZERO_GPU, app.NO_GPU, app.NOT_LASTING),  # on a Space only
)
# Texts that stay as they are: names of fields, which are the same in code, files and papers.
NAMES = {
    *config.hyperparameters(),
    *(choice.label for choice in catalog.DATASETS[1:]),
    *(choice.label for choice in checkpoint_catalog.CHECKPOINTS),
    *publish.LICENCES[:-1], *publish.HARDWARE,
    " ".join(metric.name for metric in OPTIONAL), "sentence1", "sentence2", "F1", "Accuracy",
    # arguments of endpoints
    "run_id", "both_orders", "threshold", "calibrated", "batch", "file", "text_labels",
    "text_column", "label_job",
}  # fmt: skip


def catalogue(language):
    """The translations into a language, by their English text."""
    path = i18n.FOLDER / language.replace("-", "_") / "LC_MESSAGES" / "finetune.po"
    with path.open("rb") as file:
        return {str(m.id): str(m.string) for m in read_po(file) if m.id}


def extracted():
    """The texts in Python and in templates, as `pybabel extract` finds them."""
    with (i18n.FOLDER / "babel.cfg").open(encoding="utf-8") as file:
        methods, options = parse_mapping_cfg(file)
    texts = extract.extract_from_dir(SOURCE, methods, options, KEYWORDS)
    return [text for _, _, text, _, _ in texts if isinstance(text, str)]


def extract_python(file, keywords, comment_tags, options):
    """What Babel finds in Python, and the facts and remedies of errors."""
    source = file.read()
    file.seek(0)
    yield from extract.extract_python(file, keywords, comment_tags, options)
    for line, name, texts, _ in messages(source):
        if name in ERRORS:
            for text in texts:
                yield line, "message", text, []


def messages(source):
    """The errors and messages in Python code: line, function, their texts, names of the values;
    without names where a text is no literal."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            if name in ERRORS or name in KEYWORDS:
                texts = [list(_literals(argument)) for argument in node.args[:2]]
                values = {keyword.arg or "" for keyword in node.keywords} if all(texts) else set()
                yield node.lineno, name, [*chain(*texts)], values


def _literals(node):
    if isinstance(node, ast.IfExp):
        yield from _literals(node.body)
        yield from _literals(node.orelse)
    elif isinstance(node, ast.Constant) and node.value:
        yield str(node.value)


def shown(folder):
    """The texts that stand on the page from the start."""
    built = app.build(RunStore(folder))
    return [text for _, _, text in i18n.texts(built) if text not in NAMES]


@cache
def keys():
    """All of them, once each."""
    with tempfile.TemporaryDirectory() as folder:
        texts = [*shown(Path(folder)), *extracted(), *LISTED]
    return list(dict.fromkeys(text for text in texts if text not in NAMES))


# Calls and variables whose texts are English: a terminal's, a program's.
ENGLISH = {"ArgumentParser", "HTTPException", "PlainTextResponse", "about", "description", "print"}
# Modules of which programs read the sentences, and one with examples.
ENGLISH_MODULES = {
    "environment/confinement.py", "evaluation/gate.py", "hub/deploy.py",
    "hub/model_card.py",
    "ui/app.py", "ui/origins.py", "ui/routes.py", "ui/upload_limits.py",
}  # fmt: skip


def unmarked():
    """The sentences of the page in Python that no catalogue would have."""
    found, known = [], {*keys(), *NAMES}
    for path in SOURCE.rglob("*.py"):
        module = path.relative_to(SOURCE).as_posix()
        if module not in ENGLISH_MODULES and not module.startswith("hub/templates/"):
            sentences = _sentences(ast.parse(path.read_text(encoding="utf-8")))
            found += [f"{module}: {text}" for text in sentences if text not in known]
    return found


def _sentences(node):
    """The sentences in a piece of code but for docstrings and what is English anyway."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in ENGLISH:
            return
        case ast.Assign(targets=[ast.Name(id=name)]) if name in ENGLISH:
            return
        case ast.JoinedStr(values=parts):
            texts = ["{}" if isinstance(p, ast.FormattedValue) else p.value for p in parts]
            text = "".join(texts)
        case ast.Constant(value=str(text)):
            pass
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _sentences(child)
            return
    if re.fullmatch(r"[A-Z{].* .*[.?\u2026]", text):
        yield text


def placeholders(text):
    """The placeholders of a text with their formats."""
    parts = string.Formatter().parse(text)
    return {(name, how or "") for _, name, how, _ in parts if name is not None}


def tags(text):
    """The HTML in a text."""
    return sorted(re.findall(r"<[^>]*>|&\w+;|&#\w+;", text))


if __name__ == "__main__":
    translated = catalogue(sys.argv[1]) if len(sys.argv) > 1 else {}
    missing = [text for text in keys() if text not in translated]
    print(json.dumps(missing, ensure_ascii=False, indent=1))
