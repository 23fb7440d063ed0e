"""Small edits of a pair, and those among them that change a decision."""

from __future__ import annotations

import pytest

from finetune.inference.explain import Edit, find_flips, small_edits


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("negation", "Cats are lazy.", "Cats are not lazy."),
        ("negation", "We can swim.", "We cannot swim."),
        ("negation", "It is not open.", "It is open."),
        ("negation", "It isn’t open.", "It is open."),
        ("negation", "BIRDS CAN'T swim.", "BIRDS CAN swim."),
        ("negation", "Won't it work?", "Will it work?"),
        ("negation", "Open the can now", ""),  # a noun
        ("negation", "Is it open?", ""),
        ("negation", "Der Hund schläft im Haus.", ""),  # not English
        ("number", "3 cats", "4 cats|6 cats"),
        ("number", "pay 1,250.50 now", "pay 1,251.50 now|pay 2,501.00 now"),
        ("number", "999,999 cats", "1,000,000 cats|1,999,998 cats"),
        ("number", "Agent 007", "Agent 008|Agent 014"),
        ("number", "0 cats", "1 cats"),  # twice nothing is no edit
        ("number", "at 10:30", "at 11:30|at 20:30|at 10:31|at 10:60"),
        ("number", "an MP3 on the 2nd", ""),
        ("number", "1234567890123456789", ""),
        ("drop", "The cat sat.", "Cat sat.|The sat.|The cat."),
        ("drop", "Yes, it works .", "It works .|Yes, works .|Yes, it ."),
        ("drop", "Fine 😀 day", "😀 day|Fine 😀"),
        ("drop", "cat", ""),  # an empty sentence is no question
        ("drop", "well-known facts", "facts|well-known"),
    ],
)
def test_a_sentence_is_negated_has_other_numbers_and_loses_a_word(
    kind: str, text: str, expected: str
) -> None:
    edits = [edit.sentence1 for edit in small_edits(text, None) if edit.kind == kind]
    assert "|".join(edits) == expected


def test_a_pair_is_swapped_made_the_same_and_edited_one_sentence_at_a_time() -> None:
    one, two = "Anna has 3 cats.", "Tom is not here."
    edits = {(edit.sentence1, edit.sentence2): edit for edit in small_edits(one, two)}
    assert edits.pop((two, one)).kind == "swap"
    assert edits.pop((one, one)).kind == edits.pop((two, two)).kind == "same"
    for (first, second), edit in edits.items():
        assert (first == one) != (second == two)
        assert edit.description.startswith(f"Sentence {2 if first == one else 1}: ")
    assert {edit.kind for edit in edits.values()} == {"negation", "number", "drop"}
    assert {edit.kind for edit in small_edits("a cat", "a cat")} == {"drop"}


def test_flips_are_the_surest_of_each_kind_first() -> None:
    kinds = ["drop", "swap", "drop", "negation", "number", "drop"]
    chances = [0.6, 0.99, 0.8, 0.7, 0.2, 0.9]  # of "yes"
    edits = [Edit(kind, f"{n}.", "a", None) for n, kind in enumerate(kinds)]
    answers = [
        ("yes" if chance >= 0.5 else "no", {"no": 1 - chance, "yes": chance}) for chance in chances
    ]
    flips = find_flips(edits, "no", answers)
    assert [(edits.index(flip.edit), flip.probability) for flip in flips] == [
        (1, 0.99), (5, 0.9), (3, 0.7), (2, 0.8), (0, 0.6)
    ]  # fmt: skip
    assert {flip.label for flip in flips} == {"yes"}
    # A threshold may decide for a class that is not the most probable.
    (flip,) = find_flips(edits[:1], "a", [("b", {"a": 0.6, "b": 0.4})])
    assert (flip.label, flip.probability) == ("b", 0.4)
