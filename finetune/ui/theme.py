"""The page's look: fonts that need no network, and the files in `assets/`.

`palette.css` has the colours, `gradio.css` gives them to Gradio's parts, `page.css` has the rest.
"""

from __future__ import annotations

import gradio as gr

from finetune.environment import project

ASSETS = project.ROOT / "assets"
CSS = ASSETS / "page.css"
FAVICON = ASSETS / "favicon.svg"


def asset(name: str) -> str:
    """The text of a file in `assets/`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def theme() -> gr.themes.Base:
    """The theme; weights 400 and 700 only, since the bundled SemiBold files lack most letters."""
    sans = gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700))
    mono = gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700))
    return gr.themes.Default(
        font=[sans, "ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=[mono, "ui-monospace", "monospace"],
    )
