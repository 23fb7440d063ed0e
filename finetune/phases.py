"""The phases of background jobs, as their events carry them."""

from __future__ import annotations

from enum import StrEnum

from finetune.messages import message


class Phase(StrEnum):
    """What a job is doing. An event may add a name: of a dataset, a checkpoint, a split.

    Attributes:
        text: for the page.
    """

    text: str

    def __new__(cls, value: str, text: str = "") -> Phase:
        phase = str.__new__(cls, value)
        phase._value_, phase.text = value, text
        return phase

    START = "start", message("loading PyTorch")
    DOWNLOAD = "download", message("Loading")  # from the Hub if need be
    TOKENIZE = "tokenize", message("Tokenising")
    TRAIN = "train", message("Training")
    EVALUATE = "evaluate", message("Evaluating")
    BASELINES = "baselines", message("Evaluating")
    BOTH_ORDERS = "both_orders", message("Evaluating")
    SAVE_MODEL = "save_model", message("Saving the best model")
    SAVE_UNSCORED_MODEL = "save_unscored_model", message("Saving the model as it is")
    SAVE_CHECKPOINT = "save_checkpoint", message("Saving a checkpoint")
    READ_ROWS = "read_rows"  # of a split
    COUNT_ROWS = "count_rows", message("counting classes, duplicates and leaks")
    MEASURE_LENGTHS = "measure_lengths", message("measuring lengths in tokens")
    PREDICT = "predict"
    EXPORT = "export"
    CHECK_HUB = "check_hub", message("checking")  # who pushes, and what is there
    READ_FILES = "read_files", message("reading the files")
    CREATE_REPOSITORY = "create_repository", message("making the repository")
    UPLOAD = "upload", message("sending the files")
    COMMIT = "commit", message("committing")
    COMMITTED = "committed", message("committed")
    VERIFY = "verify", message("loading it back to compare")
    CREATE_DEMO = "create_demo", message("making the demo Space")
