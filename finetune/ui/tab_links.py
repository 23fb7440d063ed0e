"""Buttons in HTML that open a tab of the page; `tab_link` in `templates/macros.html` draws them."""

from __future__ import annotations

from finetune.ui import theme

SCRIPT = theme.asset("tab_links.js")  # of the `gr.HTML` they stand in
