"""Loops over the parameters are known by the shapes that autograd accumulates gradients of."""

import pytest

from advisor.views.patterns.parameter_loops import ParameterLoops
from tests.build import Trace

SHAPES = [[64, 32], [64]] * 5
EMA = ("mul_", "add_")


def train(after, shapes=SHAPES, passes=1, steps=3):
    """Steps of forward and backward passes, then what `after(trace, at)` adds from 2000 µs on."""
    trace = Trace()
    for s in range(steps):
        at = 4000.0 * s
        trace.step(at, 3999, s + 1)
        for p in range(passes):
            t = at + 500 * p
            trace.op("aten::mm", t, 18, [[8, 32], [32, 64]]).launch(t + 8, t + 14, t + 30, "gemm")
            for k, shape in enumerate(shapes):
                grad(trace, t + 40 + 40 * k, shape)
        after(trace, at + 2000)
    return trace


def grad(trace, t, shape):
    trace.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", t, 38).op("torch::autograd::AccumulateGrad", t + 1, 36, [shape])
    trace.op("aten::add_", t + 2, 30, [shape, shape, []]).launch(t + 10, t + 20, t + 25, "vectorized_elementwise_kernel<add>")


def each(shapes=SHAPES, pattern=EMA, kernel="vectorized_elementwise_kernel<{}>", outer="", between=None):
    def body(trace, at):
        for k, (shape, name) in enumerate((s, n) for s in shapes for n in pattern):
            t = at + 20 * k
            if outer:
                trace.op(outer, t, 18, [shape])
            trace.op(f"aten::{name}", t + 1, 16, [shape, shape]).launch(t + 5, t + 12, t + 14, kernel.format(name))
            if between and k % len(pattern) == 0:
                between(trace, t + 18)

    return body


def loops(*given, **more):
    return train(*given, **more).get(ParameterLoops)


def test_a_running_mean_of_the_weights_is_a_loop():
    found = loops(each()).updating
    # 11 ops of forward and backward come before the 20 of each step's loop; the last step is not replayed.
    assert found.ops.tolist() == [31 * s + 11 + k for s in range(2) for k in range(20)]
    assert found.tensors == 10 and not len(found.waits)
    assert found.spans[0].tolist() == [2005, 6005]


def test_what_is_measured_beside_a_loop_is_no_part_of_it():
    """A mean before the loop, and another behind it that is read: no tensor of theirs is a parameter's."""

    def body(trace, at):
        trace.op("aten::mean", at - 40, 16, [[8, 64]]).launch(at - 35, at - 30, at - 28, "reduce_kernel")
        each()(trace, at)
        trace.op("aten::mean", at + 400, 16, [[8, 64]]).launch(at + 405, at + 412, at + 414, "reduce_kernel")
        trace.op("aten::item", at + 420, 20).copy(at + 422, 5, at + 430, at + 431, "Pinned", 4, kind="DtoH").call("cudaStreamSynchronize", at + 428, 10)

    found = loops(body).updating
    assert found.tensors == 10 and len(found.ops) == 2 * 20 and not len(found.waits)


@pytest.mark.parametrize("passes", [1, 3])
def test_several_backward_passes_do_not_hide_it(passes):
    assert loops(each(), passes=passes).updating.tensors == 10


def test_half_of_the_parameters_are_enough_and_fewer_are_not():
    many = SHAPES * 2
    assert loops(each(many[:10]), shapes=many).updating.tensors == 10
    assert not loops(each(many[:9]), shapes=many).updating.tensors


@pytest.mark.parametrize(
    "after",
    [
        each([[128, 7], [7]] * 5),  # of other shapes
        each([[64]] * 10),  # of one shape alone
        each(pattern=("copy_",)),  # into a flat buffer
        each(outer="aten::_foreach_mul_"),  # what foreach does by itself where its kernels cannot be used
        each(between=lambda trace, t: trace.op("aten::mm", t, 1, [[8, 8], [8, 8]]).launch(t, t + 3, t + 4, "gemm")),
        lambda trace, at: trace.note("Optimizer.step#Lion.step", at - 5, 500) and each()(trace, at),
        lambda trace, at: [grad(trace, at + 40 * k, shape) for k, shape in enumerate(SHAPES)],
    ],
    ids=["other shapes", "one shape", "copies", "foreach", "a product between", "an optimizer", "the backward pass"],
)
def test_what_is_no_loop_of_its_own(after):
    assert not len(loops(after).updating.ops)


def test_tensors_from_another_stream_are_left_alone():
    def body(trace, at):
        for k, shape in enumerate(SHAPES):
            t = at + 20 * k
            trace.op("aten::div_", t, 18, [shape]).launch(t + 5, t + 12, t + 14, "vectorized_elementwise_kernel<div>")

    def awaited(trace, at):
        for k, _ in enumerate(SHAPES):
            t = at - 500 + 20 * k
            trace.launch(t, at + 40 * k, at + 40 * k + 30, "ncclDevKernel_AllReduce", stream=20)
        for k, shape in enumerate(SHAPES):
            t = at + 20 * k
            trace.op("aten::div_", t, 18, [shape]).launch(t + 5, at + 40 * k + 31, at + 40 * k + 33, "vectorized_elementwise_kernel<div>")

    assert loops(body).updating.tensors == 10
    assert not loops(awaited).updating.tensors


ZERO = {"pattern": ("fill_",), "outer": "aten::zero_", "kernel": "vectorized_elementwise_kernel<FillFunctor<float>>"}


def test_gradients_zeroed_by_hand():
    found = loops(each(**ZERO))
    assert found.zeroing.tensors == 10 and len(found.zeroing.ops) == 20 and not len(found.updating.ops)
    assert loops(each([[64, 64]] * 10, **ZERO), shapes=[[64, 64]] * 10).zeroing.tensors == 10


@pytest.mark.parametrize("shapes", [SHAPES[:8], SHAPES * 2, [[64, 33], [64]] * 5], ids=["some", "twice", "other shapes"])
def test_other_fills_are_no_gradients(shapes):
    assert not len(loops(each(shapes, **ZERO)).zeroing.ops)


def test_without_shapes_nothing_is_known():
    trace = train(each())
    for row in trace.rows["cpu_ops"]:
        row["dims"] = ""
    found = trace.get(ParameterLoops)
    assert not len(found.updating.ops) and found.untold.tolist() == [31 * s + 11 + k for s in range(2) for k in range(20)], "what shapes would tell"
    assert not len(loops(each()).untold)
