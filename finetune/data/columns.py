"""Choose the columns of a source that hold the texts and the label, or guess them."""

from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence

from finetune.config import NO_COLUMN, RunConfig
from finetune.data import column_guess
from finetune.data.column_guess import ROLES, Doubts, Role, Sample, guess_columns, plain_name
from finetune.data.table import remark
from finetune.errors import DataError, some
from finetune.findings import Finding, Remedy, question
from finetune.messages import message as _
from finetune.runs.summary import ColumnNames

SAMPLE_ROWS = 1000  # from which columns are guessed
_MOST_ANSWERS = 30  # columns offered
# Why a column can be no sentence.
NESTED = _("is nested: it holds lists or objects, which only labels can be")
BETWEEN = " | "  # names of columns, as one label column


def parts_of(label: str, columns: Container[str]) -> list[str]:
    """Return the columns that a label column stands for, such as `toxic | insult`; none if it is a
    column itself, or names one that does not exist."""
    parts = [part.strip() for part in label.split(BETWEEN.strip())]
    several = label not in columns and len(parts) > 1
    return parts if several and all(part in columns for part in parts) else []


def match_columns(names: Sequence[str], trained: ColumnNames) -> tuple[str, str, str]:
    """Match the columns of a file to predict to those that a model was trained on.

    Columns match by name. Texts that do not are guessed; a label is found by its name alone, or by
    those of its parts. "" if a column is missing or in doubt.
    """
    by_name = {plain_name(name): name for name in reversed(names)}
    first, second, label = (by_name.get(plain_name(name), "") for name in trained[:3])
    parts = [by_name.get(plain_name(part), "") for part in trained.label.split(BETWEEN)]
    if not label and all(parts):
        label = BETWEEN.join(parts)
    left = [name for name in names if name not in (first, second)]
    label = label or column_guess.named_label(left)
    if not first or (trained.sentence2 and not second):
        others = [name for name in names if name not in (label, *parts)]
        said: dict[Role, str] = {
            "sentence2": "" if trained.sentence2 else NO_COLUMN,
            "label": label or NO_COLUMN,
        }
        guess, doubts = guess_columns(others, chosen=said)
        first, second = ("", "") if doubts else guess[:2]
    return first, second if trained.sentence2 else "", label


def choices_of(config: RunConfig) -> dict[Role, str]:
    """The columns that a configuration chooses; "" for a column to guess."""
    return {role: getattr(config, f"{role}_column") for role in ROLES}


def choose_columns(
    columns: Mapping[str, str], source: str, config: RunConfig, cells: Sample
) -> ColumnNames:
    """Return the columns that a configuration chooses, and guess the others by a sample of the
    cells of each. DataError, which names the source, if a column is missing, unusable or chosen
    twice, or the guess is in doubt. `columns`: name -> why it cannot be used, or ""."""
    said = choices_of(config)
    check_choices(said, columns, source)
    guess, doubts = guess_from(columns, cells, said)
    for role, candidates in doubts.items():
        asked = ask(guess, role, candidates, source, cells)
        raise DataError(asked.title, asked.action)
    for role, column in zip(ROLES, guess, strict=True):
        if column:
            _check_column(role, column, columns, source)
    return guess


def guess_from(
    columns: Collection[str], cells: Sample, said: Mapping[Role, str]
) -> tuple[ColumnNames, Doubts]:
    """Guess the columns that nobody chose. The arguments are those of `choose_columns`."""
    parts = parts_of(said["label"], columns)
    return guess_columns([name for name in columns if name not in parts], cells, said)


def check_choices(said: Mapping[Role, str], columns: Mapping[str, str], source: str) -> None:
    """Raise DataError if a chosen column is missing, unusable, or chosen twice."""
    for role, column in said.items():
        if column and (role in ("sentence1", "label") or column != NO_COLUMN):
            _check_column(role, column, columns, source)
    chosen = [name for role, name in said.items() if role != "status" and name != NO_COLUMN]
    used = [part for name in chosen if name for part in parts_of(name, columns) or [name]]
    if len(set(used)) < len(used):
        raise DataError(
            "One column is chosen twice: {used}.",
            "Choose a different one for each.",
            used=some(used),
        )


