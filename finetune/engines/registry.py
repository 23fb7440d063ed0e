"""The available engines, and functions that delegate to the engine of a run."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from finetune.engines import spending
from finetune.engines.base import HERE, Engine, EngineSpec, read_spec
from finetune.engines.hub_jobs import HubJobOptions, HubJobs
from finetune.engines.ray_cluster import RayCluster
from finetune.errors import ConfigError, JobError
from finetune.messages import message as _
from finetune.owners import Policy
from finetune.runs.run import Run


class LocalEngine(Engine):
    """This machine, for a run without a spec: the run's own worker carries it out."""

    name, label = HERE, _("This machine")
    places = None
    is_remote = False


ENGINES: dict[str, type[Engine]] = {each.name: each for each in (LocalEngine, HubJobs, RayCluster)}
_tokens: dict[str, str] = {}  # of the Hub, by the id of a run or a search; in memory only


def find_engine(name: str) -> type[Engine]:
    """Return an engine by name; `Engine` itself if there is none, as for a damaged spec."""
    return ENGINES.get(name, Engine)


def engine_of(run: Run) -> type[Engine]:
    """Return the engine of a run's spec."""
    return find_engine(read_spec(run).engine)


def is_remote(run: Run) -> bool:
    """True if another engine carries out the run; its worker here only follows it."""
    return engine_of(run).is_remote


def that_keep(run: Run) -> list[type[Engine]]:
    """Return the engines that keep something of a run, wherever the run is carried out now."""
    spec = read_spec(run)
    return [engine for engine in ENGINES.values() if engine.keeps(spec)]


def open_engine(spec: EngineSpec, token: str = "") -> Engine:
    """Open the engine of a spec, with a token of the Hub as in `Engine`."""
    if spec.engine not in ENGINES:
        fact, remedy = _("There is no engine {engine!r}."), _("Choose one of: {engines}.")
        raise JobError(fact, remedy, engine=spec.engine, engines=", ".join(ENGINES))
    return find_engine(spec.engine)(token)


def make_spec(name: str, values: Mapping[str, Any]) -> EngineSpec:
    """Return the engine spec of an engine with these options, and the defaults of those not given.
    ConfigError names every one that is wrong."""
    if name not in ENGINES:
        known = _("is {engine!r}; choose one of: {known}", engine=name, known=", ".join(ENGINES))
        raise ConfigError({"engine": known})
    try:
        options = find_engine(name).Options(**values)
    except ValidationError as error:
        problems = {}
        others = {name for engine in ENGINES.values() for name in engine.Options.model_fields}
        for problem in error.errors():
            option, value, reason = str(problem["loc"][0]), problem["input"], problem["msg"].lower()
            problems[option] = _("is {value!r}: {reason}", value=value, reason=reason)
            if problem["type"] == "extra_forbidden" and option in others:
                problems[option] = _("is of another engine")
        raise ConfigError(problems) from error
    return EngineSpec(engine=name, options=options.model_dump())


def check_options(spec: EngineSpec, policy: Policy) -> None:
    """Raise a `ConfigError` if a visitor's engine spec has options that only the owner may set."""
    named = [name for name in find_engine(spec.engine).owners_options if spec.options.get(name)]
    if named and not policy.owner_asks:
        raise ConfigError(dict.fromkeys(named, _("cannot be named here; leave it empty")))


def billed_options(spec: EngineSpec) -> HubJobOptions | None:
    """Return the options of an engine spec whose job costs something; None for others."""
    billed = find_engine(spec.engine).is_billed and spec.options.get("price")
    return HubJobOptions(**spec.options) if billed else None


def may_be_under_way(run: Run) -> bool:
    """True if an attempt whose start was not heard of may be at work."""
    spec = read_spec(run)
    return spec.is_unheard and (
        not engine_of(run).is_billed or spending.spent_in(run, spec.attempt) > 0
    )


def remove(run: Run, token: str = "") -> None:
    """End a run's attempts on other engines, and remove what these engines keep of it."""
    spec = read_spec(run)
    for engine in that_keep(run):
        engine(token).remove(run, spec)


def keep_token(id: str, token: str) -> None:
    """Keep a run's or a search's token while this process lives; an empty one is not kept."""
    if token:
        _tokens[id] = token


def kept_token(id: str) -> str:
    """Return the token of a run or a search; empty if none is kept."""
    return _tokens.get(id, "")
