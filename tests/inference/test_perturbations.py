from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.inference.perturbations import LONGEST, MOST, Edit, find_flips, small_edits


def made(kind: str, text: str) -> list[str]:
    """What the edits of one kind make of a single sentence."""
    return [edit.sentence1 for edit in small_edits(text, None) if edit.kind == kind]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Cats are lazy.", "Cats are not lazy."),
        ("Anna will come.", "Anna will not come."),
        ("We can swim.", "We cannot swim."),
        ("She has been there.", "She has not been there."),
        ("They have visited Rome.", "They have not visited Rome."),
        ("Is it open?", "Isn't it open?"),
        ("WILL it work?", "WON'T it work?"),
        ("It is not open.", "It is open."),
        ("It isn't open.", "It is open."),
        ("It isn’t open.", "It is open."),
        ("Birds can't swim.", "Birds can swim."),
        ("Birds cannot swim.", "Birds can swim."),
        ("I won't go.", "I will go."),
        ("Won't it work?", "Will it work?"),
        ("He did n't fly .", "He did fly ."),
        ("It never rains.", "It rains."),
        ("The dog barks.", "It is not true that the dog barks."),
        ("Anna saw the dog.", "It is not true that Anna saw the dog."),
    ],
)
def test_a_negation_is_put_in_or_taken_out(text: str, wanted: str) -> None:
    assert wanted in made("negation", text)


@pytest.mark.parametrize(
    "text",
    [
        "Open the can now",  # a noun
        "Send my will",
        "He opened it in May",
        "She has two dogs",  # no tense
        "Voy a casa",  # not English
        "我喜欢猫。",
    ],
)
def test_no_negation_is_put_where_it_cannot_stand(text: str) -> None:
    assert not [one for one in made("negation", text) if not one.startswith("It is not true")]


def test_other_languages_get_no_english_words() -> None:
    for text in ("Voy a casa", "我喜欢猫。", "Der Hund schläft im Haus."):
        assert made("negation", text) == []


def test_a_negation_is_not_doubled() -> None:
    assert not any("not not" in one or "n't not" in one or "not have not" in one
                   for text in ("It is not so.", "Is it not so?", "It can't have been so.")
                   for one in made("negation", text))  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3 cats", ["4 cats", "6 cats"]),
        ("pay 1,250.50 now", ["pay 1,251.50 now", "pay 2,501.00 now"]),
        ("999,999 cats", ["1,000,000 cats", "1,999,998 cats"]),
        ("Agent 007", ["Agent 008", "Agent 014"]),
        ("0.5 km", ["1.5 km", "1.0 km"]),
        ("$5, please", ["$6, please", "$10, please"]),
        ("0 cats", ["1 cats"]),  # twice nothing is no edit
        ("at 10:30", ["at 11:30", "at 20:30", "at 10:31", "at 10:60"]),
        ("Three cats and TWO dogs", ["Four cats and TWO dogs", "Three cats and THREE dogs"]),
        ("the first of ninety", ["the second of ninety", "the first of hundred"]),
        ("no one came", []),
        ("an MP3 on the 2nd", []),
        ("1234567890123456789", []),
    ],
)
def test_each_number_is_changed(text: str, wanted: list[str]) -> None:
    assert made("number", text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("We met Anna.", ["We met Alex."]),
        ("Berlin is large.", []),  # a capital at the start says nothing
        ("It ended. Berlin is large.", []),
        ("In New York City I slept.", ["In Alex I slept."]),
        ("Then Mr. John Smith's aide left.", ["Then Alex's aide left."]),
        ("We met Alex and Anna.", ["We met Robin and Anna.", "We met Alex and Robin."]),
        ("See you on Sunday in December", ["See you on Monday in December",
                                           "See you on Sunday in January"]),
        ("the NASA and IBM", ["the Alex and IBM", "the NASA and Alex"]),
        ("ALL OF THIS IS LOUD", []),
        ("I think I'm late", []),
    ],
)  # fmt: skip
def test_each_name_is_replaced(text: str, wanted: list[str]) -> None:
    assert made("name", text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The cat sat.", ["Cat sat.", "The sat.", "The cat."]),
        ("Yes, it works, too .", ["It works, too .", "Yes, works, too .", "Yes, it, too .",
                                  "Yes, it works, ."]),
        ("Fine 😀 day", ["😀 day", "Fine 😀"]),
        ("cat", []),  # an empty sentence is no question
        ("well-known facts", ["facts", "well-known"]),
    ],
)  # fmt: skip
def test_each_word_is_left_out(text: str, wanted: list[str]) -> None:
    assert made("drop", text) == wanted


def test_of_a_long_sentence_only_content_words_are_left_out() -> None:
    words = [f"word{chr(97 + at % 26)}{chr(97 + at // 26)}" for at in range(60)]
    text = "the " + " of the ".join(words)
    dropped = made("drop", text)
    assert len(dropped) == LONGEST
    assert all(one.split().count("the") == 60 for one in dropped)
    assert len(made("drop", " ".join(words[:LONGEST]))) == LONGEST