def ask(
    guess: ColumnNames, role: Role, candidates: Sequence[str], source: str, cells: Sample
) -> Finding:
    """Ask which of the `candidates` has a role in doubt. `cells` are a sample."""
    names = some([repr(name) for name in candidates], 6)
    first, second = guess.sentence1, guess.sentence2
    if role == "sentence2":
        text = _(
            "Is a row of {source} one text or a pair? Columns with texts: {names}.",
            source=source,
            names=names,
        )
        pairs = {
            name: _("A pair: {first!r} and {second!r}", first=first, second=name)
            for name in dict.fromkeys([second, *candidates])
            if name not in ("", first)
        }
        answers = [Remedy("sentence2_column", name, pair) for name, pair in pairs.items()]
        answers.append(Remedy("sentence2_column", NO_COLUMN, _("One text")))
        others = candidates[1:] if len(candidates) > 2 and first == candidates[0] else []
        answers += [chosen("sentence1", name) for name in others]
        return question("single-or-pair", text, answers)
    if role == "status":
        text = _(
            "Which rows of {source} passed review? {names} may say so.", source=source, names=names
        )
        answers = [
            Remedy("status_column", name, _("Leave out the rows that {name!r} rejects", name=name))
            for name in candidates
        ]
        answers.append(Remedy("status_column", NO_COLUMN, _("Use all rows")))
        return question("review", text, answers)
    text = _("Which column of {source} holds the first text: {names}?", source=source, names=names)
    if role == "label":
        text = _("Which column of {source} holds the answer: {names}?", source=source, names=names)
    if len(candidates) < 2 and role == "label":
        text = _("No column of {source} can hold the answer.", source=source)
        if candidates:
            text = _("Is {names} of {source} the answer?", names=names, source=source)
        action = _(
            "Choose other columns, or make labels by answering questions: under Data, or by "
            "`python -m finetune label`."
        )
        answers = [chosen(role, name) for name in candidates]
        return Finding("unlabelled", "blocks", text, action, remedies=answers)
    if not candidates:
        text = _("No column of {source} can hold a text.", source=source)
    joint = _joint_labels(candidates, cells) if role == "label" else ()
    answers = [*joint, *(chosen(role, name) for name in candidates[:_MOST_ANSWERS])]
    return question("columns", text, answers)


def unread_split(cells: Sample, used: ColumnNames) -> list[Finding]:
    """Warn of a column that says which rows are for training and which for testing. `cells` are a
    sample; the columns that are `used` have a role."""
    others = [name for name in cells if name not in used]
    values = {name: column_guess.describe_cells(cells[name]).values for name in others}
    split = column_guess.SPLITS
    found = [name for name in others if len(values[name]) > 1 and values[name] <= split]
    if not found:
        return []
    title = _(
        "The column {column!r}, which tells training from testing, is not read.", column=found[0]
    )
    action = _(
        "Its rows are trained on and validated with alike. To keep them apart, save each part as a "
        "file of its own."
    )
    return [remark("split-column", title, action, severity="warns")]


def _joint_labels(names: Sequence[str], cells: Sample) -> Iterator[Remedy]:
    """Make the buttons that read several columns as labels: columns of marks, those with one name
    but for a number, or if there are neither all that repeat their values."""
    profiles = {name: column_guess.describe_cells(cells.get(name, ())) for name in names}
    marked = [name for name, profile in profiles.items() if column_guess.has_marks(profile)]
    few = [name for name in names if name in marked or profiles[name].kind in ("few", "lists")]
    stems = Counter(map(column_guess.stem, few))
    numbered = [name for name in few if stems[column_guess.stem(name)] > 1 and name not in marked]
    for joint in [marked, numbered] if max(len(marked), len(numbered)) > 1 else [few]:
        value = BETWEEN.join(joint)
        if len(joint) > 1 and parts_of(value, names) == joint:
            text = _("Several labels, from {names}", names=some(joint))
            if joint == marked:
                text = _("{names}: each is a label", names=some(joint))
                text = _("All of them, each is a label") if len(joint) == len(names) else text
            yield Remedy("label_column", value, text)


def chosen(role: Role, name: str) -> Remedy:
    """A button that chooses a column as the first text or the answer."""
    text = _("{name!r} is the first text", name=name)
    if role == "label":
        text = _("{name!r} is the answer", name=name)
    return Remedy(f"{role}_column", name, text)


def _check_column(role: Role, column: str, columns: Mapping[str, str], source: str) -> None:
    if role == "label" and (parts := parts_of(column, columns)):
        for part in parts:
            _check_column("label", part, columns, source)
        return
    if column not in columns:
        raise DataError(
            "{source} has no column {column!r}; it has {columns}.",
            "Choose one of them as {field}.",
            source=source,
            column=column,
            columns=some(list(columns)),
            field=f"{role}_column",
        )
    reason = columns[column]
    if reason and (reason != NESTED or role not in ("label", "status")):
        raise DataError(
            "The column {column!r} {reason}.",
            "Choose another one as {field}.",
            column=column,
            reason=reason,
            field=f"{role}_column",
        )
