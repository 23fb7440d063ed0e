"""What a tuned model says of two sentences, or of one.

Loads saved models, and sequence classifiers of the Hub, and keeps the last few. Questions that come
together are computed together. Knows no page and no run's history.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch

from finetune import hub_errors, json_files, text_hashes
from finetune.data import checkpoints
from finetune.errors import DataError, ModelError
from finetune.inference import decision_rule
from finetune.inference.decision_rule import DecisionRule
from finetune.inference.scorer import MicroBatcher, Precision, Scorer, set_own_threads
from finetune.metrics import calibration
from finetune.runs.run import Run
from finetune.runs.summary import fold_events
from finetune.training import model

if TYPE_CHECKING:
    from finetune.inference.explain import Explanation
    from finetune.inference.perturbations import Flip

MAX_CHARACTERS = 20_000
MAX_EXPLAINED = 160  # tokens, without a GPU: about ten seconds with BERT base
MOST_OF_HUB = 2**30  # bytes of a model that a visitor of a shared app may fetch
_FETCHED = (".json", ".txt", ".model", ".safetensors")  # files of a model, in its first folder
_NICE = 15
KEPT = int(os.environ.get("FINETUNE_MODELS") or 3)
_ROOM = 1.3  # memory a model takes, over the size of its weights


@dataclass(frozen=True)
class PredictOptions:
    """How logits become an answer.

    Args:
        both_orders: average the probabilities of both orders of the sentences.
        threshold, calibrated: use what was saved with the model.
    """

    both_orders: bool = False
    threshold: bool = False
    calibrated: bool = False


@dataclass(frozen=True)
class Prediction:
    """The answer to one pair.

    Args:
        label: the answer: the most probable class, unless a threshold was to be used.
        probabilities: class -> probability, in the model's order; they sum to 1.
        logits: raw scores of the order given, in the same order.
        tokens: length of the input in tokens, as the model read it.
        cut: tokens of the pair beyond what the model reads, which it did not see.
        seconds: from the question to the answer, waiting for others included.
        other_label, other: the same of the sentences in the other order; empty for single ones.
        way: what was done with the logits.
        decision: what was saved with the model.
    """

    label: str
    probabilities: dict[str, float]
    logits: list[float]
    tokens: int
    cut: int
    seconds: float
    other_label: str = ""
    other: dict[str, float] | None = None
    way: PredictOptions = PredictOptions()
    decision: DecisionRule = field(default_factory=DecisionRule)

    @property
    def agrees(self) -> bool:
        """Whether the order of the sentences changes nothing about the answer."""
        return not self.other_label or self.other_label == self.label


class Predictor:
    """One loaded model.

    Args:
        folder: what `model.save` wrote, or a classifier of the Hub.
        max_length: the length in tokens it was trained with.
        paired: whether it was trained on pairs rather than single sentences; None where nobody
            knows, and the second sentence may be left out.
        device: where it computes; chosen by what there is where empty.
        precision: what it computes in; `auto` takes bf16 where the hardware computes in it.

    Raises:
        ModelError: when the folder is gone or damaged, or the model does not fit into memory.
    """

    def __init__(
        self,
        folder: Path,
        max_length: int,
        paired: bool | None = True,
        device: str = "",
        precision: Precision = "auto",
    ) -> None:
        self.folder = folder
        self.paired = paired
        self.max_length = max_length
        _check_room(folder)
        try:
            self.scorer = Scorer(
                folder, max_length, paired, precision, device=device or "auto", aside=True
            )
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise _too_large(folder) from error
        self.labels: list[str] = self.scorer.labels
        self._together = MicroBatcher(self.scorer)
        self._plain: tuple[Any, Any] | None = None

    @classmethod
    def from_run(cls, run: Run, device: str = "", precision: Precision = "auto") -> Predictor:
        """Load a run's best model.

        Raises:
            ModelError: when there is none, or it cannot be loaded.
        """
        if not run.has_model():
            raise ModelError(f"Run {run.id} has no model.", "Resume it, or choose another run.")
        paired = fold_events(run.tail()[0]).paired
        return cls(run.best, checkpoints.length_of(run.folder), paired, device, precision)

    def __call__(
        self, sentence1: str, sentence2: str = "", options: PredictOptions | None = None
    ) -> Prediction:
        """As `pair`."""
        return self.pair(sentence1, sentence2, options)

    def pair(
        self, sentence1: str, sentence2: str = "", way: PredictOptions | None = None
    ) -> Prediction:
        """Label and probabilities of one pair; of `sentence1` alone where it learned from such.

        Raises:
            DataError: when a sentence is empty or longer than `MAX_CHARACTERS`.
            ModelError: when the device's memory is not enough.
        """
        way = way or PredictOptions()
        first = clean_text("sentence1", sentence1)
        second = self._second(sentence2)
        began = time.perf_counter()
        try:
            answers = [self._together.submit(first, second)]
            if second is not None:
                answers.append(self._together.submit(second, first))
            scored = [one.result() for one in answers]
        except torch.OutOfMemoryError as error:
            raise _too_large(self.folder) from error
        logits = np.concatenate([one.logits for one in scored])
        tokens, cut = int(scored[0].tokens[0]), int(scored[0].cut[0])
        return self._prediction(logits, tokens, cut, way, time.perf_counter() - began)

    def _prediction(
        self, logits: Any, tokens: int, cut: int, way: PredictOptions, seconds: float
    ) -> Prediction:
        known = decision_rule.read_rule(self.folder)
        each = _probabilities(logits, way, known)
        if way.both_orders:
            each = np.repeat(each.mean(axis=0, keepdims=True), len(each), axis=0)
        labels, named = self._decided(each, way, known)
        return Prediction(
            label=labels[0],
            probabilities=named[0],
            logits=[float(value) for value in logits[0]],
            tokens=tokens,
            cut=cut,
            seconds=seconds,
            other_label=labels[1] if len(labels) > 1 else "",
            other=named[1] if len(named) > 1 else None,
            way=way,
            decision=known,
        )

    def _decided(
        self, probabilities: Any, way: PredictOptions, known: DecisionRule
    ) -> tuple[list[str], list[dict[str, float]]]:
        """The answers to several pairs, and the probabilities by class."""
        labels = [self._label(one, way, known) for one in probabilities]
        each = [dict(zip(self.labels, map(float, one), strict=True)) for one in probabilities]
        return labels, each

    def _label(self, probabilities: Any, way: PredictOptions, known: DecisionRule) -> str:
        usable = way.threshold and known.threshold is not None and known.positive in self.labels
        if not usable or len(self.labels) != 2 or known.threshold is None:
            return self.labels[int(probabilities.argmax())]
        positive = self.labels.index(known.positive)
        level = known.threshold
        if way.calibrated and known.temperature:
            level = decision_rule.rescale_threshold(level, known.temperature)
        return self.labels[positive if probabilities[positive] >= level else 1 - positive]

    def why(
        self, sentence1: str, sentence2: str = "", way: PredictOptions | None = None
    ) -> tuple[str, Explanation]:
        """The answer that `pair` gives, and how much each word speaks for it.

        The words are weighed by the logits of the order given: a threshold, the other order and a
        temperature say which class is the answer, and thus is explained, and weigh no word.

        Raises:
            DataError: as `pair`.
            ModelError: when the model cannot be explained.
        """
        from finetune.inference import explain

        first = clean_text("sentence1", sentence1)
        second = self._second(sentence2)
        answer = self.pair(sentence1, sentence2, way)
        if answer.tokens > MAX_EXPLAINED and not torch.cuda.is_available():
            raise DataError(
                f"This input has {answer.tokens} tokens; without a GPU up to {MAX_EXPLAINED} are "
                "explained, for it takes minutes.",
                "Shorten it.",
            )

        def explained() -> Explanation:
            if self._plain is None:  # in fp32 and with gradients, unlike the scorer's
                _check_room(self.folder)
                self._plain = model.load_saved_model(self.folder)
            label = self.labels.index(answer.label)
            return explain.explain_pair(*self._plain, first, second, self.max_length, label)

        return answer.label, _aside.submit(explained).result()

    def flips(
        self, sentence1: str, sentence2: str = "", way: PredictOptions | None = None
    ) -> tuple[list[Flip], int]:
        """The small edits that change the answer that `pair` gives, and how many were tried.

        Raises:
            DataError: as `pair`.
        """
        from finetune.inference import perturbations

        first = clean_text("sentence1", sentence1)
        second = self._second(sentence2)
        tried = perturbations.small_edits(first, second)
        firsts = [first, *(one.sentence1 for one in tried)]
        seconds = None if second is None else [second, *(one.sentence2 or "" for one in tried)]
        way, known = way or PredictOptions(), decision_rule.read_rule(self.folder)
        each = _probabilities(self.scorer.scores(firsts, seconds), way, known)
        if way.both_orders and seconds is not None:
            each = (each + _probabilities(self.scorer.scores(seconds, firsts), way, known)) / 2
        labels, named = self._decided(each, way, known)
        return perturbations.find_flips(tried, labels[0], labels[1:], named[1:]), len(tried)

    def _second(self, sentence2: str) -> str | None:
        if self.paired or (self.paired is None and sentence2.strip()):
            return clean_text("sentence2", sentence2)
        return None

    def free(self) -> None:
        """Give the memory back; the predictor is of no use afterwards."""
        self._together.close()
        self.scorer.free()
        self._plain = None


def _probabilities(logits: Any, way: PredictOptions, known: DecisionRule) -> Any:
    """Of shape (pairs, classes), as the logits."""
    temperature = (known.temperature if way.calibrated else None) or 1.0
    return calibration.probabilities(logits, temperature)


def _stand_aside() -> None:
    """One thread, after whatever else runs here: several wait for each other on busy cores."""
    set_own_threads(1)
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


# One explanation at a time: it sets hooks on the model.
_aside = ThreadPoolExecutor(1, "explain", _stand_aside)


def clean_text(name: str, text: object) -> str:
    """Text as a tokenizer can take it: no lone surrogates, no NUL.

    Raises:
        DataError: when it is empty or longer than `MAX_CHARACTERS`.
    """
    if not isinstance(text, str) or not text.replace("\0", " ").strip():
        raise DataError(f"{name} is empty.", "Write a sentence in every box.")
    if len(text) > MAX_CHARACTERS:
        raise DataError(
            f"{name} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read.",
            "Shorten it.",
        )
    return text_hashes.replace_surrogates(text).replace("\0", " ")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _check_room(folder: Path) -> None:
    """See that the weights fit into what is free.

    Raises:
        ModelError: when they do not.
    """
    if _size(folder) * _ROOM > psutil.virtual_memory().available:
        raise _too_large(folder)


def _too_large(folder: Path) -> ModelError:
    size, free = _size(folder) / 2**30, psutil.virtual_memory().available / 2**30
    return ModelError(
        f"This model's weights take {size:.1f} GB, and {free:.1f} GB of memory are free.",
        "Wait until a training has ended, or choose a smaller model.",
    )


def fetch_hub_model(name: str, anonymous: bool) -> tuple[Path, int]:
    """Where a classifier of the Hub lies once it is fetched, and how many tokens it reads.

    Weights are read from safetensors only, and code that comes with a model is never run.

    Args:
        name: its id, as owner/name.
        anonymous: for a visitor: without any token of this machine's, and up to `MOST_OF_HUB`.

    Raises:
        ModelError: when there is none of that name, it is no sequence classifier, has no
            safetensors weights, does not fit into memory, or the Hub does not answer.
    """
    from huggingface_hub import HfApi, snapshot_download

    token = False if anonymous else None
    try:
        info = hub_errors.retried(
            lambda: HfApi().model_info(name, files_metadata=True, token=token, timeout=10)
        )
        if anonymous and info.gated:  # its files may lie in the cache all the same
            raise hub_errors.Gated
        sizes = {
            one.rfilename: one.size or 0
            for one in info.siblings or []
            if one.rfilename.endswith(_FETCHED) and "/" not in one.rfilename
        }
        weights = [size for name, size in sizes.items() if name.endswith(".safetensors")]
        if not weights:
            raise ModelError(
                f"{name} has no safetensors weights.",
                "Choose a model that has: others can run code.",
            )
        whole, size = sum(sizes.values()), sum(weights)
        if anonymous and whole > MOST_OF_HUB:
            raise ModelError(
                f"{name} has {whole / 2**30:.1f} GB; a visitor may load up to "
                f"{MOST_OF_HUB / 2**30:.0f} GB.",
                "Choose a smaller model.",
            )
        if size * _ROOM > psutil.virtual_memory().available:
            raise ModelError(
                f"{name} has {size / 2**30:.1f} GB of weights, more than memory is free.",
                "Choose a smaller model.",
            )
        folder = Path(
            snapshot_download(
                name, token=token, revision=info.sha,
                allow_patterns=[f"*{ending}" for ending in _FETCHED],
                ignore_patterns=["*/*"],
            )
        )  # fmt: skip
    except ModelError:
        raise
    except Exception as error:  # each library has errors of its own
        raise hub_errors.explained("model", name, error) or ModelError(
            f"The model {name!r} cannot be had: {hub_errors.first_line(error)}",
            "Check its id, as owner/name, or choose a run.",
        ) from error
    return folder, _reads(name, folder)


def _reads(name: str, folder: Path) -> int:
    """How many tokens a classifier reads.

    Raises:
        ModelError: when it is none.
    """
    if not (known := json_files.read(folder / "config.json")):
        raise ModelError(f"{name} has no config.json.", "Choose another model.")
    architectures = known.get("architectures") or []
    if not any(str(one).endswith("ForSequenceClassification") for one in architectures):
        shown = ", ".join(map(str, architectures)) or "unknown"
        raise ModelError(
            f"{name} is no sequence classifier; its architecture is {shown}.",
            "Choose one for text-classification.",
        )
    return min(
        checkpoints.DEFAULT_LENGTH, checkpoints.most_tokens(known) or checkpoints.DEFAULT_LENGTH
    )


class _Held:
    """A loaded model and how many use it; one that is to go waits for the last of them."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.users = 0
        self._leaving = False
        self._counting = threading.Lock()

    def begin(self) -> None:
        with self._counting:
            self.users += 1

    def end(self) -> None:
        with self._counting:
            self.users -= 1
            free = self._leaving and not self.users
        if free:
            self.predictor.free()

    def leave(self) -> None:
        with self._counting:
            self._leaving = True
            free = not self.users
        if free:
            self.predictor.free()


