"""Buttons in HTML that open a tab of the page, without asking the server."""

from __future__ import annotations

import html

# Listens on a part of the page as a whole, whatever is drawn into it later.
SCRIPT = """
element.addEventListener('click', (event) => {
  const link = event.target.closest('[data-tab]');
  if (!link) return;
  const tab = document.querySelector(`#tabs [role="tab"][data-tab-id="${link.dataset.tab}"]`);
  tab?.click();
  tab?.focus();
});
"""


def tab_link(tab: str, text: str) -> str:
    """A button that opens a tab.

    Args:
        tab: its id, such as `train`.
        text: what the button says.
    """
    return (
        f'<button type="button" class="ft-button" data-tab="{html.escape(tab)}">'
        f"{html.escape(text)}</button>"
    )


def link_row(*buttons: str) -> str:
    """Several of them, side by side."""
    return f'<div class="ft-links ft-ways">{"".join(buttons)}</div>'
