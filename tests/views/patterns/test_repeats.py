"""Passes of a loop in a run of kernels, by what each kernel is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.views.patterns.repeats import FEWEST_PASSES, passes


def cut(text):
    return ["".join(text[k] for k in piece) for piece in passes(np.arange(len(text)), np.array([ord(c) for c in text]))]


@pytest.mark.parametrize(
    ("run", "pieces"),
    [
        ("abc" * FEWEST_PASSES, ["abc"] * FEWEST_PASSES),
        ("xy" + "abc" * (FEWEST_PASSES + 1), ["xy"] + ["abc"] * (FEWEST_PASSES + 1)),
        ("a" * 30, ["a" * 30]),
        ("abc" * (FEWEST_PASSES - 1), ["abc" * (FEWEST_PASSES - 1)]),
        ("abcdefgh", ["abcdefgh"]),
    ],
)
def test_a_run_is_cut_where_a_pass_begins(run, pieces):
    assert cut(run) == pieces


def test_a_pass_now_and_then_does_one_thing_more():
    assert cut("abcd" * 8 + "abed" + "abcd" * 8) == ["abcd"] * 8 + ["abed"] + ["abcd"] * 8


@given(st.text("abc", max_size=80), st.text("abcdefghijkl", min_size=1, max_size=12), st.integers(0, 30))
def test_nothing_is_lost_and_nothing_changes_place(before, body, times):
    text = before + body * times
    assert "".join(cut(text)) == text


def test_passes_of_which_none_is_quite_like_the_next_stay_whole_or_are_cut_by_length():
    """One kernel of eleven differs in each pass, another one each time: nineteen of twenty come again, though no whole pass does."""
    body = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"
    text = "".join(body[:k] + chr(200 + k) + body[k + 1 :] for k in range(20))
    assert {len(piece) for piece in cut(text)[1:-1]} == {len(body)} and "".join(cut(text)) == text
