"""What a configuration leaves open: batch size, learning rate, steps, steps between evaluations.
Imports no torch, so that estimates can use it."""

import math
from typing import NamedTuple

from finetune.config import RunConfig

FIELDS = ("per_device_train_batch_size", "learning_rate")  # that it fills in
BATCH = 16  # pairs of a step, unless a GPU has too little to do with them
LEAST_STEPS = 600  # that a larger batch must leave
_MOST_TOKENS = 2**14  # of such a batch, padded to `max_length`
_LEAST_MEMORY = 11e9  # bytes of a GPU that gets such batches
_MOST_GROWTH = 2.0  # of the learning rate with the batch
MOST_EVALUATIONS = 10  # of one run
# Validation pairs that all evaluations of a run may score, per pair trained on. Scoring a pair
# takes a fifth to a half of the time of training on it, so evaluations take about a tenth.
SHARE = 0.2
FREE_PAIRS = 500  # pairs that may always be scored
_EPOCHS = 167  # epochs for one pair, if left open; 4 for the bundled pairs, 3 for MRPC
_MOST_EPOCHS = 10


class _Size(NamedTuple):
    """Models up to a size."""

    parameters: float  # at most, outside the word embeddings
    rate: float  # learning rate at batches of `BATCH`
    gpu_batch: int  # pairs of a step at most; larger models keep a GPU busy with fewer


# A model is measured by its layers: vocabularies of several languages have ten times the parameters
# of others, and no part in most steps. Sources of the rates:
# 1. MiniLM, ELECTRA small: measured on MRPC's training pairs (tests/benchmarks/README.md).
# 2. Base models: 2e-5 to 5e-5 at batches of 16 and 32 are BERT's authors' (Devlin et al. 2019,
#    https://arxiv.org/abs/1810.04805, A.3), 1e-5 to 3e-5 RoBERTa's (Liu et al. 2019,
#    https://arxiv.org/abs/1907.11692, appendix).
# 3. Large models: the least of RoBERTa's, and the largest of DeBERTa's (5e-6 to 1e-5; He et al.
#    2021, https://arxiv.org/abs/2006.03654, appendix). A fifth of the steps are a warm-up, without
#    which large models often fail (Mosbach et al. 2021, https://arxiv.org/abs/2006.04884).
_SIZES = (_Size(30e6, 7e-5, 64), _Size(150e6, 3e-5, 32), _Size(math.inf, 1e-5, 16))
# 4. DeBERTa-v2 and v3 want less: 2e-5 and 6e-6 are those of the authors' own commands for base and
#    large (https://huggingface.co/microsoft/deberta-v3-base, deberta-v3-large).
# 5. ModernBERT, and Ettin and mmBERT, which are made as it, want more: 8e-5 at batches of 32 is its
#    authors' for base on MRPC, by the square root of the batch 5.6e-5 here
#    (https://github.com/AnswerDotAI/ModernBERT, examples/finetune_modernbert_on_glue.ipynb). Large
#    ones keep the careful rate: an example of theirs is not known.
# All warm up for a fifth of the steps, longer than BERT's (10%) and RoBERTa's authors (6%). In fp16
# all of them train: DeBERTa-v2's overflow was mended in transformers
# (https://github.com/huggingface/transformers/pull/24116).
_FAMILIES = {  # model type -> size -> rate at batches of `BATCH`
    "deberta-v2": {30e6: 7e-5, 150e6: 2e-5, math.inf: 6e-6},
    "modernbert": {30e6: 7e-5, 150e6: 5.6e-5, math.inf: 1e-5},
}
# 2e-4 to 5e-4 are LoRA's authors' for base and large models (Hu et al. 2021,
# https://arxiv.org/abs/2106.09685, appendix D).
_LORA_RATE = 3e-4


def resolve(
    config: RunConfig,
    parameters: float,
    pairs: int,
    gpu_memory: int,
    processes: int,
    family: str = "",
) -> RunConfig:
    """Return the configuration with an automatic batch size and learning rate filled in.

    On a GPU the batch doubles as long as it suits the model's size and leaves enough steps. The
    rate grows with the square root of the pairs of a step: Malladi et al. 2022,
    https://arxiv.org/abs/2205.10287.

    Args:
        parameters: of the model, outside its word embeddings.
        pairs: examples of an epoch.
        gpu_memory: bytes of each GPU; 0 without one.
        processes: each takes a batch.
        family: `model_type` of the checkpoint; "" if unknown.
    """
    size = next(size for size in _SIZES if parameters <= size.parameters)
    together = config.gradient_accumulation_steps * processes  # batches of a step
    batch = config.per_device_train_batch_size or BATCH
    grows = gpu_memory > _LEAST_MEMORY and config.max_steps < 0  # which fixes the steps
    if not config.per_device_train_batch_size and grows:
        steps = pairs * epochs(config, max(1, pairs)) // together  # of one pair
        most = min(size.gpu_batch, _MOST_TOKENS // config.max_length, steps // LEAST_STEPS)
        while 2 * batch <= most:
            batch *= 2
    own_rate = _FAMILIES.get(family, {}).get(size.parameters, size.rate)
    base = _LORA_RATE if config.use_lora else own_rate
    rate = base * min(_MOST_GROWTH, math.sqrt(batch * together / BATCH))
    return config.changed(
        per_device_train_batch_size=batch,
        learning_rate=config.learning_rate or float(f"{rate:.1e}"),
    )


def count_steps(config: RunConfig, batches_per_epoch: int, processes: int) -> tuple[int, int]:
    """Return optimizer steps per epoch and in all, from each process's batches per epoch."""
    per_epoch = math.ceil(batches_per_epoch / config.gradient_accumulation_steps)
    if config.max_steps > 0:
        return per_epoch, config.max_steps
    pairs = batches_per_epoch * processes * config.per_device_train_batch_size
    return per_epoch, per_epoch * epochs(config, pairs)


def epochs(config: RunConfig, pairs: int) -> int:
    """Return the passes over this many training pairs; fewer for more pairs if left open."""
    chosen = min(_MOST_EPOCHS, max(1, round(_EPOCHS / math.sqrt(pairs))))
    return config.num_train_epochs or chosen


def eval_every(
    config: RunConfig, per_epoch: int, total: int, processes: int, validation_pairs: int
) -> int:
    """Return the optimizer steps between evaluations.

    If `eval_steps` leaves it open there are ten evaluations, or fewer if the validation split is
    large compared with the training pairs. No clock decides, so the same run keeps its best of
    the same models on any machine. There are ten if the scores decide on the rate or the end, or if
    `validation_pairs` is 0: unknown. `per_epoch`, `total`: as `count_steps` returns them.
    """
    if config.eval_steps >= 0:
        return config.eval_steps or per_epoch
    count = MOST_EVALUATIONS
    follows_scores = config.lr_scheduler_type == "reduce_lr_on_plateau"
    if validation_pairs and not (config.early_stopping_patience or follows_scores):
        batch = config.per_device_train_batch_size * config.gradient_accumulation_steps
        affordable = max(FREE_PAIRS, SHARE * total * batch * processes) // validation_pairs
        count = min(count, max(1, int(affordable)))
    return math.ceil(total / count)
