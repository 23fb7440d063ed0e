"""A finished run on the Hub: its model card, the checks before, the push as one commit.

Free of torch: the weights are files to it. A token is an argument of one call and is kept
nowhere; it must not reach a file, a log, an event or an error's text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from huggingface_hub import (
    CommitOperationAdd,
    EvalResult,
    HfApi,
    ModelCard,
    ModelCardData,
    get_token,
)
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from finetune import catalog, config
from finetune.errors import PublishError
from finetune.store import Run
from finetune.summary import Summary

_UNREACHABLE = 3.0  # seconds to wait for the Hub before saying that it does not answer


@dataclass(frozen=True)
class Account:
    """Whom a token belongs to.

    Args:
        name: the user.
        namespaces: where it may create repositories: the user, then organisations.
    """

    name: str
    namespaces: list[str]


@dataclass(frozen=True)
class Pushed:
    """A push that the Hub confirmed.

    Args:
        url: the repository's page.
        commit: the commit's sha.
        created: whether the repository is new.
    """

    url: str
    commit: str
    created: bool


def stored_token() -> str | None:
    """The token of `hf auth login` or HF_TOKEN on this machine, if any."""
    return get_token()


def account(token: str | None) -> Account:
    """Whose token it is.

    Raises:
        PublishError: when there is none, the Hub does not know it, it may only read, or the Hub
            does not answer.
    """
    if not token:
        raise PublishError(
            "You are not signed in.",
            "Run `hf auth login`, or paste a token with write access.",
        )
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise PublishError(
            "The token has spaces or characters no token has.", "Copy it again, whole."
        )
    if not catalog.hub_answers(_UNREACHABLE):
        raise PublishError(
            f"The Hub at {catalog.endpoint()} does not answer.",
            "Check the network and press Push again; the model is safe here.",
        )
    try:
        who = HfApi(endpoint=catalog.endpoint(), token=token).whoami()
    except Exception as error:
        raise _refused(error, "The sign-in") from None
    access = (who.get("auth") or {}).get("accessToken") or {}
    if access.get("role") == "read":
        raise PublishError(
            "This token may only read.", "Make one with write access in your Hub settings."
        )
    organisations = [one["name"] for one in who.get("orgs") or [] if one.get("name")]
    return Account(who["name"], [who["name"], *organisations])


def repo_id(name: str, user: str) -> str:
    """`user/name` from what was typed, which may carry its namespace already.

    Raises:
        PublishError: when the Hub would not take the name.
    """
    typed = name.strip()
    full = typed if "/" in typed else f"{user}/{typed}"
    try:
        if not typed:
            raise HFValidationError("it is empty")
        validate_repo_id(full)
    except HFValidationError:
        raise PublishError(
            f"{typed!r} is not a repository name.",
            "Use letters, digits, '-', '_' and '.', at most 96, as in my-paraphrase-model.",
        ) from None
    return full


def suggested_name(run: Run) -> str:
    """A repository name made from the run's checkpoint and dataset."""
    chosen = run.config()
    checkpoint = chosen.checkpoint.removesuffix("(bundled)").strip().rsplit("/")[-1]
    text = f"{checkpoint}-{chosen.dataset.rsplit('/')[-1]}-pairs".lower()
    return re.sub(r"[^a-z0-9._-]+", "-", text).strip("-.")[:96]


def push(run: Run, summary: Summary, name: str, token: str | None, private: bool = False) -> Pushed:
    """Send the best model, its tokenizer, the card and the configuration as one commit.

    Args:
        run: the run whose `best/` is sent.
        summary: the fold over its events, for the card.
        name: repository name, with or without a namespace.
        token: used for these calls only.
        private: whether a new repository is private; one that exists stays as it is.

    Raises:
        PublishError: when something is wrong with the token, the name or the Hub's answer. It
            says whether a repository was left behind empty.
    """
    if not run.has_model():
        raise PublishError("This run has no saved model.", "Train it until the first evaluation.")
    who = account(token)
    full = repo_id(name, who.name)
    namespace = full.split("/")[0]
    if namespace not in who.namespaces:
        raise PublishError(
            f"{who.name} may not write to {namespace!r}.",
            f"Choose one of: {', '.join(who.namespaces)}.",
        )
    api = HfApi(endpoint=catalog.endpoint(), token=token)
    try:
        created = not api.repo_exists(full)
        if created:
            api.create_repo(full, private=private)
    except Exception as error:
        raise _refused(error, f"Creating {full}") from None
    try:
        commit = api.create_commit(
            full,
            operations=_operations(run, summary, full),
            commit_message=f"Fine-tuned with Finetune: {run.title()}",
        )
    except Exception as error:
        left = f" The repository {full} was made but holds no model yet." if created else ""
        raise _refused(error, f"The push to {full}", left) from None
    return Pushed(url=f"{catalog.endpoint()}/{full}", commit=commit.oid, created=created)


def _operations(run: Run, summary: Summary, full: str) -> list[CommitOperationAdd]:
    """Every file of the commit: weights, tokenizer, card and configuration go up together."""
    files: dict[str, Any] = {
        path.name: path for path in sorted(run.best.iterdir()) if path.is_file()
    }
    files["README.md"] = card(run, summary, full).encode()
    files["training_config.json"] = run.config().to_json().encode()
    files["metrics.json"] = (json.dumps(_metrics(summary), indent=2) + "\n").encode()
    return [CommitOperationAdd(name, content) for name, content in files.items()]


