"""The phases of background jobs, as their events carry them."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What a job is doing. An event may add a name: of a dataset, a checkpoint, a split."""

    START = "start"  # imports the libraries
    DOWNLOAD = "download"  # reads a dataset or a checkpoint, from the Hub if need be
    TOKENIZE = "tokenize"
    TRAIN = "train"
    EVALUATE = "evaluate"
    BASELINES = "baselines"
    BOTH_ORDERS = "both_orders"
    SAVE_MODEL = "save_model"  # the best so far
    SAVE_UNSCORED_MODEL = "save_unscored_model"
    SAVE_CHECKPOINT = "save_checkpoint"
    READ_ROWS = "read_rows"  # of a split
    COUNT_ROWS = "count_rows"  # classes, duplicates and leaks
    MEASURE_LENGTHS = "measure_lengths"  # in tokens
    PREDICT = "predict"
    EXPORT = "export"
    CHECK_HUB = "check_hub"  # who pushes, and what is there
    READ_FILES = "read_files"
    CREATE_REPOSITORY = "create_repository"
    UPLOAD = "upload"
    COMMIT = "commit"
    COMMITTED = "committed"
    VERIFY = "verify"  # loads the pushed model back to compare
    CREATE_DEMO = "create_demo"
