"""How the page looks: fonts that need no network, one accent, light and dark."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

CSS = Path(__file__).resolve().parent.parent.parent / "assets" / "page.css"


def theme() -> gr.themes.Base:
    """The theme; weights 400 and 700 only, for the bundled SemiBold files lack most letters."""
    sans = gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700))
    mono = gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700))
    return gr.themes.Default(
        primary_hue=gr.themes.colors.indigo,
        secondary_hue=gr.themes.colors.indigo,
        neutral_hue=gr.themes.colors.slate,
        font=[sans, "ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=[mono, "ui-monospace", "monospace"],
    ).set(
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_400",
        block_label_text_color_dark="*neutral_200",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_text_color="white",
    )
