"""The Publish tab: who pushes, what will happen, how far it is, the card, what to take away.

A typed token is an argument of one click: it is in no state, file or page, and in the app's memory
only until its push ends. How a push is drawn is `pushed`'s business.
"""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from finetune.errors import FinetuneError, JobError
from finetune.hub import client, curves_picture, model_card, push_plan
from finetune.hub.push_plan import PushRequest
from finetune.jobs import export_jobs, push_jobs, service
from finetune.runs.store import Run, RunStore
from finetune.ui import (
    auth,
    feedback,
    model_chooser,
    polling,
    push_view,
    routes,
    sign_in,
    tab_links,
)
from finetune.ui.i18n import gettext

LICENCES = ("apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc0-1.0", "other")
HARDWARE = ("cpu-basic", "cpu-upgrade", "t4-small")


TOKEN = (
    "Paste a token with write access, or run `hf auth login` in a terminal.",
    "The token of `hf auth login` is used unless you type another.",
)
# A suggestion comes later than the model is chosen, and replaces nothing that was typed meanwhile.
_SUGGEST = "(now, before, name, run) => [!name || name === before ? now : name, now, run]"
# Gradio tells of a choice also when the chooser is merely left.
_OTHER = (
    f"(run, named, before) => run === named ? [{feedback.KEEP}, {feedback.KEEP}] : [before, run]"
)
# What a Check has shown is not what Push will do once something else is asked for. The owner may be
# the Check's own answer, and is told of when it is merely left.
_ASKED = "(...asked) => JSON.stringify(asked)"
_CHECKED = f"""(planned, ...asked) => {{
  const was = JSON.parse(planned || '[]');
  was[1] = asked[1];
  return JSON.stringify(was) === JSON.stringify(asked)
    ? [JSON.stringify(asked), {feedback.KEEP}] : [planned, ''];
}}"""
_STALE = f"""(planned, ...asked) => {{
  const was = JSON.parse(planned || '[]');
  was[1] = asked[1];
  return JSON.stringify(was) === JSON.stringify(asked) ? {feedback.KEEP} : '';
}}"""
_OTHER_OWNER = f"(planned, ...asked) => planned === JSON.stringify(asked) ? {feedback.KEEP} : ''"
_LOCK, _UNLOCK = (
    f"() => ({{__type__: 'update', interactive: {free}}})" for free in ("false", "true")
)
_NO_CARD = "The card of the chosen model appears here, as it will be pushed."


