"""Guess which columns hold the texts and the answer, by their cells first, then by their names."""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from finetune.config import NO_COLUMN
from finetune.data import review
from finetune.data.review import is_of_model
from finetune.runs.summary import ColumnNames
from finetune.tasks.cells import (
    NO_LABEL,
    clean_label,
    is_doubtful,
    label_text,
    mark_of,
    read_cell,
    read_number,
    read_value,
)
from finetune.tasks.classes import NEGATIVES, POSITIVES

Role = Literal["sentence1", "sentence2", "label", "status"]
ROLES: tuple[Role, ...] = ("sentence1", "sentence2", "label", "status")
Kind = Literal["unknown", "empty", "number", "date", "address", "id", "few", "lists", "short",
               "repeated", "text", "unusable"]  # fmt: skip

_PAIRS = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"),
    ("texta", "textb"), ("text1", "text2"), ("sentencea", "sentenceb"), ("sent1", "sent2"),
    ("1string", "2string"), ("claim", "evidence"), ("context", "hypothesis"), ("claim", "context"),
    ("document", "claim"), ("question", "sentence"), ("question", "passage"),
    ("question", "context"), ("question", "answer"), ("query", "passage"), ("query", "document"),
    ("query", "doc"), ("query", "title"), ("query", "producttitle"), ("query", "response"),
    ("context", "response"), ("headline", "body"), ("headline", "articlebody"),
    ("source", "target"), ("source", "paraphrase"), ("original", "paraphrase"),
    ("prediction", "reference"), ("candidate", "reference"),
    ("anchor", "target"), ("title1", "title2"), ("q1", "q2"), ("s1", "s2"), ("a", "b"),
    ("first", "second"), ("left", "right"),
)  # fmt: skip
# Sides: what precedes or follows the common name of a pair's two columns.
_SIDES = (
    ("1", "2"), ("a", "b"), ("left", "right"), ("l", "r"), ("ltable", "rtable"),
    ("first", "second"), ("", "2"), ("", "other"), ("", "second"), ("", "andere"), ("", "zweite"),
)  # fmt: skip
_SINGLES = (
    "sentence", "text", "tweet", "review", "reviewtext", "commenttext", "comment", "questiontext",
    "utterance", "message", "content", "document", "headline", "question", "query", "body", "post",
    "sms", "email", "abstract", "title", "statement", "claim", "prompt", "input", "v2",
)  # fmt: skip
# The first of these decides; two columns of the other lists raise a doubt.
_SURE_LABELS = (
    "label", "labels", "goldlabel", "isduplicate", "duplicate", "isparaphrase", "paraphrase",
    "isequivalent", "equivalent", "entailmentjudgment", "ismatch",
)  # fmt: skip
_LABELS = (
    "class", "category", "target", "quality", "stance", "verdict", "sentiment", "intent",
    "polarity", "emotion", "topic", "answer", "annotation", "accept", "same", "match", "v1",
    "output", "y",
)  # fmt: skip
_SCORES = ("rating", "stars", "score", "similarity", "relatednessscore")
_MANY_CLASSES = ("label", "labels", "goldlabel", "class", "category", "intent")
_LABEL_WORDS = {"label", "class", "category", "target", "sentiment", "intent", "stance", "verdict"}
# People, places and bookkeeping: taken for texts only if there are no other columns.
_NO_TEXTS = {
    "id", "idx", "ids", "index", "uid", "guid", "uuid", "key", "nr", "no", "number", "date", "time",
    "timestamp", "created", "url", "uri", "link", "author", "user", "username", "name", "location",
    "place", "address", "timezone", "annotator", "worker", "source", "file", "filename", "keyword",
    "genre", "parse", "year",
}  # fmt: skip
_IDS = {"id", "idx", "ids", "index", "uid", "guid", "uuid"}  # of these none is an answer
_FACTS = {"status", "users", "user", "user_id", "score", "agent", "annotator"}  # on another column
SPLITS = {"train", "training", "dev", "val", "valid", "validation", "test", "eval"}
_TEXT_KINDS: tuple[Kind, ...] = ("unknown", "text", "repeated", "short")
_WORDY = 3.0  # words in an average cell of a column of texts

