"""How the page looks: one palette with one accent, light and dark, and fonts that need no network.

Every colour of the page is named here once. Gradio's own parts take them through the theme, ours
through custom properties (`variables`), which `assets/page.css` and the charts use; that file has
no colour of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gradio as gr

ASSETS = Path(__file__).resolve().parent.parent.parent / "assets"
CSS = ASSETS / "page.css"
SCRIPT = ASSETS / "page.js"
LOGO = ASSETS / "logo.svg"
FAVICON = ASSETS / "favicon.svg"

# page, surface, sunk: what text stands on; line: between things; edge: around what can be used;
# ink and soft: text; accent: filled; accent-ink: as text; wash: behind what is chosen.
LIGHT: Mapping[str, str] = {
    "page": "#f7f6f4", "surface": "#ffffff", "sunk": "#f0efec", "line": "#dddbd5",
    "edge": "#868591", "ink": "#1c1b23", "soft": "#5a5866",
    "accent": "#4a3fcf", "accent-deep": "#3b31ae", "accent-ink": "#4338c0", "wash": "#ebeafb",
    "good": "#15703a", "warn": "#964803", "bad": "#b3231a",
    "loss": "#4a3fcf", "accuracy": "#0b7067", "f1": "#a54a06",
    # Runs beside each other: colours the colour-blind tell apart (after Okabe and Ito), with a
    # dash of its own each.
    "c0": "#0067a3", "c1": "#b93d0b", "c2": "#047454", "c3": "#9c1eac",
    "c4": "#804a0d", "c5": "#0c6b85", "c6": "#b71439", "c7": "#475569",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "page": "#121218", "surface": "#1b1b23", "sunk": "#25252f", "line": "#353542",
    "edge": "#7a7a8f", "ink": "#ededf3", "soft": "#abaaba",
    "accent": "#655ae4", "accent-deep": "#5247cc", "accent-ink": "#b5afff", "wash": "#2a2850",
    "good": "#5ad68b", "warn": "#f5b942", "bad": "#ff8d84",
    "loss": "#aca5ff", "accuracy": "#5adcc8", "f1": "#f5b942",
    "c0": "#5cb8ee", "c1": "#fb9a4b", "c2": "#3fd49b", "c3": "#e88bf7",
    "c4": "#f2cb3a", "c5": "#2fd0e8", "c6": "#fd8496", "c7": "#cbd5e1",
}  # fmt: skip
_FILLED = "#ffffff"  # text on the accent, in both


def variables() -> str:
    """The palette as custom properties, `--ft-` before each name."""

    def block(where: str, colours: Mapping[str, str]) -> str:
        lines = "".join(f"--ft-{name}: {value}; " for name, value in colours.items())
        return f"{where} {{ {lines}}}\n"

    shared = f":root {{ --ft-filled: {_FILLED}; }}\n"
    return shared + block(":root", LIGHT) + block(".dark", DARK)


def theme() -> gr.themes.Base:
    """The theme; weights 400 and 700 only, for the bundled SemiBold files lack most letters."""
    sans = gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700))
    mono = gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700))
    made = gr.themes.Default(
        primary_hue=_ACCENT,
        secondary_hue=_ACCENT,
        neutral_hue=_NEUTRAL,
        radius_size=gr.themes.sizes.radius_md,
        font=[sans, "ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=[mono, "ui-monospace", "monospace"],
    )
    given = {"color_accent": LIGHT["accent"]}  # has no dark one: `page.css` sets that
    for setting, colour in _SETTINGS.items():
        given[setting] = LIGHT.get(colour, colour)
        given[f"{setting}_dark"] = DARK.get(colour, colour)
    return made.set(**given, **_MEASURES)


# Gradio wants whole ramps; what matters of them is set by name below.
_ACCENT = gr.themes.Color(
    name="finetune", c50="#f3f3fd", c100="#ebeafb", c200="#d6d3f7", c300="#b5afff", c400="#8f87f0",
    c500="#6c62e8", c600="#4a3fcf", c700="#4338c0", c800="#3b31ae", c900="#2a2850", c950="#1d1b3a",
)  # fmt: skip
_NEUTRAL = gr.themes.Color(
    name="paper", c50="#f7f6f4", c100="#f0efec", c200="#dddbd5", c300="#c3c1bd", c400="#abaaba",
    c500="#7a7a8f", c600="#5a5866", c700="#353542", c800="#25252f", c900="#1b1b23", c950="#121218",
)  # fmt: skip
_SETTINGS = {
    "body_background_fill": "page",
    "body_text_color": "ink",
    "body_text_color_subdued": "soft",
    "background_fill_primary": "surface",
    "background_fill_secondary": "sunk",
    "border_color_primary": "line",
    "border_color_accent": "accent",
    "color_accent_soft": "wash",
    "link_text_color": "accent-ink",
    "link_text_color_hover": "ink",
    "link_text_color_visited": "accent-ink",
    "link_text_color_active": "accent-ink",
    "code_background_fill": "sunk",
    "block_background_fill": "surface",
    "block_border_color": "line",
    "block_info_text_color": "soft",
    "block_label_text_color": "soft",
    "block_label_background_fill": "surface",
    "block_title_text_color": "ink",
    "accordion_text_color": "ink",
    "table_text_color": "ink",
    "table_even_background_fill": "surface",
    "table_odd_background_fill": "surface",
    "table_border_color": "line",
    "table_row_focus": "wash",
    "panel_background_fill": "surface",
    "panel_border_color": "line",
    "input_background_fill": "surface",
    "input_background_fill_focus": "surface",
    "input_border_color": "edge",
    "input_border_color_focus": "accent",
    "input_placeholder_color": "soft",
    "checkbox_background_color": "surface",
    "checkbox_border_color": "edge",
    "checkbox_background_color_selected": "accent",
    "checkbox_border_color_selected": "accent",
    "checkbox_label_text_color": "ink",
    "checkbox_label_background_fill": "surface",
    "stat_background_fill": "wash",
    "loader_color": "accent",
    "slider_color": "accent",
    "error_text_color": "bad",
    "error_border_color": "bad",
    "error_background_fill": "surface",
    "error_icon_color": "bad",
    "button_primary_background_fill": "accent",
    "button_primary_background_fill_hover": "accent-deep",
    "button_primary_border_color": "accent",
    "button_primary_text_color": _FILLED,
    "button_primary_text_color_hover": _FILLED,
    "button_secondary_background_fill": "surface",
    "button_secondary_background_fill_hover": "sunk",
    "button_secondary_border_color": "edge",
    "button_secondary_text_color": "ink",
    "button_cancel_background_fill": "surface",
    "button_cancel_background_fill_hover": "sunk",
    "button_cancel_border_color": "bad",
    "button_cancel_text_color": "bad",
    "button_cancel_text_color_hover": "bad",
}
_MEASURES = {
    "block_border_width": "1px",
    "block_radius": "10px",
    "container_radius": "10px",
    "block_shadow": "none",
    "block_padding": "14px 16px",
    "block_info_text_size": "13px",
    "block_title_text_weight": "700",
    "form_gap_width": "0px",
    "layout_gap": "18px",
    "input_radius": "7px",
    "input_border_width": "1px",
    "input_shadow": "none",
    "checkbox_border_radius": "4px",
    "button_large_radius": "8px",
    "button_medium_radius": "8px",
    "button_small_radius": "8px",
    "button_border_width": "1px",
    "button_large_text_weight": "700",
    "button_primary_shadow": "none",
    "button_secondary_shadow": "none",
    "button_cancel_shadow": "none",
    "button_small_text_size": "14px",
    "button_small_padding": "7px 14px",
    "button_medium_padding": "9px 16px",
    "button_large_padding": "11px 18px",
}
