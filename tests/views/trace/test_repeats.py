"""Periods of a sequence, and the passes of a loop that it is made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.views.trace.repeats import FEWEST_REPEATS, longest_run, passes, repeats


def kinds(text):
    return np.array([ord(letter) for letter in text], np.int64)


def cut(text):
    return ["".join(text[k] for k in piece) for piece in passes(np.arange(len(text)), kinds(text))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("abcabcabc", [(3, "abcabcabc")]),
        ("xyabcabcabcz", [(3, "abcabcabc")]),
        ("abcabcab", []),
        ("abc" * 4 + "q" + "abc" * 3, [(3, "abc" * 4), (3, "abc" * 3)]),
        ("aaa", [(1, "aaa")]),
        (("ab" * 3 + "c") * 3, [(7, ("ab" * 3 + "c") * 3)]),
        ("abcdefghij", []),
        ("aabb" * 3, [(4, "aabb" * 3)]),
    ],
    ids=str,
)
def test_periods_are_found_shortest_first_with_all_that_repeats(text, found):
    assert [(one.period, text[first:end]) for one in repeats(kinds(text)) for first, end in one.stretches.tolist()] == found


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abc" * FEWEST_REPEATS, ["abc"] * FEWEST_REPEATS),
        ("x" + "abc" * 6 + "y", ["x"] + ["abc"] * 6 + ["y"]),
        ("xyz" + "abc" * 4, ["xyz" + "abc" * 4]),
        ("abc" * 10 + "q" + "abc" * 10, ["abc"] * 10 + ["q"] + ["abc"] * 10),
        ("a" * 30, ["a"] * 30),
        ("a" * 29 + "b", ["a" * 29 + "b"]),
        ("abcabc", ["abcabc"]),
        ("", [""]),
    ],
    ids=str,
)
def test_a_loop_is_cut_where_a_pass_begins(text, pieces):
    assert cut(text) == pieces


def test_a_pass_may_do_one_thing_in_ten_otherwise():
    once = "abcdefghijklmnopqrst"
    assert cut(once * 4 + once.replace("k", "K") + once * 4) == [once] * 4 + [once.replace("k", "K")] + [once] * 4


@given(st.text("abc", max_size=80), st.text("abcdefghijkl", min_size=1, max_size=12), st.integers(0, 30))
def test_nothing_is_lost_and_nothing_changes_place(before, body, times):
    text = before + body * times
    assert "".join(cut(text)) == text


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(FEWEST_REPEATS, 12))
def test_what_repeats_whole_has_a_period_that_divides_it(body, times):
    """What comes once in it marks it."""
    body = [6, *body]
    found = [one for one in repeats(np.array(body * times)) if one.length == len(body) * times]
    assert found and len(body) % found[0].period == 0


@pytest.mark.parametrize(("good", "where"), [("", (0, 0)), ("..", (0, 0)), ("x", (0, 1)), (".xx.xxx.", (4, 7)), ("xx.xx", (0, 2))])
def test_the_longest_run_is_the_first_of_several(good, where):
    assert longest_run(np.array([letter == "x" for letter in good], bool)) == where