_ADDRESS = re.compile(r"(?:[a-z][a-z+.-]*://|www\.)\S+|[^\s@]+@[^\s@]+\.\w+", re.IGNORECASE)
_DATE_PART = re.compile(r"\d+|[^\W\d_]+|[^\s\w]|_")
_DATE_WORDS = {
    "jan", "feb", "mar", "m\u00e4r", "apr", "may", "mai", "jun", "jul", "aug", "sep", "oct", "okt",
    "nov", "dec", "dez", "mon", "tue", "die", "wed", "mit", "thu", "don", "fri", "fre", "sat",
    "sam", "sun", "son", "t", "z", "am", "pm", "utc", "gmt", "pst", "pdt", "est", "edt", "cet",
    "st", "nd", "rd", "th", "\u5e74", "\u6708", "\u65e5", "\ub144", "\uc6d4", "\uc77c",
}  # fmt: skip
_WIDE = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")  # scripts without spaces


Doubts = dict[Role, Sequence[str]]  # the candidates for each role in doubt


@dataclass(frozen=True)
class Profile:
    """The kind of a column's cells, judged by a sample."""

    kind: Kind = "unknown"
    values: frozenset[str] = frozenset()  # distinct cells, in small letters
    measured: bool = False  # True for numbers with fractions, separated thousands or units


Profiles = Mapping[str, Profile]  # by column
Sample = Mapping[str, Sequence[Any]]  # cells by column


