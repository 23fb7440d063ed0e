"""How the page looks, as far as figures can say it: contrast and offline fonts."""

from __future__ import annotations

import re

import pytest

from finetune.ui import theme

GROUNDS = ("page", "surface", "sunk", "wash")  # what anything stands on
# What is no text: between things, and around or behind what can be used.
SHAPES = ("line", "edge", "accent", "accent-deep", "filled")


def palettes() -> dict[str, dict[str, str]]:
    """The colours of the style sheet: selector -> name -> `#rrggbb`."""
    blocks = re.findall(r"^(:root|\.dark) {(.*?)}", theme.asset("palette.css"), re.M | re.S)
    return {where: dict(re.findall(r"--ft-([\w-]+): (#\w{6});", body)) for where, body in blocks}


LIGHT, DARK = palettes()[":root"], palettes()[".dark"]


def _luminance(colour: str) -> float:
    """Of `#rrggbb`, as WCAG 2.2 defines it (https://www.w3.org/TR/WCAG22/#dfn-relative-luminance)."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(colour: str, ground: str) -> float:
    """From 1 to 21 (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio)."""
    dark, light = sorted((_luminance(colour), _luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_colour_can_be_read_on_every_ground(palette: dict[str, str]) -> None:
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # as WCAG has it
    for text in set(palette) - {*GROUNDS, *SHAPES}:
        for ground in GROUNDS:
            assert contrast(palette[text], palette[ground]) >= 4.5, (text, ground)
    assert contrast("#ffffff", palette["accent"]) >= 4.5  # the word on Train
    assert contrast("#ffffff", palette["accent-deep"]) >= 4.5
    for ground in ("page", "surface"):
        assert contrast(palette["edge"], palette[ground]) >= 3  # where a control ends
        assert contrast(palette["accent"], palette[ground]) >= 3  # how far the bar has come


def test_the_style_sheet_uses_the_palette_alone_and_nothing_of_the_network() -> None:
    assert set(LIGHT) == {*DARK, "filled"}
    sheet = theme.asset("page.css")
    assert re.findall(r":[^;{}]*(#[0-9a-fA-F]{3,8}\b|rgba?\()", sheet) == []
    assert set(re.findall(r"var\(--ft-([\w-]+)", sheet)) - set(LIGHT) == {"tone", "axis"}
    for words in ("url(", "@import"):
        assert words not in sheet + theme.asset("palette.css")
    assert theme.theme()._stylesheets == []  # a Google font would be one
    for file in ("logo.svg", "favicon.svg"):
        drawn = theme.asset(file).replace("http://www.w3.org/2000/svg", "")
        assert "http" not in drawn
        assert LIGHT["accent"] in drawn
