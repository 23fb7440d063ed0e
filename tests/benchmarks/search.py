"""What does pruning cost and gain a search?

200 studies of 20 trials on an invented objective, in which the best curve is known: in how many the
app's pruner (the worst quarter ends early) ended the trial that would have been the best, and what
time it saved. The ratio is the time without pruning over the time with it.

    python -m tests.benchmarks.search [--studies 200] [--quick]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics

import optuna

from finetune.search.space import default_space, distributions
from finetune.search.study import PARTS, make_pruner
from tests.benchmarks import machine

TRIALS = 20  # of a study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=200)
    args = machine.parsed(parser, studies=2)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(machine.described())
    print(f"search: ratio {simulate(args.studies):.2f}")


def simulate(studies: int) -> float:
    """Print how often pruning ends the best trial. Returns the time without it over that with."""
    space = distributions(default_space())
    lost, costs = [], {True: 0.0, False: 0.0}
    for seed in range(studies):
        for pruning in (True, False):
            pruner = make_pruner() if pruning else optuna.pruners.NopPruner()
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=8, multivariate=True)
            study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
            draw, finals, ended = random.Random(seed), [], []
            for _ in range(TRIALS):
                trial = study.ask(space)
                curve = _curve(trial.params, draw)
                early = _tell(study, trial, curve)
                costs[pruning] += trial.params["num_train_epochs"] * (early or PARTS) / PARTS
                finals.append(curve[-1])
                ended.append(bool(early))
            if pruning:
                lost.append(ended[finals.index(max(finals))])
    print(f"pruning ends the best trial in {statistics.mean(lost):.1%} of {studies} studies")
    return costs[False] / costs[True]


def _tell(study: optuna.Study, trial: optuna.Trial, curve: list[float]) -> int:
    """Report a curve; after how many parts it was pruned, 0 where it was not."""
    for part, score in enumerate(curve, 1):
        trial.report(score, part)
        if part < PARTS and trial.should_prune():
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return part
    study.tell(trial, curve[-1])
    return 0


def _curve(values: dict[str, float], draw: random.Random) -> list[float]:
    """The F1 of an invented run after each part: higher rates rise sooner and end lower."""
    rate = math.log10(values["learning_rate"])
    batch = math.log2(values["per_device_train_batch_size"] / 16)
    final = 0.90 - 0.05 * (rate + 4.2) ** 2 - 0.008 * abs(batch)
    final -= 0.01 * (values["num_train_epochs"] < 3) + 0.02 * abs(values["warmup_ratio"] - 0.08)
    final += draw.gauss(0, 0.006)
    speed = max(0.1, 0.25 + 0.25 * (rate + 5) + draw.gauss(0, 0.05))
    speed *= 1 + 0.1 * (values["num_train_epochs"] - 3)
    rise = [0.8 + (final - 0.8) * (1 - math.exp(-speed * part)) for part in range(1, PARTS)]
    return [*(score + draw.gauss(0, 0.008) for score in rise), final]


if __name__ == "__main__":
    main()
