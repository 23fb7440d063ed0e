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

from finetune import catalog, config, uploads
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
    source = "own" if uploads.is_upload(chosen.dataset) else chosen.dataset.rsplit("/")[-1]
    text = f"{checkpoint}-{source}-pairs".lower()
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
    data = ModelCardData(
        language="en" if catalog.dataset(chosen.dataset) else None,
        license=(base.licence if base else "") or None,
        base_model=(base.repo if base else "") or chosen.checkpoint,
        datasets=[_hub_id(chosen)] if _hub_id(chosen) else None,
        metrics=["accuracy", "f1"],
        pipeline_tag="text-classification",
        library_name="transformers",
        tags=["sentence-pairs" if summary.paired else "sentences", "finetune"],
        model_name=full.split("/")[-1],
        eval_results=_results(chosen, summary) or None,
    )
    body = "\n\n".join(
        part
        for part in (
            f"# {full.split('/')[-1]}",
            _intended(data.base_model, chosen, summary),
            _use(full, summary.paired),
            _scores(summary),
            _data(summary),
            _settings(chosen),
            _versions(summary),
        )
        if part
    )
    text = ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}\n")
    return str(text)


def _results(chosen: config.RunConfig, summary: Summary) -> list[EvalResult]:
    known = catalog.dataset(chosen.dataset)
    best, data = summary.best, summary.prepared.data if summary.prepared else {}
    repo = known.repo if known else _hub_id(chosen)
    name = (known.label.split(" (")[0] if known else "") or str(data.get("source") or "own pairs")
    return [
        EvalResult(
            task_type="text-classification",
            dataset_type=repo or "custom",
            dataset_name=name,
            dataset_config=chosen.dataset_config_name or (known.config if known else "") or None,
            dataset_split="validation",
            dataset_revision=data.get("revision") or None,
            metric_type=metric,
            metric_name=title,
            metric_value=round(best.metrics[metric], 4),
        )
        for metric, title in (("accuracy", "Accuracy"), ("f1", "F1"))
        if best is not None and metric in best.metrics
    ]


def _hub_id(chosen: config.RunConfig) -> str:
    """The Hub dataset learned from, if it was one."""
    known = catalog.dataset(chosen.dataset)
    if known is not None:
        return known.repo
    return "" if uploads.is_upload(chosen.dataset) else chosen.dataset


def _intended(base: Any, chosen: config.RunConfig, summary: Summary) -> str:
    prepared = summary.prepared
    known = catalog.dataset(chosen.dataset)
    source = known.label.split(" (")[0] if known else ""
    labels = ", ".join(f"`{name}`" for name in prepared.labels) if prepared else "its classes"
    count = f"{prepared.train_examples:,} " if prepared else ""
    source = source or str((prepared.data.get("source") if prepared else "") or "own data")
    what = "two sentences" if summary.paired else "a sentence"
    noun = "pairs" if summary.paired else "sentences"
    return (
        f"Puts {what} into one of the classes {labels}. Fine-tuned from `{base}` on "
        f"{count}training {noun} ({source}). Sentences unlike those of its training data, in "
        "another language or from another field, may be judged wrongly; measure it on your own "
        "before you rely on it."
    )


def _data(summary: Summary) -> str:
    """Where the pairs came from, and what was left out."""
    if summary.prepared is None or not summary.prepared.data:
        return ""
    data, lines = summary.prepared.data, []
    revision = f" at revision `{data['revision']}`" if data.get("revision") else ""
    lines.append(f"Source: {data.get('source')}{revision}.")
    rows = ", ".join(f"{name} {count:,}" for name, count in data.get("rows", {}).items())
    lines.append(f"Rows: {rows}. The positive class is `{data.get('positive_label')}`.")
    for split, reasons in data.get("left_out", {}).items():
        if reasons:
            said = ", ".join(f"{count:,} ({reason})" for reason, count in reasons.items())
            lines.append(f"Left out of {split}: {said}.")
    lines.append(f"Fingerprint (sha256 over the rows): `{summary.prepared.fingerprint}`.")
    return "## Data\n\n" + " ".join(lines)


def _use(full: str, paired: bool) -> str:
    texts = '"The shop opens at nine."' + ', "At nine the shop opens."' * paired
    return f"""## How to use

```python
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{full}")
model = AutoModelForSequenceClassification.from_pretrained("{full}")
inputs = tokenizer({texts}, return_tensors="pt")
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
    return f"Trained on {summary.started.device} with {names}."
