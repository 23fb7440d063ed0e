"""Hyperparameter search: a study makes runs whose hyperparameters Optuna proposes, and stops those
that are behind the others."""
