"""A finding about rows of a dataset, with their lines and a few examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from finetune.data.check_report import MAX_LINES
from finetune.data.splits import SplitRows
from finetune.findings import Example, Finding, Remedy, RowsFinding, Severity
from finetune.text_hashes import Integers

MAX_EXAMPLES = 5  # of a finding
EXAMPLE_CHARACTERS = 200  # of a sentence in an example


def rows_finding(
    assigned: SplitRows,
    kind: str,
    title: str,
    action: str,
    rows: Sequence[tuple[str, Integers]],
    remedy: Callable[[int], Remedy] | None = None,
    remedies: Sequence[Remedy] = (),
    severity: Severity = "warns",
) -> Iterator[Finding]:
    """Yield a finding about these rows, or nothing if there are none.

    Args:
        rows: split of the dataset -> indices into it.
        remedy: makes the button for this many rows; the finding is `done` if it undoes a choice.
    """
    if count := sum(len(indices) for _, indices in rows):
        examples: list[Example] = []
        lines: dict[str, list[int]] = {}
        for split, indices in rows:
            shown = indices[: MAX_EXAMPLES - len(examples)]
            examples += assigned.dataset.examples_of(split, shown, EXAMPLE_CHARACTERS)
            for part, own in assigned.dataset.origins(split, indices):
                more = assigned.hashes[split].line[own[:MAX_LINES]].tolist()
                if more:
                    lines[part] = (lines.get(part, []) + more)[:MAX_LINES]
        buttons = [remedy(count)] if remedy else list(remedies)
        done = remedy is not None and not buttons[0].value
        yield Finding(kind, severity, title, count, action, examples, buttons, done, lines)


def described(assigned: SplitRows, findings: Iterable[Finding | RowsFinding]) -> Iterator[Finding]:
    """Look up the rows of findings; those about no rows are left out."""
    for finding in findings:
        if isinstance(finding, RowsFinding):
            kind, severity, title, action, rows, remedies = finding
            yield from rows_finding(
                assigned, kind, title, action, rows, remedies=remedies, severity=severity
            )
        else:
            yield finding
