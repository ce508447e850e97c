"""Which kernels in a row a compiler makes one of, where only one of them computes, or none."""

import pytest

from advisor.views.patterns.fusion import Fusion
from tests.rules.test_rules import clear, found, queued

WHOLE, HALF, WEIGHT = [4096, 4096], [4096, 2048], [512, 512]
BYTES = 4096 * 4096 * 2
TYPES = {"gelu": ["float"], "layer_norm": ["float"], "cat": ["TensorList", "Scalar"]}
KERNELS = {
    "gather": "vectorized_gather_kernel",
    "sum": "reduce_kernel",
    "cat": "CatArrayBatchedCopy",
    "copy_": "direct_copy_kernel",
    "layer_norm": "vectorized_layer_norm_kernel",
    "mm": "nvjet_sm90_tst",
}
WIDER, NARROWER, SAME = ["float", "c10::BFloat16"], ["c10::BFloat16", "float"], ["c10::BFloat16"] * 2


def row(*ops):
    """A step of ops of 100 µs each, then a product: their names, shapes and types."""

    def body(trace, host, gpu):
        for k, (name, dims, types) in enumerate((*ops, ("mm", [WHOLE, WHOLE], SAME))):
            trace.op(f"aten::{name}", host + 5 * k, 4, dims, types)
            trace.launch(host + 5 * k + 1, gpu + 100 * k, gpu + 100 * k + 99, KERNELS.get(name, f"vectorized_elementwise_kernel<4, {name}_kernel_cuda>"))

    return queued(body, gpu=100 * (len(ops) + 1))


def wider(shape=WHOLE):
    return "copy_", [shape, shape], WIDER


def narrower(shape=WHOLE):
    return "copy_", [shape, shape], NARROWER


def moved(shape=WHOLE):
    return "copy_", [shape, shape], SAME


def joined(*parts):
    return "cat", [list(parts), []], ["TensorList", "Scalar"]


TIMES, SUM = ("mul", [WHOLE, WHOLE], ["float"] * 2), ("sum", [WHOLE, [], [], []], ["float", "ScalarList", "Scalar", ""])
GELU, NORM = ("gelu", [WHOLE], ["float"]), ("layer_norm", [WHOLE], ["float"])


@pytest.mark.parametrize(
    ("ops", "label"),
    [
        ([wider(), GELU, narrower()], "copy_ → gelu → copy_"),
        ([NORM, narrower()], "layer_norm → copy_"),
        ([joined(HALF, HALF), moved()], "cat → copy_"),
        ([moved(), joined(HALF, HALF), moved()], "copy_ → cat → copy_"),
    ],
)
def test_one_op_between_casts_and_what_is_joined_and_moved_on_are_chains(ops, label):
    assert {item.label for item in found("unfused-elementwise", row(*ops)).evidence} == {label}


@pytest.mark.parametrize(
    ("ops", "why"),
    [
        ([moved(), GELU], "a copy that changes no type"),
        ([GELU, narrower(WEIGHT)], "the cast of a weight"),
        ([wider(), narrower()], "casts alone"),
        ([moved(), moved()], "copies of one size, of which none need read the other"),
        ([joined(HALF, HALF), moved(HALF)], "what is moved is not what was joined"),
        ([moved(), joined(HALF, HALF)], "nothing moves what was joined"),
        ([joined(HALF, HALF), NORM], "what is joined is computed with: one norm is none"),
        ([joined(HALF, HALF), ("sum", [WHOLE], ["float"])], "nor is one sum"),
        ([TIMES, SUM], "one op and the sum of it"),
    ],
)
def test_look_alikes_are_no_chains(ops, why):
    assert "no 2 elementwise kernels" in clear("unfused-elementwise", row(*ops)), why


def test_copies_of_one_size_are_no_chain_however_short_one_may_be():
    clear("unfused-elementwise", row(moved(), moved()), min_chain=1)


def test_a_tensor_of_nothing_beside_takes_nothing_from_a_chain():
    nothing = ("copy_", [[0], [0]], SAME)
    assert found("unfused-elementwise", row(joined(HALF, HALF), moved(), nothing)).saving.expected_us > 100
    assert not row(NORM, moved(), nothing).get(Fusion).stretches[0].moved_on


@pytest.mark.parametrize("ops", [[wider(), GELU, narrower()], [joined(HALF, HALF), moved()]])
def test_what_is_read_and_what_is_left_cross_memory_once(ops):
    stretch = row(*ops).get(Fusion).stretches[0]
    assert stretch.least == stretch.likely == stretch.most == 2 * BYTES
