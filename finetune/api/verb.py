"""What makes a function a verb. Its signature and its docstring are the Python API, the flags and
the help of a command (`cli/verbs.py`), and what an agent is told (`ui/api.py`)."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from finetune.errors import ConfigError
from finetune.runs.run import Run
from finetune.runs.store import RunStore

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Of a parameter: a run, its folder, or its id or name; a program on another machine sends the id.
AnyRun = Run | Path | str
AnyStore = RunStore | Path | str | None  # a store or its folder; None is the default one
OutFile = Annotated[Path | str, "a file that is written"]


class Parameter(NamedTuple):
    """A parameter of a verb."""

    name: str
    kinds: frozenset[Any]  # the types of its values; of a sequence, of the items
    about: str
    default: Any
    required: bool  # neither a default nor None will do
    several: bool  # a sequence
    choices: tuple[str, ...]


def _parameter(found: inspect.Parameter, about: str) -> Parameter:
    hint, default = found.annotation, None if found.default is found.empty else found.default
    if several := get_origin(hint) is Sequence:
        (hint,) = get_args(hint)
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    is_union = get_origin(hint) in (Union, UnionType)
    kinds = frozenset(get_args(hint) if is_union else [hint])
    required = found.default is found.empty and NoneType not in kinds
    return Parameter(found.name, kinds - {NoneType}, about, default, required, several, choices)


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | str | None]) -> None:
    """Raise a ConfigError before the work if a file cannot be written, or would be written over
    another one.

    Args:
        outputs: parameter -> the file that it names; None if it was not given.
        inputs: the files that are read.
    """
    taken = {Path(path).resolve() for path in inputs if path is not None}
    for name, path in outputs.items():
        if path is None:
            continue
        if path.is_dir():
            raise ConfigError({name: f"is {path}, a folder: name a file"})
        if not path.parent.is_dir():
            raise ConfigError({name: f"is {path}, and there is no folder {path.parent}"})
        if path.resolve() in taken:
            text = f"is {path}, which another option names: name another file"
            raise ConfigError({name: text})
        taken.add(path.resolve())


def each(given: Any) -> list[Any]:
    """Return the items of a sequence, or the only one."""
    return [given] if isinstance(given, str | Path | Run) else [*given]


@dataclass(frozen=True)
class Verb:
    """A function that is a command, and perhaps an endpoint."""

    function: Callable[..., Any]
    command: str
    text: Callable[[Any], str] | None = None  # a result for a person; as JSON if None
    values: Callable[[Any], Any] = asdict  # a result as JSON has it
    notes: Callable[..., list[str]] = lambda result, given: []  # beside it; `given`: the arguments
    status: Callable[[Any], int] = lambda result: 0  # the command's exit status
    files: Mapping[str, Callable[[Any], str]] | None = None  # flag -> what it writes to a file
    words: tuple[str, ...] = ()  # parameters that stand in the command without a flag
    answers: bool = False  # if the `request` of a file also says how it is answered
    offline: bool = False  # if all that it needs is on this disk
    endpoint: str = ""  # its name for programs and agents; "" if it is none

    def told(self, section: str = "") -> str:
        """Return a section of the docstring, such as Returns; without a name what comes before."""
        text = f"\n\n:\n{inspect.getdoc(self.function)}"
        parts = re.split(r"\n\n(|Args|Returns|Raises):\n", text)[1:]
        return dict(zip(parts[::2], parts[1::2], strict=True)).get(section, "")

    def parameters(self) -> list[Parameter]:
        """Return the parameters, with what the docstring says of each."""
        told = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", self.told("Args"), re.MULTILINE)
        about = {name: " ".join(text.split()).rstrip(".") for name, text in told}
        found = inspect.signature(self.function, eval_str=True).parameters.values()
        return [_parameter(each, about.get(each.name, "")) for each in found]


VERBS: dict[str, Verb] = {}  # command -> verb


def verb(command: str, **details: Any) -> Callable[[_Function], _Function]:
    """Make a function a command of that name; `details` are fields of `Verb`."""

    def add(function: _Function) -> _Function:
        VERBS[command] = Verb(function, command, **details)
        return function

    return add
