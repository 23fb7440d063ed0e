"""The Publish tab: the account, the plan and progress of a push, the card, downloads.

A typed token is an argument of one click. It is in no state, file or page, and in the app's memory
only until its push ends.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from finetune.errors import FinetuneError
from finetune.hub import model_card, publish
from finetune.hub.publish import PushRequest
from finetune.jobs.publish import Approvals, ExportJob, ExportState, PushJob, PushState
from finetune.runs.store import RunStore
from finetune.ui import auth, choosers, elements, feedback
from finetune.ui.elements import dropdown
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Updates, handler

LICENCES = ("apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc0-1.0", "other")
HARDWARE = ("cpu-basic", "cpu-upgrade", "t4-small")
_TEMPLATE = "push.html"


@dataclass
class PublishTab(Panel):
    approvals: Approvals = field(default_factory=Approvals)

    def draw(self) -> None:
        elements.note("Share a tuned model on the Hugging Face Hub with an honest card.")
        self.empty = choosers.no_model("publish-empty")
        self.poller = elements.polling_element(0.5)
        self.address = elements.address("publish")
        self.named = elements.browser_value()  # the run whose suggested name was shown
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                self._draw_form()
                with gr.Row():
                    self.check = elements.button("Check", "check-push")
                    self.push = elements.button("Push to Hub", "push", 120, variant="primary")
                    self.cancel = elements.button("Cancel", "cancel-push", visible=False)
                self.plan = elements.notice("push-plan")
                self.result = gr.HTML(elem_id="push-result")
                with gr.Column(elem_id="take-away", visible=False) as self.take_away:
                    elements.heading("Take it with you")
                    self.downloads = gr.HTML(elem_id="away-links")
                    self.onnx = gr.Button("Make ONNX and int8", elem_id="make-onnx", size="sm")
            with gr.Column(scale=3, min_width=320):
                title = "Model card, as it will be pushed"
                with gr.Accordion(title, open=True, elem_id="card-fold"):
                    self.card = gr.Markdown(
                        "The card of the chosen model appears here, as it will be pushed.",
                        elem_id="card",
                    )
        self._wire()

    def _draw_form(self) -> None:
        own: dict[str, Any] = {"allow_custom_value": True, "interactive": True}
        self.run = dropdown([], "Model", "publish-run", **own)
        self.token: gr.Textbox | None = None
        if not auth.has_sign_in():
            info = "Paste a token with write access, or sign in from a terminal: hf auth login."
            self.token = elements.text_box("Access token", "token", info=info, type="password")
        with gr.Row():
            info = "Check lists you and your organisations."
            self.owner = dropdown([], "Owner", "owner", 150, info=info, **own)
            info = "One that exists takes a Check first."
            self.name = elements.text_box("Repository", "repo", 150, info=info)
        with gr.Row():
            self.licence = dropdown(
                LICENCES, "Licence", "licence", 150, value=None, allow_custom_value=True,
                info="Empty for the base model's.",
            )  # fmt: skip
            self.private = gr.Checkbox(
                label="Private", elem_id="private", min_width=150,
                info="Only you can see a new repository.",
            )  # fmt: skip
        with gr.Row():
            self.demo = gr.Checkbox(
                label="Also create a demo Space", elem_id="demo", min_width=150,
                info="Anybody can try the model in it.",
            )  # fmt: skip
            self.hardware = dropdown(
                HARDWARE, "Its hardware", "demo-hardware", 150, value=HARDWARE[0],
                info="Check tells the price.", allow_custom_value=True, visible=False,
            )  # fmt: skip
        self.form: list[Any] = [
            self.run, self.owner, self.name, self.private, self.licence, self.demo, self.hardware,
        ]  # fmt: skip
        self.asked = [*self.form, *filter(None, [self.token])]

    def _wire(self) -> None:
        quick, latest = feedback.QUICK, feedback.LATEST
        self.showing = {"fn": self.on_card, "inputs": self.form, "outputs": self.card, **latest}
        self.connect()["on_run"].then(**self.showing)
        gr.on([self.licence.change, self.name.blur, self.owner.change], **self.showing)
        show = "(demo) => ({__type__: 'update', visible: demo})"
        self.demo.change(None, self.demo, self.hardware, js=show, **quick)
        checked = self.listen(
            self.on_check, self.check.click, queue=True, concurrency_limit=4,
            show_progress="minimal", show_progress_on=self.plan,
        )  # fmt: skip
        # The plan of a Check no longer holds once the form is changed.
        boxes = (self.name, self.private, self.licence, self.demo, self.hardware)
        changes = [self.run.input, self.owner.input, *(box.change for box in boxes)]
        gr.on(changes, None, None, self.plan, js="() => ''", cancels=checked, **quick)
        for button, action in ((self.cancel, "cancel"), (self.onnx, "export")):
            button.click(self.on_action, [self.run, gr.State(action)], self.outputs(), **quick)

    @handler(errors_in="plan", opens="publish")
    def on_open(self, store: RunStore, run: str | None, address: str) -> Updates:
        """Offer the models, by default the newest, and show the progress of its push."""
        asked = elements.asked(address).get("run")
        offered, chosen = choosers.choices(store, run, asked, ended=True)
        shown = self._state if chosen == run else self._chosen
        return dict(zip((self.run, self.empty), offered, strict=True)) | shown(store, chosen)

    # Not on changes by the server: the answer would overwrite what is typed meanwhile.
    @handler("run.input", errors_in="card", latest=True)
    def on_run(self, store: RunStore, run: str | None, named: str) -> Updates:
        """Show the chosen model, unless it is shown already."""
        return self._chosen(store, run) if run != named else {}

    @handler(errors_in="card")
    def on_card(self, store: RunStore, *form: Any) -> Updates:
        """Show the card as Markdown: its picture in place, its front matter as YAML at the end."""
        if not form[0]:
            return {}
        run, request = store.get(form[0]), _request(form)
        name = request.name if "/" in request.name else f"your-name/{request.name or 'model'}"
        summary = run.state()
        text = model_card.card_text(run, summary, name, request.licence)
        _, metadata, body = text.split("---\n", 2)
        if picture := model_card.curves_png(summary):
            address = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
            body = body.replace(f"]({model_card.PICTURE})", f"]({address})")
        return {self.card: f"{body.strip()}\n\n## Metadata\n\n```yaml\n{metadata}```"}

    @handler(errors_in="plan")
    def on_check(self, store: RunStore, oauth: gr.OAuthToken | None, *asked: Any) -> Updates:
        run, token = store.get(asked[0]), auth.hub_token(store, next(iter(asked[7:]), ""), oauth)
        PushJob.of(run).forget_failed()  # the cause may be fixed by now
        plan = publish.plan_push(run, _request(asked), token or None)
        self.approvals.add(store, run, plan)
        account = plan.full.split("/")[0]
        owners = dict.fromkeys([*plan.account.namespaces, account])
        return self._state(store, run.id) | {
            self.plan: macro(_TEMPLATE, "plan")(plan),
            self.owner: gr.update(choices=list(owners), value=account),
        }

    @handler("push.click", errors_in="plan")
    def on_push(self, store: RunStore, oauth: gr.OAuthToken | None, *asked: Any) -> Updates:
        run, token = store.get(asked[0]), auth.hub_token(store, next(iter(asked[7:]), ""), oauth)
        PushJob.of(run).start(store, _request(asked), token, self.approvals)
        return {self.plan: "", **self._state(store, run.id)}

    @handler(errors_in="result")
    def on_action(self, store: RunStore, run_id: str | None, action: str) -> Updates:
        """Cancel the push, or export the model."""
        run = store.get(run_id)
        if action == "cancel":
            PushJob.of(run).cancel()
        else:
            ExportJob.of(run).start(store)
        return self._state(store, run_id)

    @handler("poller.submit", errors_in="plan")
    def on_tick(self, store: RunStore, run: str | None) -> Updates:
        return self._state(store, run)

    def _chosen(self, store: RunStore, run_id: str | None) -> Updates:
        """Show another model: its suggested name and the progress of its push."""
        name = publish.suggested_name(store.get(run_id)) if run_id else ""
        return {
            self.name: name,
            self.named: run_id or "",
            self.plan: "",
            self.address: elements.query(run=run_id or ""),
            **self._state(store, run_id),
        }

    def _state(self, store: RunStore, run_id: str | None) -> Updates:
        pushed, exported, downloads, has_run = PushState("none"), ExportState("none"), "", True
        try:
            run = store.get(run_id)
            pushed = PushJob.of(run).state()
            exported = ExportJob.of(run).state()
            on_all = run.config().trains_on_all
            downloads = macro(_TEMPLATE, "downloads")(run.id, exported, on_all)
        except FinetuneError:
            has_run = False
        onnx = gettext("Measure int8 again") if exported.file else gettext("Make ONNX and int8")
        if exported.busy:
            onnx = gettext("Measure int8")
        return {
            self.push: gr.update(interactive=has_run and not pushed.running),
            self.cancel: gr.update(visible=pushed.running, interactive=not pushed.cancelling),
            self.result: macro(_TEMPLATE, "state")(pushed),
            self.poller: pushed.running or exported.running,
            self.take_away: gr.update(visible=has_run),
            self.downloads: downloads,
            self.onnx: gr.update(value=onnx, interactive=not exported.running),
        }


def _request(form: Sequence[Any]) -> PushRequest:
    """Read the request of a push. Any client can send anything."""
    _, owner, name, private, licence, demo, hardware = form[:7]
    name, owner = (str(text or "").strip() for text in (name, owner))
    if name and owner and "/" not in name:
        name = f"{owner}/{name}"
    licence, hardware = str(licence or "").strip() or None, str(hardware or HARDWARE[0]).strip()
    return PushRequest(name, bool(private), licence, bool(demo), hardware)
