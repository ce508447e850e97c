"""Reports, pages, help, errors, docstrings and documents are in the field's words and short sentences."""

import pytest

from tests.paths import slow
from tests.wording.areas import AREAS, SLOW_AREAS, Place, prose_of_markdown, prose_of_text
from tests.wording.counts import NAMES, allowed, counted, exceeding
from tests.wording.language import HABITS, count_words, distinct, faults
from tests.wording.names import is_empty, nameless


@pytest.mark.parametrize("area", AREAS)
def test_an_area_has_no_more_faults_than_it_had(area: str) -> None:
    assert not exceeding(counted(AREAS[area]()), allowed()[area]), f"python -m tests.wording {area}"


@slow
@pytest.mark.parametrize("area", SLOW_AREAS)
def test_reports_of_all_samples_too(area: str) -> None:
    assert not exceeding(counted(SLOW_AREAS[area]()), allowed()[area]), f"python -m tests.wording {area}"


def test_a_definition_is_named_by_more_than_function_words() -> None:
    found = list(nameless())
    assert len(found) <= allowed()[NAMES]["term"], f"name what it is or does: python -m tests.wording {NAMES}"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("What it costs is not known.", ["what-clause"]),
        ("What is a warp? A GPU runs it.", []),
        ("The one that gains most, and the other ones.", ["one", "one"]),
        ("Reported where the step waits.", ["where"]),
        ("torch.where(a, b) → where → a one-shot all-reduce.", []),
        ("It stands below.", ["stands"]),
        ("Only a measured step tells.", ["told"]),
        ("Kernels whose shapes change, of which two wait.", ["whose", "whose"]),
        ("A copy beside the kernel.", ["beside"]),
        ("The host issues the next kernel, which pointwise products need.", ["term", "term", "term"]),
        ("A matrix product, a dot product and a pointwise convolution.", []),
        ("The QQX limits it; the GPU does not.", ["undefined"]),
        ("`where` and `whose` are code, https://where.example/one too.", []),
        ("Short. " + "word " * 26 + ". Short.", ["long"]),
        ("word " * 25 + ".", []),
    ],
)
def test_each_fault_is_found(text: str, kinds: list[str]) -> None:
    assert sorted(fault.kind for fault in faults(text)) == sorted(kinds)


def test_a_habit_is_allowed_once_in_a_thousand_words() -> None:
    limit = dict.fromkeys(("words", *HABITS, "long"), 0)
    assert not exceeding({**limit, "words": 2999, "one": 2}, limit)
    assert exceeding({**limit, "words": 2999, "one": 3, "long": 1}, limit).keys() == {"one", "long"}


def test_a_sentence_counts_once_whatever_its_numbers() -> None:
    texts: list[Place] = [("a", "One step takes 3.5 ms. Fine."), ("b", "One step takes 12,000 ms.")]
    assert list(distinct(text for _, text in texts)) == ["One step takes 3.5 ms.", "Fine."]
    assert counted(texts)["one"] == 1 and counted(texts)["words"] == count_words("One step takes 3.5 ms. Fine.")


def test_code_is_not_prose() -> None:
    parts = list(prose_of_markdown("# A title\n\nRun `where` now.\n\n```sh\nwhere one\n```\n\n| a | b |\n|---|---|\n| one | two |\n"))
    assert parts == ["A title", "Run `x` now.", "a", "b", "one", "two"]


def test_a_terminal_s_lines_are_joined_to_paragraphs() -> None:
    assert list(prose_of_text("1 HIGH Title\n  first line\n  second line\n\nNext")) == ["1 HIGH Title", "first line second line", "Next"]


@pytest.mark.parametrize(("name", "empty"), [("_of", True), ("and_again", True), ("Beside", True), ("_kernels_beside", False), ("us_of_step", False)])
def test_a_name_of_function_words(name: str, empty: bool) -> None:
    assert is_empty(name) == empty
