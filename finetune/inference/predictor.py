"""Answer with one loaded model: the label of a pair, the reasons, and what would change it. The
most recently used models stay in memory."""

import contextlib
import gc
import os
import reprlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

import numpy as np
import psutil
import torch

from finetune import text_hashes
from finetune.data import checkpoints
from finetune.environment import devices
from finetune.errors import ConfigError, DataError, ModelError
from finetune.inference import decision_rule, quantized
from finetune.inference.explain import Explanation, Flip, explain_pair, find_flips, small_edits
from finetune.inference.scorer import Precision, Row, ScoredPairs, Scorer, take_one_thread
from finetune.messages import message as _
from finetune.runs.run import Run
from finetune.runs.store import as_run
from finetune.tasks.base import SINGLE_LABEL, Answers, DecisionRule, PredictOptions
from finetune.tasks.registry import task_of
from finetune.training import model

MAX_CHARACTERS = 20_000
MAX_EXPLAINED = 160  # tokens, without a GPU; takes three seconds or more with BERT base
FLIP_SECONDS = 1.2  # time for small edits
_EDITS = 16  # tried together
_MEMORY_FACTOR = 1.3  # memory of a model, relative to the size of its weights
_PLAIN, _NO_RULE = PredictOptions(), DecisionRule()
_GATHER = 0.002  # seconds to wait for a crowd's next requests
_MOST = 256  # pairs of a crowd's batch
_Request = tuple[Row, Future[ScoredPairs]]
MAX_MODELS = int(os.environ.get("FINETUNE_MODELS") or 2)


@dataclass(frozen=True)
class Prediction:
    """The answer to one pair."""

    label: str  # the answer as a person reads it
    probabilities: dict[str, float]  # by class or label, in the model's order; empty for a score
    logits: list[float]  # of the given order
    tokens: int  # that the model read
    cut: int  # tokens beyond those
    seconds: float  # from request to answer, including the wait for others
    options: PredictOptions = _PLAIN
    rule: DecisionRule = _NO_RULE
    other_label: str = ""  # of the sentences in the other order; empty for single ones
    other: dict[str, float] | None = None  # probabilities in the other order
    precision: str = ""  # of the computation
    task: str = SINGLE_LABEL
    explained: int = 0  # index of the output that explains the answer
    cells: tuple[Any, ...] = ()  # of the columns that a predicted file gets
    scale: tuple[float, float] = (0.0, 1.0)  # of a score in training
    # The answer, or that it is unsure; empty if no bound is kept with the model, or not of answers
    # of these options.
    decision: str = ""

    @property
    def is_unsure(self) -> bool:
        """True if the model gives no answer, because it is not sure of it."""
        return self.decision not in ("", self.label)


