"""Scores the rows of a file on a Ray cluster whose machines share the folder of the runs. Each
machine has an actor with the model; windows of rows are distributed among them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from finetune.engines import ray_machines, ray_node
from finetune.engines.base import EngineSpec
from finetune.engines.ray_machines import connected
from finetune.errors import JobError
from finetune.inference.files import Window, WindowLogits
from finetune.runs.run import Run
from finetune.tasks.base import Target

_LOAD_LIMIT = 120.0  # seconds for a machine to load the model
_AHEAD = 2  # windows per machine: one being scored, one waiting


@contextlib.contextmanager
def scorer_on_cluster(run: Run, spec: EngineSpec) -> Iterator[RayScorer]:
    """Yield a scorer of a run's best model on the cluster of a spec. JobError if Ray is missing,
    the cluster does not answer, or its machines lack something."""
    with connected(spec) as ray:
        nodes = [
            node
            for node in ray.nodes()
            if node["Alive"] and (node["Resources"].get("CPU") or node["Resources"].get("GPU"))
        ]
        model_file = run.best.relative_to(run.folder) / "config.json"
        ray_machines.check_nodes(ray, run, nodes, str(model_file))
        actors = _start_actors(ray, nodes)
    try:
        with connected(spec):
            scorer = RayScorer(ray, run, actors)
        yield scorer
    finally:
        for actor in actors:
            ray.kill(actor)
        ray.shutdown()  # otherwise this process ends with the machine it has connected to


def _start_actors(ray: Any, nodes: list[Any]) -> list[Any]:
    """Start an actor for each GPU, and for each machine without one."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(ray_node)
    actor = ray.remote(ray_node.FileScorer)
    started = []
    for node in nodes:
        gpus, cpus = (int(node["Resources"].get(kind, 0)) for kind in ("GPU", "CPU"))
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        takes = {"num_gpus": 1, "num_cpus": 0} if gpus else {"num_cpus": cpus}
        options = actor.options(scheduling_strategy=place, **takes)
        started += [options.remote(ray_machines.SOURCE) for _ in range(gpus or 1)]
    return started


def _gone() -> JobError:
    return JobError(
        "The machines of the Ray cluster have gone while they scored the file.",
        "See `ray status`, and start again.",
    )


class RayScorer:
    """Scores windows by actors with a run's model. Raises a `JobError` if none could load it."""

    def __init__(self, ray: Any, run: Run, actors: list[Any]) -> None:
        self._ray = ray
        loading = {actor.load.remote(str(run.folder.resolve())): actor for actor in actors}
        loaded, _ = ray.wait(list(loading), num_returns=len(loading), timeout=_LOAD_LIMIT)
        if not loaded:
            raise JobError(
                "No machine of the Ray cluster was free for {n} seconds.",
                "Wait until its other work has ended (`ray status` shows it), or add a machine.",
                n=int(_LOAD_LIMIT),
            )
        models, self._actors = [], []
        lost = ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError
        for answer in loaded:
            with contextlib.suppress(*lost):  # its machine has gone
                try:
                    models.append(ray.get(answer))
                except ray.exceptions.RayTaskError as error:  # an error of the model there
                    raise error.cause from None
                self._actors.append(loading[answer])
        if not models:
            raise _gone()
        self.target: Target = models[0][0]
        self.precision = ", ".join(sorted({precision for _, precision in models}))

    def score(self, windows: Iterable[Window]) -> Iterator[tuple[Window, WindowLogits]]:
        """Yield every window's logits in order, holding a few windows per actor. If an actor's
        machine goes away, another actor gets its windows."""
        coming = iter(windows)
        sent: deque[tuple[Window, Any, Any]] = deque()  # window, its future answer, and the actor
        while True:
            while len(sent) < _AHEAD * len(self._actors) and (window := next(coming, None)):
                sent.append(self._send(window, sent))
            if not sent:
                return
            window, answer, actor = sent.popleft()
            try:
                scores = WindowLogits(*self._ray.get(answer))
            except self._ray.exceptions.RayActorError as error:
                self._actors = [other for other in self._actors if other is not actor]
                if not self._actors:
                    raise _gone() from error
                sent.appendleft(self._send(window, sent))
                continue
            yield window, scores

    def _send(self, window: Window, sent: Iterable[tuple[Window, Any, Any]]) -> Any:
        """Give a window to the actor with the least to do."""
        answers = [answer for _, answer, _ in sent]
        done = set(self._ray.wait(answers, num_returns=len(answers), timeout=0)[0] if sent else ())
        busy = Counter(id(actor) for _, answer, actor in sent if answer not in done)
        actor = min(self._actors, key=lambda actor: busy[id(actor)])
        return window, actor.score.remote(dataclasses.replace(window, rows=[])), actor
