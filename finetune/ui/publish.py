"""The Publish tab: who is pushing, under which name, the card beforehand, the link afterwards.

A typed token is an argument of one click: it is not kept in a state, a file or the page.
"""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from typing import Any

import gradio as gr

from finetune import jobs, publish
from finetune.store import RunStore
from finetune.ui import edge, models


def on_space() -> bool:
    """Whether this is a Space with sign-in; elsewhere a LoginButton cannot even be made."""
    return os.getenv("SYSTEM") == "spaces" and bool(os.getenv("OAUTH_CLIENT_ID"))


@dataclass
class PublishTab:
    """The tab's controls and what its events do.

    Args:
        store: where runs are.
    """

    store: RunStore

    def draw(self) -> None:
        """Lay out the tab inside the current `gr.Tab` and wire its events."""
        gr.HTML(edge.note("Share a tuned model on the Hugging Face Hub with an honest card."))
        self.empty = gr.HTML(models.EMPTY, elem_id="publish-empty")
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                self.run = gr.Dropdown([], label="Model", elem_id="publish-run", interactive=True)
                self._draw_sign_in()
                self.name = gr.Textbox(
                    label="Repository", info="name, or namespace/name", elem_id="repo", max_lines=1
                )
                self.private = gr.Checkbox(
                    label="Private", info="Only you can see a new repository.", elem_id="private"
                )
                self.push = gr.Button("Push to Hub", variant="primary", elem_id="push")
                self.result = gr.HTML(elem_id="push-result", elem_classes="ft-if-said")
            with (
                gr.Column(scale=3, min_width=320),
                gr.Accordion("Model card, as it will be pushed", open=True, elem_id="card-fold"),
            ):
                self.card = gr.Markdown(elem_id="card")
        self.run.change(
            self.on_run, self.run, [self.name, self.card], queue=False, api_visibility="private"
        )
        inputs = [self.run, self.name, self.private, *([self.token] if self.token else [])]
        self.push.click(
            self.on_push_on_space if on_space() else self.on_push,
            inputs,
            self.result,
            concurrency_limit=4,
            api_visibility="private",
        )

    def _draw_sign_in(self) -> None:
        self.token: gr.Textbox | None = None
        if on_space():
            gr.LoginButton()
            return
        stored = "The token of `hf auth login` is used unless you type another."
        missing = "Paste a token with write access, or run `hf auth login` in a terminal."
        self.token = gr.Textbox(
            label="Access token",
            info=stored if publish.stored_token() else missing,
            type="password",
            elem_id="token",
            max_lines=1,
        )

    def on_open(self, chosen: str | None) -> tuple[Any, Any, Any]:
        """The tab was opened: the models there are, the newest chosen."""
        update, has_models = models.choices(self.store, chosen)
        return update, gr.update(visible=not has_models), gr.update(interactive=has_models)

    def on_run(self, run_id: str | None) -> tuple[str, str]:
        """Another model was chosen: its suggested name and its card."""
        if not run_id:
            return "", ""
        try:
            run = self.store.get(run_id)
            name = publish.suggested_name(run)
            text = publish.card(run, jobs.summary(self.store, run), f"your-name/{name}")
        except Exception as error:
            return "", edge.said(error)
        return name, _readable(text)

    def on_push(self, run_id: str | None, name: str, private: bool, typed: str | None) -> str:
        """Push with the typed token, or else the one stored on this machine."""
        return self._push(run_id, name, private, (typed or "").strip() or publish.stored_token())

    def on_push_on_space(
        self, run_id: str | None, name: str, private: bool, oauth: gr.OAuthToken | None
    ) -> str:
        """Push as the signed-in visitor; never with the Space's own token."""
        return self._push(run_id, name, private, oauth.token if oauth else None)

    def _push(self, run_id: str | None, name: str, private: bool, token: str | None) -> str:
        try:
            run = self.store.get(run_id)
            pushed = publish.push(run, jobs.summary(self.store, run), name, token, private)
        except Exception as error:
            return edge.said(error)
        url = html.escape(pushed.url)
        how = "A new repository" if pushed.created else "A new commit in your repository"
        return edge.good(
            f'Pushed. {how}: <a href="{url}" target="_blank" rel="noopener">{url}</a> '
            f"(commit {html.escape(pushed.commit[:7])})."
        )


def _readable(card: str) -> str:
    """The card with its front matter as a block of YAML, as Markdown shows it."""
    _, metadata, body = card.split("---\n", 2)
    return f"{body.strip()}\n\n#### Metadata\n\n```yaml\n{metadata}```"
