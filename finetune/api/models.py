"""Models as files: those on this disk, and one that leaves it."""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from finetune import disk
from finetune.api.verb import AnyRun, AnyStore, OutFile, verb
from finetune.data import model_cache
from finetune.errors import ConfigError, ModelError, PublishError
from finetune.hub import client, publish
from finetune.inference import quantized
from finetune.inference.quantized import QuantizationReport
from finetune.jobs import memory
from finetune.messages import message as _
from finetune.metrics.catalog import metric_name
from finetune.runs.store import as_run, as_store


@dataclass(frozen=True)
class Exported:
    """A model as ONNX."""

    difference: float  # the largest one of a logit from PyTorch's
    int8: QuantizationReport | None = None  # None unless it is a run's
    used: bool = False  # True if the run answers in int8
    small: str = ""  # the file in int8; "" if there is none
    former: str = ""  # such a file of another export, which is left as it is

    def as_text(self) -> str:
        """Say what came of it."""
        lines = [f"its logits differ from PyTorch's by at most {self.difference:.1g}"]
        if report := self.int8:
            scores = ", ".join(
                f"{metric_name(name, report.classes)} {before:.3f} -> {after:.3f}"
                for name, (before, after) in report.scores.items()
            )
            p = f" (p = {report.p:.2g})" if report.p is not None else ""
            speed, small = report.pairs_per_second
            lines.append(
                f"int8 ({report.kind}) on {report.pairs:,} validation rows: {scores}{p}, "
                f"{speed:.0f} -> {small:.0f} rows/s; it is {'used' if self.used else 'not used'}"
            )
        if self.small:
            lines.append(f"{self.small}: the model in int8")
        if self.former:
            lines.append(f"{self.former} is not of this export: it was there, and is left as it is")
        return "\n".join(lines)


@verb("export", text=Exported.as_text)
def export(to: OutFile, run: AnyRun | None = None, model: Path | str | None = None) -> Exported:
    """Write a saved model as ONNX, and verify it; of a run in int8 too, where that is as good and
    faster.

    Args:
        to: the file to make; a run's int8 lies beside it, as a.int8.onnx beside a.onnx.
        run: a run's name, id or folder.
        model: a from_pretrained folder, in place of a run.
    """
    from finetune.evaluation import quantization  # which imports torch
    from finetune.hub.onnx import export_onnx

    if (run is None) == (model is None):
        raise ConfigError({"run": "or model is needed, and not both"})
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # names every missing package
    to, own = Path(to), None if run is None else as_run(run)
    folder = own.best if own else Path(str(model))
    if own is None and not (folder / "config.json").is_file():
        raise ModelError(
            "{folder} is no folder with a saved model.", "Name a from_pretrained folder.",
            folder=folder,
        )  # fmt: skip
    if folder.resolve() in to.resolve().parents and (own or to.suffix != ".onnx"):
        raise ModelError("{to} is in the folder of the model.", "Name another file.", to=to)
    step = own.best_step() if own else 0
    difference = export_onnx(folder, to)
    if own is None:
        return Exported(difference)
    report = quantization.quantize_model(own, to, step)
    small, used = to.with_name(f"{to.stem}.int8{to.suffix}"), quantized.serves(own.best)
    if not report.kept:
        return Exported(difference, report, used, former=str(small) if small.exists() else "")
    with disk.writing(small, ModelError, ""), disk.replacing(small) as new:
        shutil.copy2(own.best / quantized.MODEL, new)
    return Exported(difference, report, used, str(small))


def push_to_hub(
    run: AnyRun, repository: str, private: bool = False, token: str | None = None,
    update: bool = False,
) -> publish.Pushed:  # fmt: skip
    """Push a run's best model with its model card to the Hugging Face Hub, as one commit.

    Args:
        run: a run, its folder or its id.
        repository: `name` or `namespace/name`.
        private: True to make a new repository private.
        token: with write access; that of `hf auth login` or `HF_TOKEN` if None.
        update: True to add a commit to a repository that has files.

    Returns:
        `url`, `commit`, and the result of loading the model back.
    """
    request = publish.PushRequest(repository, private, update=update)
    try:
        return publish.push_run(as_run(run), request, token or client.stored_token())
    except publish.RepositoryExists as error:
        way = _("Give update=True for a new commit in it, or choose another name.")
        raise PublishError(error.fact, way) from None


def list_models() -> list[model_cache.CachedModel]:
    """List the downloaded checkpoints, the largest first: `name`, `bytes` on this disk, `used`."""
    return model_cache.list_models()


def remove_model(name: str, store: AnyStore = None) -> model_cache.CachedModel:
    """Remove a downloaded checkpoint from this disk. The next run that needs it downloads it again.

    Args:
        store: of the runs that may need it, or its folder; the default one if None.

    Raises:
        StoreError: if it is not on this disk, or a run that has not ended needs it.
    """
    return memory.remove_model(as_store(store), name)
