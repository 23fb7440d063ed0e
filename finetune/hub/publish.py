"""Pushes a finished run to the Hub as one commit, loads it back, and makes its demo Space.

Free of torch until the model is scored, before the push and after it. A token is an argument of one
call and is kept nowhere; it must not reach a file, a log, an event or an error's text. A push that
fails or is cancelled has changed no repository, except that a new one may be there and empty, and
that a commit which the Hub did not confirm may arrive late; what was uploaded is not sent again.

Source: https://huggingface.co/docs/huggingface_hub/guides/upload
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from huggingface_hub.utils.tqdm import disable_progress_bars

from finetune.data import checkpoints
from finetune.environment import hub_connection
from finetune.errors import PublishError
from finetune.hub import demo, model_card, verify
from finetune.hub.client import HubClient, never_stop
from finetune.hub.demo import DemoPlan
from finetune.hub.push_plan import PushPlan, PushRequest, prepare_push
from finetune.hub.upload import ProgressCallback, PushProgress, Upload
from finetune.hub.verify import Verification
from finetune.phases import Phase
from finetune.runs.run import Run, default_title
from finetune.runs.summary import RunSummary


@dataclass(frozen=True)
class Pushed:
    """A push that the Hub confirmed.

    Args:
        url: the repository's page.
        commit: the commit's sha.
        created: whether the repository is new.
        verified: what loading it back has shown; None where that was not asked for.
        demo: the address of the Space; empty where there is none.
        demo_problem: why there is none although it was wanted.
    """

    url: str
    commit: str
    created: bool
    verified: Verification | None = None
    demo: str = ""
    demo_problem: str = ""


class RepositoryExists(PublishError):
    """A repository holds something already, and nobody has said that it shall be updated.

    Args:
        full: the repository, `namespace/name`.
    """

    def __init__(self, full: str) -> None:
        super().__init__(
            f"{full} exists already.",
            "Press Check to see what a push changes in it, and push then; or choose another name.",
        )
        self.full = full


class Billed(PublishError):
    """A demo Space would be billed, and nobody has agreed to its price.

    Args:
        plan: of the push.
    """

    def __init__(self, plan: PushPlan) -> None:
        super().__init__(
            f"The demo Space would be billed: {plan.hardware}. Nothing was sent.",
            "Press Check to see the price, and push then; or choose cpu-basic, which is free.",
        )
        self.plan = plan


def ignore_progress(progress: PushProgress) -> None:
    """Default progress callback: ignores."""


def push_run(
    run: Run,
    summary: RunSummary,
    request: PushRequest,
    token: str | None,
    report: ProgressCallback = ignore_progress,
    stopped: Callable[[], bool] = never_stop,
    verified: bool = True,
) -> Pushed:
    """Send the best model, its tokenizer, the card and the configuration as one commit, and load
    them back.

    Everything is checked before the first byte. Blocks until it is done, so call it from a thread.

    Args:
        run: the run whose `best/` is sent.
        summary: the fold over its events, for the card.
        request: what shall be pushed where.
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
    with contextlib.ExitStack() as open_files:
        upload = Upload(hub, plan, files, open_files, report)
        local = verify.score_saved_model(run, summary)
        title = run.about().name or default_title(model_card.public_config(run.config()))
        commit = upload.carry_out(f"Fine-tuned with Finetune: {title}"[:200])
    report(progress := replace(upload.progress, phase=Phase.VERIFY))
    pushed = Pushed(f"{hub_connection.hub_endpoint()}/{plan.full}", commit, upload.created)
    if verified:
        comparison = verify.verify_push(run, summary, plan.full, commit, token, stopped, local)
        pushed = replace(pushed, verified=comparison)
    if plan.demo and stopped():
        return replace(pushed, demo_problem="You cancelled before it was made.")
    if plan.demo:
        report(replace(progress, phase=Phase.CREATE_DEMO))
        space = DemoPlan(plan.demo, plan.demo_exists, plan.hardware, plan.billed)
        length = checkpoints.length_of(run.folder)
        texts = demo.demo_files(plan.full, summary.paired, length, plan.licence)
        url, problem = demo.push_demo(space, request.hardware, plan.full, texts, hub)
        pushed = replace(pushed, demo=url, demo_problem=problem)
    return pushed
