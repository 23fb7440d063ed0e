"""What Finetune does, a function each: begin here. `import finetune` offers them.

A new verb is a function in one of these modules, with the decorator of `verb.py`.
"""

# ruff: noqa: F401
from finetune.api.answering import groups, label, predict
from finetune.api.judging import answer_when_sure, evaluate, gate, rank, still_holds
from finetune.api.models import export, list_models, push_to_hub, remove_model
from finetune.api.training import check, cross_validate, list_runs, load_pairs, probe, search, train
