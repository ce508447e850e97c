"""What a program writes out by hand, from the ops that it dispatches."""

import pytest

from advisor.views.trace.spellings import Spellings
from tests.build import Trace


def trace(steps, names):
    """Steps of 1000 µs in which the host dispatches ops one after another; one kernel each step."""
    made = Trace()
    for i in range(steps):
        made.step(i * 1000, 1000).launch(i * 1000 + 1, i * 1000 + 5, i * 1000 + 900)
        for k, (name, dims) in enumerate(names(i)):
            made.op(name, i * 1000 + 10 + 5 * k, 4, dims)
    return made


def seen(names, steps=4):
    return trace(steps, names).get(Spellings)


def test_a_loop_over_a_recurrent_cell():
    found = seen(lambda i: [("aten::lstm_cell", [[8, 64]])] * 16)
    assert found.cell == "lstm" and found.cells == 16
    assert not seen(lambda i: [("aten::lstm_cell", [[8, 64]])]).cell, "one cell per step is no loop"


def test_a_log_softmax_and_a_pick_are_a_cross_entropy():
    assert seen(lambda i: [("aten::log_softmax", [[8, 100]]), ("aten::unsqueeze", [[8]]), ("aten::gather", [[8, 100]])]).picked == 1
    assert seen(lambda i: [("aten::log_softmax", [[8, 100]]), ("aten::exp", [[8, 100]])]).picked == 0


@pytest.mark.parametrize("grows", [True, False])
def test_a_cache_that_grows_by_concatenation(grows):
    def names(i):
        past = 100 + i if grows else 100
        return [("aten::cat", [[[1, 4, past, 64], [1, 4, 1, 64]], []])] * 2

    assert seen(names, steps=6).grows == ((100, 104) if grows else None)  # the last mark only closes the window


def test_a_list_of_chosen_words_is_no_cache():
    def words(i):
        return [("aten::cat", [[[16, 2 + i], [16, 1]], []])]

    def keys(i):
        return [("aten::cat", [[[2 + i, 64], [1, 64]], []])]

    assert seen(words, steps=6).grows is None and seen(keys, steps=6).grows == (2, 6)


def test_a_cache_that_starts_again_with_the_next_text_grows():
    def names(i):
        return [("aten::cat", [[[1, 4, 100 + i % 5, 64], [1, 4, 1, 64]], []])] * 2

    assert seen(names, steps=11).grows == (100, 104)
    assert seen(lambda i: [("aten::cat", [[[1, 4, 100 - i, 64], [1, 4, 1, 64]], []])] * 2, steps=11).grows is None