def describe_cells(cells: Sequence[Any]) -> Profile:
    """Classify a sample of a column's cells."""
    said = [own for cell in cells if not isinstance(own := read_cell(cell), list | dict)]
    texts = [clean_label(label_text(cell)) for cell in said if not is_doubtful(cell)]
    if len(cells) - len(said) > len(texts):
        return _describe_lists(cells)
    values = frozenset(text.lower() for text in texts)
    few = len(values) <= max(2, len(texts) // 2)

    def mostly(matches: Callable[[str], object]) -> bool:
        return sum(map(bool, map(matches, texts))) >= 0.9 * len(texts)

    kind: Kind = "short"
    counts = [max(len(text.split()), len(_WIDE.findall(text)) / 2) for text in texts]
    words = sum(counts) / max(1, len(texts))
    if not texts:
        kind = "empty"
    elif mostly(read_number):
        measured = any(number.is_measure for number in map(read_number, texts) if number)
        return Profile("few" if few and not measured else "number", values, measured)
    elif mostly(_ADDRESS.fullmatch):
        kind = "address"
    elif mostly(_is_date):
        kind = "date"
    elif words >= _WORDY:
        kind = "repeated" if few else "text"
    elif few:
        kind = "few"
        if len(texts) < len(said) and all(map(mark_of, values)):  # x, or nothing
            values |= {""}
    elif words < 1.2 and mostly(re.compile(r".*\d").match):
        kind = "id"
    return Profile(kind, values)


def _describe_lists(cells: Sequence[Any]) -> Profile:
    """Classify a column of lists and objects: its values are labels if they recur, or the only list
    that there is."""
    texts = {label_text(read_value(cell)) for cell in cells} - {""}
    split = {label for text in texts for label in text.split(";")} - {""}
    values = frozenset(split if len(texts) > 1 else texts)
    recur = len(values) <= max(2, len(cells) // 2)
    return Profile("empty" if not values else "lists" if recur else "unusable", values)


def _is_date(text: str) -> bool:
    parts = _DATE_PART.findall(text)
    numbers = sum(part.isdigit() for part in parts)
    return numbers > 1 and all(
        part.isdigit() or part in "-/.:,+" or part[:3].lower() in _DATE_WORDS for part in parts
    )


def plain_name(name: str) -> str:
    """Reduce a column's name to small letters and digits."""
    return re.sub(r"[\W_]+", "", name.lower())


def guess_columns(
    names: Sequence[str], cells: Sample | None = None, chosen: Mapping[Role, str] | None = None
) -> tuple[ColumnNames, Doubts]:
    """Guess the column of each role, "" for none, by the names of the columns and sample `cells` of
    each usable one; without these, only names count. Of the columns that a person has `chosen`, ""
    leaves a role open, and `NO_COLUMN` means none."""
    said = {role: (chosen or {}).get(role, "") for role in ROLES}
    default = Profile("unusable" if cells else "unknown")
    profiles = {}
    for name in names:
        own, first = (cells or {}).get(name), re.sub(r" \(\d+\)$", "", name)
        if own is None or first == name or (cells or {}).get(first) != own:  # no copy of another
            profiles[name] = default if own is None else describe_cells(own)
    free = {
        name: profile for name, profile in profiles.items()
        if name not in said.values() and profile.kind != "empty"
    }  # fmt: skip
    aside = {  # columns that say which rows count, or by whom or how surely another was answered
        name for name, profile in free.items()
        if review.certainty(name, profile.values) == 2
        or (name.rpartition(".")[0] in free and name.rpartition(".")[2] in _FACTS)
    }  # fmt: skip
    label, candidates, pairs = said["label"], list[str](), _known_pairs(free, said)
    if not label:
        candidates, pairs = _label_candidates(free, aside, said, names)
        plain = len(candidates) == 1 and not is_of_model(candidates[0])
        label = candidates[0] if plain and _is_answer(candidates[0], profiles) else ""
    texts = {
        name: profile for name, profile in free.items()
        if name != label and profile.kind not in ("unusable", "lists") and name not in aside
    }  # fmt: skip
    varied = {name: profile for name, profile in texts.items() if len(profile.values) != 1}
    texts = varied or texts  # what is the same in all rows tells nothing
    first, second, doubts = _guess_texts(texts, pairs, said)
    if not label:
        possible = _possible(free, candidates, {first, second} | aside)
        doubts["label"] = possible or [name for name in free if name in aside]
    status = said["status"]
    if label and not status:
        status, found = _guess_status(label, profiles, {first, second})
        doubts |= {"status": found} if found else {}
    return ColumnNames(first, second, label, "" if status == NO_COLUMN else status), doubts


def _is_answer(name: str, profiles: Profiles) -> bool:
    """False if a column is one of people, places or bookkeeping, or if another one that is still
    empty is called as an answer is, and it is not."""
    if profiles[name].kind == "unknown":
        return True
    called = {own for own in profiles if plain_name(own) in (*_SURE_LABELS, *_LABELS)}
    empty = [own for own in called if profiles[own].kind == "empty"]
    return _last_word(name) not in _NO_TEXTS and (name in called or not empty)


def _label_candidates(
    free: Profiles, aside: Container[str], said: Mapping[Role, str], names: Sequence[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the columns that may hold the answer, a single one if it does, and the pairs that may
    be the texts. What people say comes before what a model suggests; the columns `aside` only say
    which rows count."""
    answers = {name: free[name] for name in free if name not in aside and not is_of_model(name)}
    named = [name for name in answers if _has_status(name, free)] or _named_labels(answers)
    pairs = _known_pairs({name: free[name] for name in free if name not in named}, said)
    in_pair = [name for name in pairs[0] if name in free] if pairs else []
    rest = {name: answers[name] for name in answers if name not in in_pair}
    found = named or _labels_by_cells(rest, names)
    numbers = [name for name in found if free[name].kind == "number"]
    few = [name for name in in_pair if free[name].kind in ("few", "lists", "repeated")]
    alone = len(few) == 1 or not rest
    if few and alone and not named and not _vary({*found} - {*numbers}, free):
        found, pairs = [*few, *numbers], []  # no pair, but a text and its answer
    if not _vary(found, free):
        decided = [name for name in free if review.is_decision(name, free[name].values)]
        models = [
            name for name in free if is_of_model(name) and free[name].kind in ("few", "lists")
        ]
        found = decided or found or models
    return found, pairs


def _guess_status(label: str, profiles: Profiles, texts: Container[str]) -> tuple[str, list[str]]:
    """Return the column that says which rows count, "" if there is none, and those that may."""
    if _has_status(label, profiles):
        return review.status_of(label, profiles), []
    found = {name: review.certainty(name, profile.values) for name, profile in profiles.items()}
    others = [name for name, sure in found.items() if sure and name != label and name not in texts]
    if found.get(label) == 2:
        return label, []
    return (others[0], []) if [found[name] for name in others] == [2] else ("", others)


def _has_status(name: str, profiles: Profiles) -> bool:
    """True if a column holds answers of people, and another one says which of them count."""
    status = review.status_of(name, profiles)
    kinds = ("lists", "unusable")  # a list with the status of each answer
    return status not in ("", name) and profiles[status].kind in kinds


def _vary(candidates: Iterable[str], free: Profiles) -> bool:
    """True if one of these columns may have several values."""
    kinds = ("unknown", "unusable")
    return any(free[name].kind in kinds or len(free[name].values) > 1 for name in candidates)


def _possible(free: Profiles, candidates: Container[str], taken: Container[str]) -> list[str]:
    """Every column that may be the answer: the candidates first, then those of few values, numbers
    or short texts; any other but an id if there are none."""
    kinds: tuple[Kind, ...] = ("few", "lists", "repeated", "number", "short", "unknown")
    others = [name for name in free if name not in taken and name not in candidates]
    likely = [
        name for name in others
        if free[name].kind in kinds and _vary([name], free) and _last_word(name) not in _NO_TEXTS
    ]  # fmt: skip
    usable = [name for name in others if free[name].kind != "unusable"]
    usable = [name for name in usable if _last_word(name) not in _IDS]
    return [*(name for name in free if name in candidates), *likely] or usable


def stem(name: str) -> str:
    """Remove the number from a column's name, such as `Labels (2)` or `label_2`, unless it is the
    number that a column without a name gets."""
    if re.fullmatch(r"column \d+", name):
        return name
    return re.sub(r"[\W_]*\d+\W*$", "", name.lower())


def named_label(names: Sequence[str]) -> str:
    """The column whose name says that it holds the answer; "" if in doubt."""
    named = _named_labels({name: Profile() for name in names})
    return named[0] if len(named) == 1 else ""


def _named_labels(free: Profiles) -> list[str]:
    """Columns that hold the answer by their names and cells; a single one is certain."""
    by_name = {plain_name(name): name for name in reversed(list(free))}

    def called(names: Iterable[str], *kinds: Kind) -> list[str]:
        columns = [by_name[name] for name in names if name in by_name]
        return [column for column in columns if free[column].kind in kinds]

    classes: tuple[Kind, ...] = ("few", "lists", "repeated", "unknown")

    if sure := called(_SURE_LABELS, *classes):
        return _numbered(free, sure[:1])
    other = called(_LABELS, *classes) or [
        name for name, profile in free.items()
        if profile.kind in classes and len(profile.values) != 1
        and (_last_word(name) in _LABEL_WORDS or re.match(r"(?i)(is|has)[\W_]", name))
    ]  # fmt: skip
    scores = called(_SCORES, *classes) + called((*_SURE_LABELS, *_LABELS, *_SCORES), "number")
    many = called(_MANY_CLASSES, "short", "id") or called(_SURE_LABELS[:3], "text", "unusable")
    return _numbered(free, other) or scores[:1] or many[:1]


def _labels_by_cells(free: Profiles, names: Sequence[str]) -> list[str]:
    """Columns that may hold the answer by their cells, if no name says it; a single one is
    certain."""
    unknown = [name for name, profile in free.items() if profile.kind == "unknown"]
    if unknown:  # the last of two or three columns without known names
        singles = [name for name in unknown if plain_name(name) in _SINGLES]
        rest = [name for name in unknown if name not in singles[:1]]
        return rest[-1:] if len(rest) == 1 or (not singles and len(names) in (2, 3)) else rest
    for kinds in (("few", "lists"), ("repeated",)):
        found = [
            name for name, profile in free.items()
            if profile.kind in kinds and len(profile.values) > 1 and not profile.values <= SPLITS
        ]  # fmt: skip
        if "repeated" in kinds and len(free) == len(found):  # one is the text
            found = []
        found = [name for name in found if _last_word(name) not in _NO_TEXTS] or found
        plain = [name for name in found if free[name].values <= NEGATIVES | POSITIVES]
        if len(found) > 1 and all(has_marks(free[name]) for name in found):
            return [name for name, profile in free.items() if has_marks(profile)]
        if found:
            return plain if len(plain) == 1 else _numbered(free, found)
    constant = [name for name, profile in free.items() if profile.kind == "few"]
    return constant or [name for name, profile in free.items() if profile.measured]


def _numbered(free: Profiles, names: Sequence[str]) -> list[str]:
    """Add the columns of labels that have one of these names but for a number."""
    stems = set(map(stem, names))
    return [
        name for name, profile in free.items()
        if name in names or (stem(name) in stems and profile.kind in ("few", "lists"))
    ]  # fmt: skip


def has_marks(profile: Profile) -> bool:
    """True if a column's cells say of a label whether a row has it."""
    marks = [mark_of(value) for value in profile.values - {NO_LABEL}]
    return profile.kind in ("few", "number") and None not in marks


def _known_pairs(free: Profiles, said: Mapping[Role, str]) -> list[tuple[str, str]]:
    """Pairs of columns whose names belong together; several if equally likely."""
    if said["sentence2"] == NO_COLUMN:
        return []
    texts = [said["sentence1"], said["sentence2"]]
    by_name = {plain_name(name): name for name in [*reversed(list(free)), *filter(None, texts)]}

    def fitting(pairs: Iterable[tuple[str, str]], refused: set[Kind]) -> list[tuple[str, str]]:
        found = [(by_name[a], by_name[b]) for a, b in pairs if a in by_name and b in by_name]
        if texts[0] and not texts[1]:
            found = [pair if pair[0] == texts[0] else pair[::-1] for pair in found]
        found = [
            pair for pair in dict.fromkeys(found)
            if all(not text or text == name for text, name in zip(texts, pair, strict=True))
            and not any(name in free and free[name].kind in refused for name in pair)
        ]  # fmt: skip
        return sorted(found, key=lambda pair: not all(_is_text(free, name) for name in pair))

    if known := fitting(_PAIRS, {"number", "date", "address", "id"}):
        return known[:1]
    affixed = fitting(
        _affixed(by_name), {"number", "date", "address", "id", "few", "lists", "unusable"}
    )
    return [pair for pair in affixed if all(_is_text(free, name) for name in pair)] or affixed[:1]


def _affixed(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of names that differ only in their side, without a third."""
    names = dict.fromkeys(names)  # a file may have 100,000
    pairs = []
    for first, second in _SIDES:
        for name in names:
            for stem in {name.removeprefix(first), name.removesuffix(first)} - {""}:
                if name == first + stem and f"3{stem}" not in names:
                    pairs.append((name, second + stem))
                if name == stem + first and f"{stem}3" not in names:
                    pairs.append((name, stem + second))
    return [(a, b) for a, b in pairs if a != b]


def _guess_texts(
    free: Profiles, pairs: Sequence[tuple[str, str]], said: Mapping[Role, str]
) -> tuple[str, str, Doubts]:
    """Guess the columns of both texts."""
    first, second = said["sentence1"], said["sentence2"]
    single = second == NO_COLUMN  # or one is chosen, or still to be guessed
    if pairs:
        ask: Doubts = {"sentence2": [name for pair in pairs for name in pair]}
        return *pairs[0], ask if len(pairs) > 1 else {}
    texts = _texts(free)
    wordy = [name for name in texts if _is_text(free, name)]
    if first:
        return first, "" if single else second, {} if second or not wordy else {"sentence2": wordy}
    by_name = {plain_name(name): name for name in reversed(texts)}
    named = next((by_name[name] for name in _SINGLES if name in by_name), "")
    if second or len(texts) < 2:
        first = texts[0] if len(texts) == 1 else named if single else ""
        return first, "" if single else second, {} if first else {"sentence1": texts or list(free)}
    if named and wordy in ([], [named]):
        return named, "", {}
    if len(texts) == len(free) == 2 and all(free[name].kind in _TEXT_KINDS for name in texts):
        return texts[0], texts[1], {}
    if any(free[name].kind in _TEXT_KINDS[1:] for name in texts):
        return texts[0], texts[1], {"sentence2": texts}
    return "", "", {"sentence1": texts}


def _texts(free: Profiles) -> list[str]:
    """The columns that may hold texts: wordy ones, or short ones if there are none, or any."""
    likely = {name: free[name] for name in free if _last_word(name) not in _NO_TEXTS} or free
    wordy, every = (
        [name for name in some if free[name].kind in ("text", "repeated")]
        for some in (likely, free)
    )
    short = [name for name in likely if free[name].kind in ("short", "unknown")]
    return wordy or every or short or (list(likely) if len(likely) == 1 else list(free))


def _is_text(free: Profiles, name: str) -> bool:
    return name not in free or free[name].kind == "text"


def _last_word(name: str) -> str:
    words = re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    return words[-1] if words else ""
