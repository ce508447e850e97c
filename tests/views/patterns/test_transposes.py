"""Two copies whose strides compose to identity, with nothing between that needed the order."""

import numpy as np
import pytest

from advisor.views.patterns.transposes import RoundTrips, Turn
from tests.build import Trace

B, L, D = 4, 512, 256


def strides(shape, order):
    """Of a dense tensor whose axes lie in memory in that order, outermost first."""
    found, step = [0] * len(shape), 1
    for axis in reversed(order):
        found[axis], step = step, step * shape[axis]
    return found


def turn(shape, target, source):
    return Turn.create(shape, strides(shape, target), strides(shape, source))


def test_a_transpose_and_its_reverse():
    there, back = turn([B, D, L], (0, 1, 2), (0, 2, 1)), turn([B, L, D], (0, 1, 2), (0, 2, 1))
    assert there == Turn((B, L, D), (0, 2, 1)) and there.inverse == back and back.inverse == there


def test_axes_that_stay_together_are_one():
    assert turn([B, 8, 64, D], (0, 2, 1, 3), (0, 1, 2, 3)) == turn([B, 64, 8, 2, D // 2], (0, 1, 2, 3, 4), (0, 2, 1, 3, 4))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_copy_that_keeps_the_order_is_no_turn(order):
    assert turn([B, L, D], order, order) is None


def test_a_copy_that_repeats_elements_is_no_turn():
    assert Turn.create([B, L], [L, 1], [0, 1]) is None


def trips(*between, back=(0, 2, 1), recorded=True):
    """Each step: a turn, what is between, a turn."""
    trace = Trace()
    for s in range(4):
        at = 500.0 * s
        trace.step(at, 499, s + 1)
        shapes = [B, D, L], [B, L, D]
        for k, (name, shape, source) in enumerate(
            [("aten::copy_", shapes[0], (0, 2, 1)), *((n, None, None) for n in between), ("aten::copy_", shapes[1], back)]
        ):
            dims = [shape, shape] if shape else [[B, D, L]]
            trace.op(name, at + 30 * k, 28, dims)
            trace.rows["cpu_ops"][-1]["strides"] = str([strides(shape, (0, 1, 2)), strides(shape, source)]) if shape else ""
            kernel = "nvjet_sm90_tst" if name == "aten::bmm" else "vectorized_elementwise_kernel"
            trace.launch(at + 30 * k + 5, at + 30 * k + 12, at + 30 * k + 32, kernel)
    for row in trace.rows["cpu_ops"] if not recorded else ():
        row["dims"] = row["types"] = row["strides"] = ""
    return trace.get(RoundTrips)


def test_without_strides_copies_that_may_be_trips_are_untold():
    found = trips("aten::mul", "aten::relu", recorded=False)
    assert not len(found.there) and found.untold.tolist() == [0, 3, 4, 7, 8, 11]
    assert not len(trips("aten::bmm", recorded=False).untold), "a product may need what was turned"
    assert not len(trips("aten::mul").untold)


def test_a_round_trip_around_pointwise_work():
    found = trips("aten::mul", "aten::relu")
    assert len(found.there) == 3 and (found.back - found.there == 3).all()


def test_a_product_may_need_what_was_turned():
    assert not len(trips("aten::bmm").there)


def test_another_turn_does_not_undo_it():
    assert not len(trips("aten::mul", back=(0, 1, 2)).there)
    assert trips("aten::mul").there.dtype == np.int64


@pytest.mark.parametrize("needed_turned", [False, True])
def test_what_a_trip_leaves_in_the_backward_pass(needed_turned):
    flat, turned = [B, L, D], [B, D, L]
    there, back = (strides(turned, (0, 1, 2)), strides(turned, (0, 2, 1))), (strides(flat, (0, 1, 2)), strides(flat, (0, 2, 1)))
    straight = (strides(turned, (0, 1, 2)),) * 2
    ops = (
        ("copy_", turned, there, False),
        ("relu", turned, straight, False),
        ("copy_", flat, back, False),
        ("threshold_backward", turned, there[::-1], True),  # the gradient comes turned, the result of the forward pass lies straight
        ("copy_", flat, back, True),  # and is turned for what comes before
        ("add" if needed_turned else "mul", turned, there if needed_turned else straight, not needed_turned),
    )
    trace = Trace()
    for s in range(3):
        trace.step(200.0 * s, 199, s + 1)
        for k, (name, shape, lie, backward) in enumerate(ops):
            at = 200.0 * s + 20 * k
            if backward:
                trace.op(f"autograd::engine::evaluate_function: {name}", at, 18)
            kernel = "direct_copy_kernel_cuda" if name == "copy_" else name
            trace.op(f"aten::{name}", at + 1, 15, [shape, shape]).launch(at + 3, at + 8, at + 18, f"void at::native::elementwise_kernel<128, 4, {kernel}>")
            trace.rows["cpu_ops"][-1]["strides"] = str([*lie]).replace(" ", "")
    found = trace.get(RoundTrips)
    assert [found.there.tolist(), found.back.tolist()] == [[0, 6], [2, 8]]
    # Where the forward pass reads a turned tensor beside another too, the order is there for more than the trips.
    assert [found.mixed.tolist(), found.left.tolist()] == ([[], []] if needed_turned else [[3, 9], [4, 10]])


def around(*products, order=(0, 2, 1), backward=False):
    """A batch turned, products with what is pointwise between, and turned back; a product by the shapes of its factors."""
    trace = Trace()
    flat, turned = [B, L, D], [B, D, L]
    for s in range(3):
        trace.step(300.0 * s, 299, s + 1)
        ops = [("aten::copy_", [turned] * 2, order), *(("aten::mm", factors, None) for factors in products), ("aten::copy_", [flat] * 2, order)]
        for k, (name, dims, source) in enumerate(ops):
            at = 300.0 * s + 30 * k
            if backward:
                trace.op("autograd::engine::evaluate_function: MmBackward0", at, 29)
            trace.op(name, at + 1, 26, dims)
            trace.rows["cpu_ops"][-1]["strides"] = str([strides(dims[0], (0, 1, 2)), strides(dims[0], source)]) if source else ""
            trace.launch(at + 5, at + 12, at + 32, "nvjet_sm90_tst" if name == "aten::mm" else "vectorized_elementwise_kernel")
    return trace.get(RoundTrips)


def test_products_along_the_turned_axis_can_multiply_from_the_left():
    found = around([[B * D, L], [L, 64]], [[B * D, 64], [64, L]])
    assert found.there.tolist() == [0, 4] and found.back.tolist() == [3, 7] and found.around_products.all()
    assert not trips("aten::mul").around_products.any()


@pytest.mark.parametrize("factors", [[[B * L, D], [D, D]], [[B * D, 64], [64, 64]], [[B, L * D], [L * D, L]]], ids=["another axis", "neither", "both axes"])
def test_other_products_need_it_turned(factors):
    assert not len(around(factors).there)


def test_in_training_nothing_is_said_of_products():
    assert not len(around([[B * D, L], [L, L]], backward=True).there)
