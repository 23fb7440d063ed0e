"""`python -m finetune search`: find hyperparameters by many runs."""

import argparse
import shlex
import sys
import time
from collections.abc import Mapping

from finetune import config
from finetune.arguments import add_arguments, arguments_given
from finetune.cli import options
from finetune.config import RunConfig
from finetune.engines.base import EngineSpec
from finetune.engines.registry import find_engine, open_engine
from finetune.errors import ConfigError
from finetune.jobs import scheduler
from finetune.messages import message as _
from finetune.metrics.catalog import metric_name
from finetune.runs.store import RunStore
from finetune.studies import results
from finetune.studies.driver import advance, begin_search, check_price, trial_price
from finetune.studies.space import (
    Budget,
    Space,
    default_space,
    describe_outside,
    read_space,
    searchable,
)  # fmt: skip
from finetune.studies.study import Study, find_study

_PAUSE = 0.5  # seconds between two checks


def search(words: list[str] | None = None) -> int:
    """Find hyperparameters by many runs. The first trial is the configuration as it is."""
    parser = _parser()  # exit status: 0 it ended, 1 no trial has a score
    args = parser.parse_args(words)
    options.check_alone(parser, args, "study", [])
    store = RunStore(args.root)
    if args.study:
        study = find_study(store, args.study)
        if find_engine(study.settings.spec.engine).needs_token:
            open_engine(study.settings.spec)  # raises if nobody is signed in
    else:
        spec = options.engine_spec(args) or EngineSpec()
        space = _space(args.over) if args.over else default_space()
        budget = Budget(args.trials, args.search_minutes)
        check_price(budget, spec)
        options.agree(args, spec, budget.trials * trial_price(spec))
        upload = options.upload_of(args, args.root)
        values = config.preset(args.preset) if args.preset else {}
        study = begin_search(
            store, RunConfig(**values | arguments_given(args) | upload), space, budget,
            spec=spec, parallel=args.parallel, pruning=args.pruning,
            keep_pruned=args.keep_pruned,
        )  # fmt: skip
    again = ["--runs", str(args.root), f"--study={study.title}"]
    print(f"{study.title}: go on with it by python -m finetune search {shlex.join(again)}")
    if study.outside:
        apart = describe_outside(dict(study.settings.space), study.outside)
        print(f"trial 0 is the configuration as it is, outside of what is searched: {apart}")
    told: set[int] = set()
    try:
        while advance(store, study):
            scheduler.dispatch_queue(store)
            _tell(store, study, told)
            time.sleep(_PAUSE)
    except KeyboardInterrupt:  # running trials go on; `--study` continues
        return 0
    _tell(store, study, told)
    rows = results.list_trials(store, study)
    best = results.best_trial(rows, study.minimize)
    if best is None:
        print("No trial has a score.", file=sys.stderr)
        return 1
    metric = metric_name(study.metric, results.class_count(store, rows))
    name = store.get(best.run_id).title() if best.run_id else f"trial {best.number}"
    print(f"best: {metric} {best.score:.4f}, {name}, {_described(best.values)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = options.parser_of("search", search.__doc__)
    parser.add_argument("--study", help="a search to go on with: its name or id")
    parser.add_argument("--preset", choices=config.PRESETS, help="values to begin with")
    group = parser.add_argument_group("Search")
    group.add_argument("--trials", type=int, default=20, help="at most (default: 20; 0: no limit)")
    group.add_argument(
        "--search_minutes", type=float, default=0.0,
        help="minutes of training, summed over all trials, after which no trial begins",
    )  # fmt: skip
    group.add_argument("--parallel", type=int, default=1, help="trials at a time (default: 1)")
    group.add_argument(
        "--pruning", action=argparse.BooleanOptionalAction, default=True,
        help="end trials that are behind the others (default)",
    )  # fmt: skip
    group.add_argument(
        "--over", action="append", metavar="NAME[=RANGE]",
        help="a hyperparameter to search, as learning_rate=1e-5..3e-4 or lora_r=8,16; without a "
        f"range its usual one. Among {', '.join(searchable())}",
    )  # fmt: skip
    group.add_argument(
        "--keep_pruned", action="store_true", help="keep the weights of trials that end early"
    )
    options.add_files(parser)
    options.add_engine(parser)
    add_arguments(parser)
    return parser


def _space(over: list[str]) -> Space:
    texts: dict[str, str] = {}
    for text in over:
        name, sign, drawn = text.partition("=")
        if name in texts:
            raise ConfigError({name: _("is given twice")})
        if sign and not drawn.strip():
            raise ConfigError({name: _("has nothing after its =; give a range, or no = at all")})
        texts[name] = drawn
    return read_space(texts)


def _described(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def _tell(store: RunStore, study: Study, told: set[int]) -> None:
    """Print a line for each trial that has ended since the last check."""
    rows = results.list_trials(store, study)
    metric = metric_name(study.metric, results.class_count(store, rows))
    for trial in rows:
        if trial.number not in told and trial.state not in ("waiting", "running"):
            told.add(trial.number)
            score = f"{metric} {trial.score:.4f}" if trial.score is not None else ""
            values = _described(trial.values)
            print(f"trial {trial.number} {trial.state} {score} {values}", flush=True)
