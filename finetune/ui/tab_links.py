"""Ways from one tab to the next: buttons in HTML that open a tab.

A click stays in the browser. `SCRIPT` listens on a part of the page as a whole, whatever is drawn
into it later.
"""

from __future__ import annotations

import html

SCRIPT = """
element.addEventListener('click', (event) => {
  const way = event.target.closest('[data-tab]');
  if (!way) return;
  const tab = document.querySelector(`#tabs [role="tab"][data-tab-id="${way.dataset.tab}"]`);
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
