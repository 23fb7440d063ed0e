"""Batch size and learning rate of a run whose configuration leaves them open. Imports no torch, so
that estimates can use it."""

from __future__ import annotations

import math
from typing import NamedTuple

from finetune.config import RunConfig
from finetune.training import schedule

FIELDS = ("per_device_train_batch_size", "learning_rate")  # that it fills in
BATCH = 16  # pairs of a step, unless a GPU has too little to do with them
LEAST_STEPS = 600  # that a larger batch must leave
_MOST_TOKENS = 2**14  # of such a batch, padded to `max_length`
_LEAST_MEMORY = 11e9  # bytes of a GPU that gets such batches
_MOST_GROWTH = 2.0  # of the learning rate with the batch


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
        steps = pairs * schedule.epochs(config, max(1, pairs)) // together  # of one pair
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
