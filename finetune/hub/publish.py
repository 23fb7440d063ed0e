"""Pushes a finished run to the Hub as one commit, loads it back, and makes its demo Space.

A push that fails or is cancelled has changed no repository, except that a new one may be there and
empty, and that a commit which the Hub did not confirm may arrive late; what was uploaded is not
sent again. Source: https://huggingface.co/docs/huggingface_hub/guides/upload
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from huggingface_hub.utils.tqdm import disable_progress_bars

from finetune.data import checkpoints
from finetune.environment import hub_connection
from finetune.errors import PublishError
from finetune.hub import demo, model_card, verify
from finetune.hub.client import HubClient
from finetune.hub.push_plan import PushPlan, PushRequest, prepare_push
from finetune.hub.upload import ProgressCallback, Upload
from finetune.hub.verify import Verification
from finetune.phases import Phase
from finetune.runs.run import Run, default_title
from finetune.runs.summary import RunSummary


@dataclass(frozen=True)
class Pushed:
    """A push that the Hub confirmed."""

    url: str  # of the repository's page
    commit: str  # its sha
    created: bool  # whether the repository is new
    verified: Verification | None = None  # what loading it back has shown, where that was asked for
    demo: str = ""  # the address of the Space, where there is one
    demo_problem: str = ""  # why there is none although it was wanted


class RepositoryExists(PublishError):
    """The repository `full` holds something, and nobody has said that it shall be updated."""

    def __init__(self, full: str) -> None:
        super().__init__(
            f"{full} exists already.",
            "Press Check to see what a push changes in it, and push then; or choose another name.",
        )
        self.full = full


class Billed(PublishError):
    """The demo Space of a plan would be billed, and nobody has agreed to its price."""

    def __init__(self, plan: PushPlan) -> None:
        super().__init__(
            f"The demo Space would be billed: {plan.hardware}. Nothing was sent.",
            "Press Check to see the price, and push then; or choose cpu-basic, which is free.",
        )
        self.plan = plan


def push_run(
    run: Run,
    summary: RunSummary,
    request: PushRequest,
    token: str | None,
    report: ProgressCallback = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
    verified: bool = True,
) -> Pushed:
    """Send the best model, its tokenizer, the card and the configuration as one commit, and load
    them back.

    Everything is checked before the first byte. Blocks until it is done, so call it from a thread.

    Args:
        run: the run whose `best/` is sent.
        summary: the fold over its events, for the card.
        token: used for these calls only.
        report: called with every progress.
        stopped: whether the person wants the end; asked often until the commit is made.
        verified: whether to load the model back and compare.

    Raises:
        Cancelled: when the end was wanted, and nothing was committed.
        RepositoryExists: when the repository holds something and is not to be updated.
        Billed: when a demo Space would be, and that was not agreed to.
        PublishError: when something is wrong with the run, the token, the name or the Hub's
            answer. It says whether a repository was left behind empty.
    """
    disable_progress_bars()  # they would go to the app's log, and the page has its own
    hub = HubClient(token, stopped)
    plan, files = prepare_push(run, summary, request, hub)
    if plan.billed and not request.pays:
        raise Billed(plan)
    if plan.held and not request.update:
        raise RepositoryExists(plan.full)
    upload = Upload(hub, plan, report)
    logits = verify.score_saved_model(run, summary)
    title = run.about().name or default_title(model_card.public_config(run.config()))
    commit = upload.send(files, f"Fine-tuned with Finetune: {title}"[:200])
    report(progress := replace(upload.progress, phase=Phase.VERIFY))
    pushed = Pushed(f"{hub_connection.hub_endpoint()}/{plan.full}", commit, upload.created)
    if verified:
        comparison = verify.verify_push(run, summary, plan.full, commit, logits, hub)
        pushed = replace(pushed, verified=comparison)
    if plan.demo and stopped():
        return replace(pushed, demo_problem="You cancelled before it was made.")
    if plan.demo:
        report(replace(progress, phase=Phase.CREATE_DEMO))
        length = checkpoints.length_of(run.folder)
        texts = demo.demo_files(plan.full, summary.paired, length, plan.licence)
        url, problem = demo.push_demo(plan, request.hardware, texts, hub)
        pushed = replace(pushed, demo=url, demo_problem=problem)
    return pushed
