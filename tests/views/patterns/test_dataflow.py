"""Which call reads what another made, and how sure that is."""

import pytest

from advisor.views.patterns.dataflow import REACH, Dataflow, Product, Sure, multiplied
from tests.views.patterns.texts import recorded


def flow(*lines):
    return recorded(list(lines)).get(Dataflow)


def sources(found, call):
    return [(edge.call, edge.sure) for edge in found.sources(call)]


def test_the_only_tensor_of_a_size_is_what_is_read():
    found = flow("mm 8x1024 1024x16", "relu 8x512", "mm 8x16 16x2048")
    assert sources(found, 2) == [(0, Sure.ONLY)]
    assert [(edge.call, edge.sure) for edge in found.readers(0)] == [(2, Sure.ONLY)]


def test_of_several_the_nearest_is_likelier_and_the_others_are_guesses():
    found = flow("relu 64", "sigmoid 64", "tanh 64")
    assert sources(found, 2) == [(1, Sure.NEAREST), (0, Sure.GUESS)]
    assert [(edge.call, edge.sure) for edge in found.readers(0)] == [(1, Sure.ONLY), (2, Sure.GUESS)]


def test_types_tell_tensors_of_one_size_apart():
    found = flow("copy_ 64:half 64", "relu 64", "mul 64:half 64:half")
    assert sources(found, 2) == [(0, Sure.ONLY)]


def test_what_a_pointwise_op_makes_is_broadcast_and_a_comparison_makes_truths():
    found = flow("add 8x1 1x16", "gt 8x16", "where 8x16:bool 8x16")
    assert sources(found, 1) == [(0, Sure.ONLY)]
    assert sources(found, 2) == [(1, Sure.ONLY), (0, Sure.ONLY)]


def test_what_a_pointwise_op_makes_has_the_widest_type_or_its_own_where_it_works_in_place():
    assert sources(flow("sub 8x16:bf16 16", "relu 8x16"), 1) == [(0, Sure.ONLY)]
    assert sources(flow("mul_ 8x16:bf16 16", "relu 8x16:bf16"), 1) == [(0, Sure.ONLY)]
    assert sources(flow("mul 8x16:bf16 -", "relu 8x16:bf16"), 1) == [(0, Sure.ONLY)]


def test_a_reduction_makes_what_shapes_do_not_tell():
    found = flow("sum 8x16", "relu 8x16")
    assert sources(found, 1) == []


def test_what_lies_further_off_than_reach_is_not_read():
    found = flow("relu 64", *["relu 32"] * REACH, "tanh 64")
    assert sources(found, REACH + 1) == []


def test_origins_pass_through_calls_of_a_token_alone():
    found = flow("mm 8x1024 1024x16", "copy_ 8x16:half 8x16", "mul 8x16:half -", "mm 8x16:half 16x32:half")
    assert list(found.origins(3, "mul")) == [2, 1]
    assert list(found.origins(3, "linear_pointwise")) == [2, 1, 0]
    assert list(found.uses(0, "linear_pointwise")) == [1, 2, 3]


def test_no_edge_leaves_a_step():
    trace = recorded(["relu 64"] * 12)
    trace.rows["annotations"].clear()
    for k in range(3):
        trace.step(80.0 * k, 80)
    found = trace.get(Dataflow)
    firsts = [call for call in range(len(found.op)) if not sources(found, call)]
    assert len(firsts) == len(set(found.part.tolist())) > 1


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ([(8, 4), (4, 2)], Product(1, 8, 4, 2)),
        ([(2,), (8, 4), (4, 2)], Product(1, 8, 4, 2)),  # addmm: a bias comes first
        ([(3, 2, 8, 4), (6, 4, 2)], Product(6, 8, 4, 2)),
        ([(6, 8, 4), (6, 4, 2), (6, 8, 2)], Product(6, 8, 4, 2)),  # the third takes the result
        ([(8, 4), (8, 4)], None),
        ([(8, 4)], None),
    ],
)
def test_sizes_of_a_product(shapes, sizes):
    assert multiplied(shapes) == sizes
