"""What the phases of jobs are called on the page."""

from __future__ import annotations

from finetune.messages import message
from finetune.runs.events import Phase
from finetune.ui.i18n import gettext

TEXTS = {
    "": message("Starting the worker"),
    Phase.START: message("loading PyTorch"),
    Phase.DOWNLOAD: message("Loading"),
    Phase.TOKENIZE: message("Tokenising"),
    Phase.TRAIN: message("Training"),
    Phase.EVALUATE: message("Evaluating"),
    Phase.BASELINES: message("Evaluating"),
    Phase.BOTH_ORDERS: message("Evaluating"),
    Phase.SAVE_MODEL: message("Saving the best model"),
    Phase.SAVE_UNSCORED_MODEL: message("Saving the model as it is"),
    Phase.SAVE_CHECKPOINT: message("Saving a checkpoint"),
    Phase.COUNT_ROWS: message("counting classes, duplicates and leaks"),
    Phase.MEASURE_LENGTHS: message("measuring lengths in tokens"),
    Phase.CHECK_HUB: message("checking"),
    Phase.READ_FILES: message("reading the files"),
    Phase.CREATE_REPOSITORY: message("making the repository"),
    Phase.UPLOAD: message("sending the files"),
    Phase.COMMIT: message("committing"),
    Phase.COMMITTED: message("committed"),
    Phase.VERIFY: message("loading it back to compare"),
    Phase.CREATE_DEMO: message("making the demo Space"),
}
READING = {
    "train": message("reading train"),
    "validation": message("reading validation"),
    "test": message("reading test"),
}


def phase_text(phase: str, detail: str = "") -> str:
    """What a job does, in the language of the request; `detail` is a name that belongs to the
    phase: of a dataset, a checkpoint, a split."""
    if phase == Phase.READ_ROWS:
        return gettext(READING.get(detail, detail))
    text = gettext(TEXTS.get(phase, phase))
    if phase == Phase.TOKENIZE and detail:
        return text + " " + gettext("{n:,} pairs", n=int(detail))
    return f"{text} {detail}" if phase == Phase.DOWNLOAD else text
