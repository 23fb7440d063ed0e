"""Small random models of several families."""

import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from tests.support import toys

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 66,
}  # fmt: skip


FAMILIES = {
    "Bert": SMALL,
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64,
                   "max_position_embeddings": 66},
    "Roberta": SMALL,
    "Electra": {**SMALL, "embedding_size": 32},
    "DebertaV2": {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "Albert": {**SMALL, "embedding_size": 16},
    "ModernBert": {**SMALL, "global_attn_every_n_layers": 1},
    "XLMRoberta": SMALL,
    "MPNet": SMALL,
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 66},
    "Llama": {**SMALL, "num_key_value_heads": 2},
}  # fmt: skip


# The others of the catalogue as they are, and heads that are built in another way.
VARIANTS = {
    "ModernBert, alternating attention": (
        "ModernBert",
        {"num_hidden_layers": 3, "global_attn_every_n_layers": 3, "local_attention": 8},
    ),
    "ModernBert, mean pooling": ("ModernBert", {"classifier_pooling": "mean"}),
    "XLMRoberta, padding token 1": ("XLMRoberta", {"pad_token_id": 1}),
    "DebertaV2 as v3": (
        "DebertaV2",
        {"position_buckets": 16, "share_att_key": True, "norm_rel_ebd": "layer_norm",
         "position_biased_input": False, "type_vocab_size": 0, "pooler_hidden_size": 32},
    ),
}  # fmt: skip
DECODERS = {"GPT2", "Llama"}


def write(folder, family, **values):
    """A random model of a family, or of a variant, with a tokenizer of the toys' words. `values`
    replace those of its configuration."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    torch.manual_seed(0)
    family, own = VARIANTS.get(family, (family, {}))
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *toys.WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]", "eos_token": "[SEP]"}
    if family not in DECODERS:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        names |= {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)
    values = {
        "vocab_size": len(vocabulary), "pad_token_id": None if family in DECODERS else 0,
        "bos_token_id": 2, "eos_token_id": 3, **FAMILIES[family], **own, **values,
    }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**values)
    getattr(transformers, f"{family}ForSequenceClassification")(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def lively(folder):
    """The model with larger weights: a random model gives all pairs nearly the same logits."""
    classifier = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        for weights in classifier.parameters():
            if weights.dim() > 1:
                weights.mul_(8)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:  # as `model.load` does before such a one is trained
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.save_pretrained(folder)
    classifier.config.pad_token_id = tokenizer.pad_token_id
    classifier.save_pretrained(folder)
    return folder