def _metrics(summary: Summary) -> dict[str, Any]:
    best = summary.best
    return {
        "step": best.step if best else summary.saved_step,
        "validation": best.metrics if best else {},
        "majority_baseline": summary.prepared.majority if summary.prepared else {},
    }


def _refused(error: Exception, what: str, left: str = "") -> PublishError:
    """The Hub's refusal in our words: the status and its remedy, never a header or a token."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None) if isinstance(error, HfHubHTTPError) else None
    remedies = {
        401: "The token is wrong or has expired; make a new one in your Hub settings.",
        403: "The token may not do this; it needs write access to that namespace.",
        404: "There is no such repository, or the token may not see it.",
        409: "Something of that name is already there; choose another name.",
        412: "Someone else committed in between; press Push again.",
        429: "The Hub asks for a pause; wait a few minutes and press Push again.",
    }
    if status is None:
        return PublishError(
            f"{what} failed: {type(error).__name__}.{left}",
            "Check the network and press Push again; the model is safe here.",
        )
    remedy = remedies.get(status, "Press Push again in a while; the model is safe here.")
    return PublishError(f"{what} was refused with status {status}.{left}", remedy)


def card(run: Run, summary: Summary, full: str) -> str:
    """The model card, derived from the run: metadata, results, how to use, what was set.

    Args:
        full: the repository, `namespace/name`.
    """
    chosen = run.config()
    base = catalog.checkpoint(chosen.checkpoint)
    pairs = catalog.dataset(chosen.dataset)
    best = summary.best
    scores = best.metrics if best else {}
    data = ModelCardData(
        language="en",
        license=(base.licence if base else "") or None,
        base_model=(base.repo if base else "") or chosen.checkpoint,
        datasets=[pairs.repo] if pairs and pairs.repo else None,
        metrics=["accuracy", "f1"],
        pipeline_tag="text-classification",
        library_name="transformers",
        tags=["sentence-pairs", "paraphrase", "finetune"],
        model_name=full.split("/")[-1],
        eval_results=_results(chosen.dataset, scores) or None,
    )
    body = "\n\n".join(
        part
        for part in (
            f"# {full.split('/')[-1]}",
            _intended(data.base_model, chosen.dataset, summary),
            _use(full),
            _scores(summary),
            _settings(chosen),
            _versions(summary),
        )
        if part
    )
    text = ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}\n")
    return str(text)


def _results(dataset: str, scores: dict[str, float]) -> list[EvalResult]:
    glue = dataset.startswith("glue/")
    return [
        EvalResult(
            task_type="text-classification",
            dataset_type="nyu-mll/glue" if glue else "custom",
            dataset_name="GLUE MRPC" if glue else "Finetune's bundled sentence pairs",
            dataset_config="mrpc" if glue else None,
            dataset_split="validation",
            metric_type=name,
            metric_name=title,
            metric_value=round(scores[name], 4),
        )
        for name, title in (("accuracy", "Accuracy"), ("f1", "F1"))
        if name in scores
    ]


def _intended(base: Any, dataset: str, summary: Summary) -> str:
    count = f"{summary.prepared.train_examples:,} " if summary.prepared else ""
    choice = catalog.dataset(dataset)
    source = choice.label.split(" (")[0] if choice else dataset
    return (
        f"Says whether two English sentences mean the same. Fine-tuned from `{base}` on "
        f"{count}training pairs ({source}). Sentences unlike those of its training data, in "
        "another language or from another field, may be judged wrongly; measure it on your own "
        "pairs before you rely on it."
    )


def _use(full: str) -> str:
    return f"""## How to use

```python
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{full}")
model = AutoModelForSequenceClassification.from_pretrained("{full}")
inputs = tokenizer("The shop opens at nine.", "At nine the shop opens.", return_tensors="pt")
with torch.no_grad():
    probabilities = model(**inputs).logits.softmax(dim=-1)[0]
for index, name in model.config.id2label.items():
    print(name, round(probabilities[index].item(), 3))
```"""


def _scores(summary: Summary) -> str:
    best, prepared = summary.best, summary.prepared
    if best is None or prepared is None:
        return "## Results\n\nThis model was stopped before it was evaluated."
    rows = [
        f"| {name} | {best.metrics[name]:.4f} | {prepared.majority[name]:.4f} |"
        for name in ("accuracy", "f1")
        if name in best.metrics and name in prepared.majority
    ]
    ended = " The run was stopped before its end." if summary.status == "stopped" else ""
    return "\n".join(
        [
            "## Results",
            "",
            f"On {prepared.validation_examples:,} validation pairs, after step {best.step} of "
            f"{prepared.total_steps}, the best by the metric below.{ended} The majority column "
            "is what always answering the most frequent class scores.",
            "",
            "| metric | this model | majority |",
            "|---|---|---|",
            *rows,
        ]
    )


def _settings(chosen: config.RunConfig) -> str:
    values = chosen.to_dict()
    rows = [f"| {name} | {value} |" for name, value in values.items() if value != ""]
    return "\n".join(["## Training", "", "| hyperparameter | value |", "|---|---|", *rows])


def _versions(summary: Summary) -> str:
    if summary.started is None:
        return ""
    names = ", ".join(f"{name} {number}" for name, number in summary.started.versions.items())
    data = summary.prepared.fingerprint if summary.prepared else ""
    rows = f" Data fingerprint (sha256 over every row): `{data}`." if data else ""
    return f"Trained on {summary.started.device} with {names}.{rows}"
