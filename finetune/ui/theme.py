"""How the page looks: one palette with one accent, light and dark, and fonts that need no network.

The colours are custom properties of `assets/palette.css`; the theme gives them to Gradio's parts.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

ASSETS = Path(__file__).resolve().parent.parent.parent / "assets"
CSS = ASSETS / "page.css"
FAVICON = ASSETS / "favicon.svg"


def asset(name: str) -> str:
    """The text of a file in `assets/`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def theme() -> gr.themes.Base:
    """The theme; weights 400 and 700 only, since the bundled SemiBold files lack most letters."""
    sans = gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700))
    mono = gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700))
    page_theme = gr.themes.Default(
        primary_hue=_ACCENT,
        secondary_hue=_ACCENT,
        neutral_hue=_NEUTRAL,
        radius_size=gr.themes.sizes.radius_md,
        font=[sans, "ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=[mono, "ui-monospace", "monospace"],
    )
    settings = {"color_accent": "var(--ft-accent)"}  # has no dark variant
    for colour, names in _COLOURS.items():
        for name in names.split():
            settings[name] = settings[f"{name}_dark"] = f"var(--ft-{colour})"
    return page_theme.set(**settings, **_SIZES)


# Gradio wants whole ramps; the colours that matter are set by name below.
_ACCENT = gr.themes.Color(
    name="finetune", c50="#f3f3fd", c100="#ebeafb", c200="#d6d3f7", c300="#b5afff", c400="#8f87f0",
    c500="#6c62e8", c600="#4a3fcf", c700="#4338c0", c800="#3b31ae", c900="#2a2850", c950="#1d1b3a",
)  # fmt: skip
_NEUTRAL = gr.themes.Color(
    name="paper", c50="#f7f6f4", c100="#f0efec", c200="#dddbd5", c300="#c3c1bd", c400="#abaaba",
    c500="#7a7a8f", c600="#5a5866", c700="#353542", c800="#25252f", c900="#1b1b23", c950="#121218",
)  # fmt: skip
# A colour of the palette -> the settings of Gradio's theme that have it.
_COLOURS = {
    "page": "body_background_fill",
    "surface": """background_fill_primary block_background_fill block_label_background_fill
        table_even_background_fill table_odd_background_fill panel_background_fill
        input_background_fill input_background_fill_focus checkbox_background_color
        checkbox_label_background_fill error_background_fill button_secondary_background_fill
        button_cancel_background_fill""",
    "sunk": """background_fill_secondary code_background_fill button_cancel_background_fill_hover
        button_secondary_background_fill_hover""",
    "wash": "color_accent_soft table_row_focus stat_background_fill",
    "line": "border_color_primary block_border_color table_border_color panel_border_color",
    "edge": "input_border_color checkbox_border_color button_secondary_border_color",
    "ink": """body_text_color link_text_color_hover block_title_text_color accordion_text_color
        table_text_color checkbox_label_text_color button_secondary_text_color""",
    "soft": """body_text_color_subdued block_info_text_color block_label_text_color
        input_placeholder_color""",
    "accent": """border_color_accent input_border_color_focus checkbox_background_color_selected
        checkbox_border_color_selected loader_color slider_color button_primary_background_fill
        button_primary_border_color""",
    "accent-deep": "button_primary_background_fill_hover",
    "accent-ink": "link_text_color link_text_color_visited link_text_color_active",
    "filled": "button_primary_text_color button_primary_text_color_hover",
    "bad": """error_text_color error_border_color error_icon_color button_cancel_border_color
        button_cancel_text_color button_cancel_text_color_hover""",
}
_SIZES = {
    "block_radius": "10px",
    "container_radius": "10px",
    "block_padding": "14px 16px",
    "block_info_text_size": "13px",
    "block_title_text_weight": "700",
    "layout_gap": "18px",
    "input_radius": "7px",
    "checkbox_border_radius": "4px",
    "button_large_radius": "8px",
    "button_medium_radius": "8px",
    "button_small_radius": "8px",
    "button_border_width": "1px",
    "button_large_text_weight": "700",
    "button_secondary_shadow": "none",
    "button_cancel_shadow": "none",
    "button_small_text_size": "14px",
    "button_small_padding": "7px 14px",
    "button_medium_padding": "9px 16px",
    "button_large_padding": "11px 18px",
}