class Predictor:
    """A loaded model, in memory while it is referenced. Call it with one sentence or two.

    Args:
        max_length: the length in tokens it was trained with.
        paired: True if it was trained on pairs, False if on single sentences. If None, the second
            sentence may be omitted.
        device, precision: by default the fastest, as of a `Scorer`.
    """

    def __init__(
        self,
        folder: Path,
        max_length: int,
        paired: bool | None = True,
        device: str = "",
        precision: Precision = "auto",
    ) -> None:
        if not isinstance(folder, str | Path):
            raise ModelError(
                "folder is {folder!r}.",
                "Give a saved model's folder, or use Predictor.from_run.",
                folder=folder,
            )
        if type(max_length) is not int or max_length < 1:
            raise ConfigError(
                {"max_length": _("must be a whole number above 0, got {value!r}", value=max_length)}
            )
        self.folder, self.max_length, self.paired = Path(folder), max_length, paired
        _check_memory(folder)
        self.scorer = Scorer(
            folder, max_length, precision, device, low_priority=True, single_requests=True
        )
        self._target = self.scorer.target
        self._task, self.labels = task_of(self._target), list(self._target.names)
        self._batcher = MicroBatcher(self.scorer)  # its thread keeps the scorer alive
        weakref.finalize(self, _free, self._batcher, self.scorer).atexit = False
        self._explained: tuple[Any, Any] | None = None  # tokenizer and model in fp32

    @classmethod
    def from_run(cls, run: Run | Path | str) -> Self:
        """Load the best model of a run.

        Args:
            run: a run, its folder, or its id in the default folder of runs.

        Raises:
            NoSuchRun: if no run has this id.
            ModelError: if the run has no model, or it cannot be loaded.
        """
        run = as_run(run)
        if not run.has_model():
            raise ModelError(
                "Run {id} has no model.", "Resume it, or choose another run.", id=run.id
            )
        return cls(run.best, checkpoints.length_of(run.folder), run.state().paired)

    def __call__(
        self, sentence1: str, sentence2: str = "", options: PredictOptions = _PLAIN
    ) -> Prediction:
        """Predict label and probabilities of a pair, or of `sentence1` alone if the model reads
        single sentences. DataError if a sentence is empty or longer than `MAX_CHARACTERS`."""
        first, second = self._texts(sentence1, sentence2)
        began = time.perf_counter()
        orders = [(first, second)] if second is None else [(first, second), (second, first)]
        scored = [future.result() for future in [self._batcher.submit(*each) for each in orders]]
        rule, task, target = decision_rule.read_rule(self.folder), self._task, self._target
        logits, swapped = scored[0].logits, scored[1].logits if len(scored) > 1 else None
        answers = task.answers(logits, target, rule, options, swapped)
        label, probabilities = self._named(answers)[0]
        other_label, other = "", None
        if swapped is not None:
            reverse = task.answers(swapped, target, rule, options, logits)
            other_label, other = self._named(reverse)[0]
        given = decision_rule.sure_answers(logits, target, rule, options, swapped)
        return Prediction(
            label,
            probabilities,
            logits[0].tolist(),
            tokens=int(scored[0].tokens[0]),
            cut=int(scored[0].cut[0]),
            seconds=time.perf_counter() - began,
            options=options,
            rule=rule,
            other_label=other_label,
            other=other,
            precision=self.scorer.precision,
            task=target.task,
            explained=task.explained_output(answers),
            cells=tuple(task.cells(answers, target, rule)[0]),
            scale=(target.low, target.high),
            decision="" if given is None else label if given[0] else target.unsure,
        )

    def _named(self, answers: Answers) -> list[tuple[str, dict[str, float]]]:
        """The answers as a person reads them, each with the probabilities by name."""
        names = self._task.spell(answers.values, self._target)
        return [
            (name, dict(zip(self.labels, row.tolist(), strict=False)))
            for name, row in zip(names, answers.probabilities, strict=True)
        ]

    def explain(
        self,
        sentence1: str,
        sentence2: str = "",
        options: PredictOptions = _PLAIN,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> tuple[str, Explanation]:
        """Return the label of a pair, and the weight of each word for it, from the logits of the
        given order. DataError as in `__call__`, or if the input is too long to be explained. The
        progress goes from 0 to 1."""
        texts = self._texts(sentence1, sentence2)
        prediction = self(sentence1, sentence2, options)
        if prediction.tokens > MAX_EXPLAINED and not torch.cuda.is_available():
            raise DataError(
                "This input has {tokens} tokens; without a GPU at most {max_explained} are "
                "explained, because it takes minutes.",
                "Shorten it.",
                tokens=prediction.tokens,
                max_explained=MAX_EXPLAINED,
            )

        def explanation() -> Explanation:
            if self._explained is None:  # in fp32 and with gradients, unlike the scorer's
                _check_memory(self.folder)
                tokenizer, classifier = model.load_saved_model(self.folder)
                self._explained = tokenizer, classifier.float().requires_grad_(False)
            length, output = self.max_length, prediction.explained
            return explain_pair(*self._explained, *texts, length, output, on_progress)

        return prediction.label, _explaining.submit(copy_context().run, explanation).result()

    def flips(
        self,
        sentence1: str,
        sentence2: str = "",
        options: PredictOptions = _PLAIN,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> tuple[list[Flip], int]:
        """Return the small edits that change the label of a pair, and the number of edits tried in
        the available time. The progress goes from 0 to 1."""
        if not self._task.has_right:  # every edit changes a score
            return [], 0
        first, second = self._texts(sentence1, sentence2)
        edits = small_edits(first, second)
        pairs = [(first, second), *((edit.sentence1, edit.sentence2) for edit in edits)]
        rule, began = decision_rule.read_rule(self.folder), time.monotonic()
        answers: list[tuple[str, dict[str, float]]] = []
        for start in range(0, len(pairs), _EDITS):
            elapsed = time.monotonic() - began
            if start and elapsed * (1 + _EDITS / start) > FLIP_SECONDS:  # more like those tried
                break
            on_progress(start / len(pairs))
            firsts, seconds = zip(*pairs[start : start + _EDITS], strict=True)
            columns = [firsts] if second is None else [firsts, seconds]
            logits, swapped = self.scorer.scores_of_orders(columns, options.both_orders)
            found = self._task.answers(logits, self._target, rule, options, swapped)
            answers += self._named(found)
        tried = edits[: len(answers) - 1]
        return find_flips(tried, answers[0][0], answers[1:]), len(tried)

    def _texts(self, sentence1: str, sentence2: str) -> tuple[str, str | None]:
        first = _clean_text("sentence1", sentence1)
        if self.paired or (self.paired is None and str(sentence2).strip()):
            return first, _clean_text("sentence2", sentence2)
        return first, None


# One explanation at a time: it sets hooks on the model.
_explaining = ThreadPoolExecutor(1, "explain", take_one_thread)


def _clean_text(name: str, text: object) -> str:
    """Prepare a text for a tokenizer: without lone surrogates and NUL."""
    if not isinstance(text, str):
        raise DataError("{name} is {value}.", "Give a text.", name=name, value=reprlib.repr(text))
    if not text.replace("\0", " ").strip():
        raise DataError("{name} is empty.", "Write a sentence in every box.", name=name)
    if len(text) > MAX_CHARACTERS:
        raise DataError(
            "{name} has {count:,} characters; at most {max_characters:,} are read.",
            "Shorten it.",
            name=name,
            count=len(text),
            max_characters=MAX_CHARACTERS,
        )
    return text_hashes.replace_surrogates(text).replace("\0", " ")


def _check_memory(folder: Path) -> None:
    """Raise ModelError if the weights in a folder do not fit into free memory."""
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    free = psutil.virtual_memory().available
    if size * _MEMORY_FACTOR > free:
        raise ModelError(
            "This model's weights take {size:.1f} GB, and {free:.1f} GB of memory are free.",
            "Wait until a training has ended, or choose a smaller model.",
            size=size / 2**30,
            free=free / 2**30,
        )


class MicroBatcher:
    """Scores together the pairs that many request one by one: requests that arrive while a batch is
    computed form the next batch.

    A single request never waits. In a crowd, those just answered get two milliseconds to ask again;
    without that, one of them would form a batch alone while the others wait.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._queue: SimpleQueue[_Request | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="micro-batcher", daemon=True)
        self._thread.start()

    def submit(self, sentence1: str, sentence2: str | None = None) -> Future[ScoredPairs]:
        """Return a future with the logits and lengths of one pair; ModelError after `close`."""
        answer: Future[ScoredPairs] = Future()
        with self._closing:
            if self._closed:
                raise ModelError("This model is not loaded any more.", "Ask again.")
            self._queue.put(((sentence1, sentence2), answer))
        return answer

    def close(self) -> None:
        """Answer all earlier requests, then stop."""
        with self._closing:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        requests: list[_Request] = []
        while (request := self._queue.get()) is not None:
            until = time.monotonic() + (_GATHER if len(requests) > 1 else 0.0)
            requests = [request]
            with contextlib.suppress(Empty):
                while len(requests) < _MOST:
                    left = until - time.monotonic()
                    following = self._queue.get(left > 0, max(left, 0.0))
                    if following is None:
                        self._queue.put(None)  # ends the loop outside
                        break
                    requests.append(following)
            self._answer(requests)

    def _answer(self, requests: list[_Request]) -> None:
        """Answer each request. If a batch fails, each is tried alone, so that each gets its own
        error."""
        try:
            blocks = zip(*self._scorer.stream(row for row, _ in requests), strict=True)
            logits, tokens, cut = (np.concatenate(block) for block in blocks)
        except Exception as error:
            if len(requests) == 1:
                requests[0][1].set_exception(error)
                return
            for request in requests:
                self._answer([request])
            return
        for at, request in enumerate(requests):
            request[1].set_result(ScoredPairs(logits[[at]], tokens[[at]], cut[[at]]))


def _free(batcher: MicroBatcher, scorer: Scorer) -> None:
    batcher.close()
    scorer.free()


class ModelCache:
    """The `keep` most recently used models, each loaded once. An evicted model is freed when its
    last use ends."""

    def __init__(self, keep: int = MAX_MODELS) -> None:
        self._keep = max(1, keep)
        # By folder, its weights' times, if a bound is kept (without int8), and device; the most
        # recently used last.
        self._predictors: dict[tuple[str, tuple[int, ...], str], Predictor] = {}
        self._lock = threading.Lock()
        _caches.append(self)

    @contextlib.contextmanager
    def using(
        self, folder: Path, max_length: int, paired: bool | None = True, device: str = ""
    ) -> Iterator[Predictor]:
        """Yield the predictor of a folder, which stays loaded within the `with`. It is loaded again
        if its weights have changed."""
        files = [folder / "model.safetensors", folder / quantized.MODEL]
        changed = (file.stat().st_mtime_ns if file.exists() else 0 for file in files)
        bounded = decision_rule.read_rule(folder).sure is not None
        key = (str(folder), (*changed, bounded), device)
        with self._lock:
            predictor = self._predictors.pop(key, None)
            if predictor is None:
                while len(self._predictors) >= self._keep:  # first: both may not fit
                    del self._predictors[next(iter(self._predictors))]
                predictor = Predictor(folder, max_length, paired, device)
                devices.give_back_freed_memory()  # loading took as much again
            self._predictors[key] = predictor
        yield predictor

    def free(self) -> None:
        """Free all memory; that of a model in use when its use ends."""
        with self._lock:
            self._predictors.clear()
        gc.collect()


_caches: list[ModelCache] = []


def release_models() -> None:
    """Free device memory for a training run that begins. Does nothing without a GPU."""
    if torch.cuda.is_available():
        for cache in _caches:
            cache.free()