class ModelCache:
    """The models used last, loaded once each.

    Args:
        keep: how many to hold in memory; the least recently used goes first, and one in use as
            soon as it is not.
    """

    def __init__(self, keep: int = KEPT) -> None:
        self._keep = max(1, keep)
        self._held: OrderedDict[tuple[str, int, str], _Held] = OrderedDict()
        self._lock = threading.Lock()
        _shelves.append(self)

    @contextlib.contextmanager
    def using(
        self, folder: Path, max_length: int, paired: bool | None = True, device: str = ""
    ) -> Iterator[Predictor]:
        """The predictor of a folder, loaded anew when its weights have changed.

        It stays loaded for the time of the `with`, whatever others ask for meanwhile.

        Args:
            device: as for `Predictor`.

        Raises:
            ModelError: when the folder is gone or damaged, or does not fit.
        """
        held = self._begun(folder, max_length, paired, device)
        try:
            yield held.predictor
        finally:
            held.end()

    def _begun(self, folder: Path, max_length: int, paired: bool | None, device: str) -> _Held:
        """One more uses it, and ends that."""
        weights = folder / "model.safetensors"
        changed = weights.stat().st_mtime_ns if weights.exists() else 0
        key = (str(folder), changed, device)
        with self._lock:
            if key not in self._held:
                if not (folder / "config.json").is_file():
                    raise ModelError(
                        "This run has no saved model.",
                        "Choose a run that was evaluated at least once.",
                    )
                # Room first: two large models at once may not fit.
                while len(self._held) >= self._keep:
                    idle = (name for name, one in self._held.items() if not one.users)
                    self._held.pop(next(idle, next(iter(self._held)))).leave()
                self._held[key] = _Held(Predictor(folder, max_length, paired, device))
            self._held.move_to_end(key)
            self._held[key].begin()
            return self._held[key]

    def free(self) -> None:
        """Give all memory back, of a model in use as soon as it is not."""
        with self._lock:
            while self._held:
                self._held.popitem()[1].leave()


_shelves: list[ModelCache] = []


def release_models() -> None:
    """Give device memory back: a training begins that needs it. On a CPU nothing is gained."""
    if torch.cuda.is_available():
        for shelf in _shelves:
            shelf.free()