@dataclass
class PublishTab:
    """The tab's controls and what its events do.

    Args:
        store: where runs are.
    """

    store: RunStore
    pushes: push_jobs.PushRegistry = field(default_factory=push_jobs.PushRegistry)

    def draw(self) -> None:
        """Lay out the tab inside the current `gr.Tab` and wire its events."""
        gr.HTML(feedback.note("Share a tuned model on the Hugging Face Hub with an honest card."))
        self.empty = gr.HTML(
            model_chooser.empty(),
            elem_id="publish-empty",
            js_on_load=tab_links.SCRIPT,
            visible=False,
        )
        self.pulse = polling.polling_element(0.5)
        # Kept by the browser: the name suggested for the chosen model, the one before, and the
        # model that the name is meant for; and what a Check was asked.
        self.suggested, self.before, self.named, self.planned = (
            gr.HTML("", html_template="", elem_classes="ft-pulse") for _ in range(4)
        )
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                self._draw_form()
                self._draw_away()
            with (
                gr.Column(scale=3, min_width=320),
                gr.Accordion("Model card, as it will be pushed", open=True, elem_id="card-fold"),
            ):
                self.card = gr.Markdown(_NO_CARD, elem_id="card")
        self._wire()

    def _draw_form(self) -> None:
        self.run = gr.Dropdown(
            [], label="Model", elem_id="publish-run", interactive=True, allow_custom_value=True
        )
        self._draw_sign_in()
        with gr.Row():
            self.owner = gr.Dropdown(
                [], label="Owner", elem_id="owner", interactive=True, allow_custom_value=True,
                info="Check lists you and your organisations.", min_width=150,
            )  # fmt: skip
            self.name = gr.Textbox(
                label="Repository", info="One that exists takes a Check first.", elem_id="repo",
                max_lines=1, min_width=150,
            )  # fmt: skip
        with gr.Row():
            self.licence = gr.Dropdown(
                LICENCES, value=None, label="Licence", elem_id="licence", allow_custom_value=True,
                info="Empty for the base model's.", min_width=150,
            )  # fmt: skip
            self.private = gr.Checkbox(
                label="Private", info="Only you can see a new repository.", elem_id="private",
                min_width=150,
            )  # fmt: skip
        with gr.Row():
            self.demo = gr.Checkbox(
                label="Also create a demo Space", elem_id="demo", min_width=150,
                info="Anybody can try the model in it.",
            )  # fmt: skip
            self.hardware = gr.Dropdown(
                HARDWARE, value=HARDWARE[0], label="Its hardware", elem_id="demo-hardware",
                info="Check tells the price.", allow_custom_value=True, visible=False,
                min_width=150,
            )  # fmt: skip
        with gr.Row():
            self.check = gr.Button("Check", elem_id="check-push", min_width=100)
            self.push = gr.Button("Push to Hub", variant="primary", elem_id="push", min_width=120)
            self.cancel = gr.Button("Cancel", elem_id="cancel-push", visible=False, min_width=100)
        self.plan = gr.HTML(elem_id="push-plan", elem_classes="ft-if-said")
        self.result = gr.HTML(elem_id="push-result")

    def _draw_sign_in(self) -> None:
        self.token: gr.Textbox | None = None
        if sign_in.on_space():
            gr.LoginButton()
            return
        self.token = gr.Textbox(
            label="Access token",
            info=TOKEN[bool(client.stored_token())],
            type="password",
            elem_id="token",
            max_lines=1,
        )

    def _draw_away(self) -> None:
        """What a person can take away without the Hub."""
        with gr.Column(elem_id="take-away", visible=False) as self.away:
            gr.HTML('<h2 class="ft-h">Take it with you</h2>')
            self.links = gr.HTML(elem_id="away-links")
            self.onnx = gr.Button("Make ONNX", elem_id="make-onnx", size="sm")

    def _wire(self) -> None:
        here = [self.push, self.cancel, self.result, self.pulse]
        away = [self.away, self.links, self.onnx]
        self.shown = [*here, *away]
        self.asked = [
            self.run, self.owner, self.name, self.private, self.licence, self.demo, self.hardware,
        ]  # fmt: skip
        given = [*self.asked, *([self.token] if self.token else [])]
        # Another model: a name typed for the one before is not meant for it.
        self.run.input(
            None, [self.run, self.named, self.before], [self.name, self.named],
            js=_OTHER, **feedback.QUICK,
        )  # fmt: skip
        # The same one again, too.
        self.run.select(None, self.before, self.name, js="(before) => before", **feedback.QUICK)
        self.run.change(
            self.on_run, [self.run, self.licence],
            [self.suggested, self.card, self.plan, *self.shown], **feedback.LATEST,
        ).then(
            None, [self.suggested, self.before, self.name, self.run],
            [self.name, self.before, self.named], js=_SUGGEST, **feedback.QUICK,
        )  # fmt: skip
        of_card = [self.licence.change, self.name.blur, self.owner.change]
        gr.on(of_card, self.on_named, self.asked, self.card, **feedback.LATEST)
        self.demo.change(lambda on: gr.update(visible=bool(on)), self.demo, self.hardware,
                         **feedback.LATEST)  # fmt: skip
        told = [self.planned, *self.asked]
        self.owner.input(None, told, self.plan, js=_OTHER_OWNER, **feedback.QUICK)
        for one in (self.name, self.private, self.licence, self.demo, self.hardware):
            one.change(None, told, self.plan, js=_STALE, **feedback.QUICK)
        self.check.click(None, self.asked, self.planned, js=_ASKED, **feedback.QUICK)
        # Its answer is of this model, so no other is chosen meanwhile.
        self.check.click(None, None, self.run, js=_LOCK, **feedback.QUICK)
        checked = self.check.click(
            self.on_check_on_space if sign_in.on_space() else self.on_check, given,
            [self.plan, self.owner, self.card, *self.shown],
            concurrency_limit=4, show_progress="minimal", api_visibility="private",
        )  # fmt: skip
        checked.then(None, None, self.run, js=_UNLOCK, **feedback.QUICK)
        checked.then(None, told, [self.planned, self.plan], js=_CHECKED, **feedback.QUICK)
        self.push.click(
            self.on_push_on_space if sign_in.on_space() else self.on_push, given,
            [self.plan, *self.shown], **feedback.QUICK,
        )  # fmt: skip
        self.cancel.click(self.on_cancel, self.run, self.shown, **feedback.QUICK)
        self.onnx.click(self.on_onnx, self.run, self.shown, **feedback.QUICK)
        self.pulse.submit(self.on_tick, self.run, self.shown, **feedback.QUICK)

    def opening(self) -> dict[str, Any]:
        """How the page calls `on_open` when the tab is chosen."""
        return {
            "fn": self.on_open,
            "inputs": self.run,
            "outputs": [self.run, self.empty, *self.shown],
        }

    def on_open(self, request: gr.Request, chosen: str | None) -> list[Any]:
        """The tab was opened: the models there are, the newest chosen, and how far its push is."""
        store = auth.visitor_store(self.store, request)
        update, has_models = model_chooser.choices(store, chosen)
        shown = self._shown(store, update["value"])
        if not has_models:
            shown[0] = gr.update(interactive=False)
        return [update, gr.update(visible=not has_models), *shown]

    def on_run(self, request: gr.Request, run_id: str | None, licence: str | None) -> list[Any]:
        """Another model was chosen: its suggested name, its card, and how far its push is."""
        store = auth.visitor_store(self.store, request)
        if not run_id:
            return ["", "", "", *self._shown(store, None)]
        try:
            run = store.get(run_id)
            name = push_plan.suggested_name(run)
            text = self._card(store, run, f"your-name/{name}", licence)
        except Exception as error:
            return ["", feedback.show_errors(error), "", *self._shown(store, None)]
        return [name, text, "", *self._shown(store, run_id)]

    def on_named(self, request: gr.Request, *asked: Any) -> Any:
        """Another name, owner or licence was chosen: the card says it."""
        store, (run_id, wanted) = auth.visitor_store(self.store, request), _wanted(*asked)
        try:
            run = store.get(run_id)
            return self._card(store, run, _full(wanted.name), wanted.licence)
        except FinetuneError:
            return gr.skip()

    def _card(self, store: RunStore, run: Run, full: str, licence: str | None) -> str:
        summary = service.run_summary(store, run)
        said = (licence or "").strip() or None
        text = model_card.card_text(
            run, summary, full, said, model_card.check_findings(run, summary)
        )
        return _readable(text, curves_picture.curves_png(summary))

    def on_check(self, request: gr.Request, *given: Any) -> list[Any]:
        """What a push would do, with the typed token or the one stored on this machine."""
        *asked, typed = given
        store = auth.visitor_store(self.store, request)
        return self._check(store, self._token(store, typed), asked)

    def on_check_on_space(
        self, request: gr.Request, run_id: str | None, owner: str | None, name: str, private: bool,
        licence: str | None, demo: bool, hardware: str, oauth: gr.OAuthToken | None,
    ) -> list[Any]:  # fmt: skip
        """What a push of the signed-in visitor would do."""
        asked = [run_id, owner, name, private, licence, demo, hardware]
        store, may_update = auth.visitor_store(self.store, request), sign_in.may_update(oauth)
        return self._check(store, _signed_in(oauth), asked, may_update)

    def _check(
        self, store: RunStore, token: str | None, asked: list[Any], may_update: bool = True
    ) -> list[Any]:
        run_id, wanted = _wanted(*asked)
        try:
            run = store.get(run_id)
            self.pushes.forget(store, run)  # what it was refused for may be mended
            summary = service.run_summary(store, run)
            plan = push_plan.plan_push(run, summary, wanted, token)
            self.pushes.checked(store, run, plan)
            text = self._card(store, run, plan.full, plan.licence)
        except Exception as error:
            return [feedback.show_errors(error), gr.skip(), gr.skip(), *self._shown(store, run_id)]
        owner = plan.full.split("/")[0]
        names = dict.fromkeys([*plan.account.namespaces, owner])
        warned = _wider() if plan.exists and not may_update else ""
        said = [push_view.plan(plan) + warned, gr.update(choices=list(names), value=owner), text]
        return [*said, *self._shown(store, run_id)]

    def on_push(self, request: gr.Request, *given: Any) -> list[Any]:
        """Push with the typed token, or else the one stored on this machine, if it is one's own."""
        *asked, typed = given
        store = auth.visitor_store(self.store, request)
        return self._push(store, self._token(store, typed), asked)

    def on_push_on_space(
        self, request: gr.Request, run_id: str | None, owner: str | None, name: str, private: bool,
        licence: str | None, demo: bool, hardware: str, oauth: gr.OAuthToken | None,
    ) -> list[Any]:  # fmt: skip
        """Push as the signed-in visitor; never with the Space's own token."""
        asked = [run_id, owner, name, private, licence, demo, hardware]
        return self._push(auth.visitor_store(self.store, request), _signed_in(oauth), asked)

    def _token(self, store: RunStore, typed: object) -> str | None:
        stored = client.stored_token() if store.visitor.alone else None
        return str(typed or "").strip() or stored

    def _push(self, store: RunStore, token: str | None, asked: list[Any]) -> list[Any]:
        run_id, wanted = _wanted(*asked)
        try:
            run = store.get(run_id)
            self.pushes.start(store, run, service.run_summary(store, run), wanted, token)
        except Exception as error:
            return [feedback.show_errors(error), *([gr.skip()] * 7)]
        return ["", *self._shown(store, run_id)]

    def on_cancel(self, request: gr.Request, run_id: str | None) -> list[Any]:
        """The push shall end."""
        store = auth.visitor_store(self.store, request)
        try:
            self.pushes.cancel(store, store.get(run_id))
        except Exception as error:
            return [gr.skip(), gr.skip(), feedback.show_errors(error), *([gr.skip()] * 4)]
        return self._shown(store, run_id)

    def on_onnx(self, request: gr.Request, run_id: str | None) -> list[Any]:
        """The model shall be exported."""
        store = auth.visitor_store(self.store, request)
        try:
            run = store.get(run_id)
            export_jobs.start_export(store, run, service.run_summary(store, run))
        except Exception as error:
            return [*([gr.skip()] * 5), feedback.show_errors(error), gr.skip()]
        return self._shown(store, run_id)

    def on_tick(self, request: gr.Request, run_id: str | None, event: gr.EventData) -> list[Any]:
        """Something goes on: how far it is."""
        return self._shown(auth.visitor_store(self.store, request), run_id, event)

    def _shown(
        self, store: RunStore, run_id: str | None, event: gr.EventData | None = None
    ) -> list[Any]:
        """Push, Cancel, how far it is, the pulse; what can be taken away, its links, ONNX."""
        hidden = gr.update(visible=False)
        ready = gr.update(interactive=True, value=gettext("Push to Hub"))
        try:
            run = store.get(run_id)
            summary = service.run_summary(store, run)
            state, onnx = self.pushes.state(store, run), export_jobs.export_state(run, summary)
        except FinetuneError:
            return [ready, hidden, "", polling.polling_value(False, event), hidden, "", hidden]
        running = state is not None and state.status == "running"
        again = state is not None and state.status in ("failed", "cancelled")
        return [
            gr.update(
                interactive=not running,
                value=gettext("Try again") if again else gettext("Push to Hub"),
            ),
            gr.update(visible=running, interactive=not (state and state.cancelling)),
            push_view.state(state),
            polling.polling_value(running or onnx.running, event),
            gr.update(visible=True),
            _links(run, onnx),
            gr.update(visible=onnx.file is None, interactive=not onnx.running),
        ]