def test_a_pair_is_swapped_and_made_the_same() -> None:
    found = {
        (edit.kind, edit.sentence1, edit.sentence2) for edit in small_edits("a cat", "the dog")
    }
    assert {("swap", "the dog", "a cat"), ("same", "a cat", "a cat"),
            ("same", "the dog", "the dog")} <= found  # fmt: skip


def test_of_a_pair_that_is_the_same_already_neither_is_an_edit() -> None:
    assert {edit.kind for edit in small_edits("a cat", "a cat")} == {"drop"}


def test_one_sentence_is_edited_at_a_time_and_named() -> None:
    for edit in small_edits("Anna has 3 cats.", "Tom is not here."):
        if edit.kind not in ("swap", "same"):
            first = edit.sentence1 != "Anna has 3 cats."
            assert first != (edit.sentence2 != "Tom is not here.")
            assert edit.description.startswith(f"In sentence {1 if first else 2}, ")
    assert all("sentence" not in edit.description for edit in small_edits("Anna has 3 cats.", None))


def test_the_size_is_the_number_of_words_that_differ() -> None:
    sizes = {edit.description: edit.size for edit in small_edits("The cat sat.", None)}
    assert sizes['"The" is left out.'] == 1
    assert sizes['"It is not true that" is put in front.'] == 5
    swap = next(edit for edit in small_edits("a cat sat", "a dog ran off") if edit.kind == "swap")
    assert swap.size == 6  # "a" stays; two of three against three of four, twice


def test_a_bound_cuts_both_sentences_alike() -> None:
    words = [f"w{chr(97 + at % 26)}{chr(97 + at // 26)}" for at in range(40)]
    one, two = (
        "It is 1 2 3 4 5 6 " + " ".join(words[:30]),
        "1 2 3 4 5 6 7 8 " + " ".join(words[:32]),
    )
    found = small_edits(one, two)
    assert len(found) == MOST
    drops = [edit for edit in found if edit.kind == "drop"]
    ofs = [
        sum(edit.sentence1 != one for edit in drops),
        sum(edit.sentence2 != two for edit in drops),
    ]
    assert abs(ofs[0] - ofs[1]) <= 2


PIECES = [
    "the", "The", "is", "not", "isn't", "can", "3", "1,000", "two", "Anna", "Paris", ".", ",", "?",
    "😀", "猫", "will",
]  # fmt: skip
TEXT = st.one_of(
    st.text(max_size=60), st.lists(st.sampled_from(PIECES), max_size=90).map(" ".join)
).filter(str.strip)


@settings(deadline=None)
@given(one=TEXT, two=st.none() | TEXT)
def test_edits_are_few_differ_and_are_always_the_same(one: str, two: str | None) -> None:
    found = small_edits(one, two)
    assert found == small_edits(one, two)
    assert len(found) <= MOST
    pairs = [(edit.sentence1, edit.sentence2) for edit in found]
    assert len(set(pairs)) == len(pairs)
    assert (one, two) not in pairs
    assert all(edit.size >= 1 and edit.description.endswith(".") for edit in found)
    assert all(first.strip() for first, _ in pairs)
    assert all((second is None) == (two is None) for _, second in pairs)
    assert all(second is None or second.strip() for _, second in pairs)


def an_edit(kind: str, size: int) -> Edit:
    return Edit(kind, f"{kind} {size}.", "a", None, size)


def test_flips_are_sorted_one_of_each_kind_first() -> None:
    asked = [an_edit("drop", 1), an_edit("swap", 9), an_edit("drop", 1), an_edit("negation", 1),
             an_edit("number", 1), an_edit("drop", 2)]  # fmt: skip
    chances = [0.6, 0.99, 0.8, 0.7, 0.2, 0.9]
    answers = [{"no": 1 - chance, "yes": chance} for chance in chances]
    labels = ["yes" if chance >= 0.5 else "no" for chance in chances]
    found = find_flips(asked, "no", labels, answers)
    assert [(flip.edit, flip.probability) for flip in found] == [
        (asked[2], 0.8), (asked[3], 0.7), (asked[1], 0.99), (asked[0], 0.6), (asked[5], 0.9)
    ]  # fmt: skip
    assert {flip.label for flip in found} == {"yes"}


def test_the_new_class_is_the_one_decided_for() -> None:
    answer = {"a": 0.3, "b": 0.3, "c": 0.4}
    for label in ("b", "c"):
        (flip,) = find_flips([an_edit("drop", 1)], "a", [label], [answer])
        assert (flip.label, flip.probability) == (label, answer[label])
        assert find_flips([an_edit("drop", 1)], label, [label], [answer]) == []