def _wanted(*asked: Any) -> tuple[str | None, PushRequest]:
    """The run's id, and what shall be pushed where; any client can send anything."""
    run_id, owner, name, private, licence, demo, hardware = asked
    typed, whose = str(name or "").strip(), str(owner or "").strip()
    full = typed if "/" in typed or not whose or not typed else f"{whose}/{typed}"
    said = str(licence or "").strip()
    chosen = str(hardware or HARDWARE[0]).strip()
    return run_id, PushRequest(full, bool(private), said or None, bool(demo), chosen)


def _full(name: str) -> str:
    return name if "/" in name else f"your-name/{name or 'model'}"


def _wider() -> str:
    text = gettext(
        "Your sign-in may write to new repositories and to those made here. If this one was made "
        "elsewhere, sign in once more."
    )
    return feedback.warning(f"{text} {sign_in.more(gettext('Sign in for all my repositories'))}")


def _signed_in(oauth: gr.OAuthToken | None) -> str | None:
    return oauth.token if oauth else None


def _links(run: Run, onnx: export_jobs.ExportState) -> str:
    parts = [
        routes.download_link(run, "model.zip", html.escape(gettext("Model (zip)"))),
        routes.download_link(
            run, "script.zip", html.escape(gettext("Script that repeats this run (zip)"))
        ),
    ]
    if onnx.file is not None:
        text = gettext("ONNX (zip, {size})", size=push_view.size(onnx.bytes))
        parts.append(routes.download_link(run, "onnx.zip", html.escape(text)))
    said = ""
    if onnx.running:
        said = feedback.note(gettext("ONNX is being made and compared with PyTorch \u2026"))
    elif onnx.error:
        said = feedback.show_errors(JobError(onnx.error, onnx.remedy))
    elif onnx.file is not None:
        said = feedback.note(
            gettext("The ONNX model was compared with PyTorch and answers the same.")
        )
    return f'<div class="ft-links">{"".join(parts)}</div>{said}'


def _readable(text: str, drawn: bytes | None) -> str:
    """The card as Markdown shows it: its picture in place, its front matter as YAML at the end."""
    _, metadata, body = text.split("---\n", 2)
    if drawn is not None:
        inside = f"data:image/png;base64,{base64.b64encode(drawn).decode()}"
        body = body.replace(f"]({model_card.PICTURE})", f"]({inside})")
    return f"{body.strip()}\n\n## Metadata\n\n```yaml\n{metadata}```"
