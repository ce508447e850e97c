"""What a compiler makes one kernel of, and the bytes that it must move, worked out by hand."""

import pytest

from advisor.knowledge.shortest_kernel import SHORTEST_US
from advisor.knowledge.structs import replace
from advisor.views.patterns.fusion import Fusion
from advisor.views.trace.shapes import Shapes
from tests.build import Trace

ROWS, CLASSES = 1024, 4096
LOGITS, A_ROW = [ROWS, CLASSES], [ROWS, 1]
HALF = ROWS * CLASSES * 2


def ops_in_a_row(*ops):
    """A step of kernels that follow each other: name of the op, name of the kernel, dims, types."""
    trace = Trace()
    for s in range(3):
        trace.step(1000 * s, 999, s + 1)
        for k, (name, kernel, dims, types) in enumerate(ops):
            at = 1000 * s + 20 * k
            trace.op(name, at, 18, dims, types).launch(at + 5, at + 8, at + 10, kernel, dur=8)
    return trace


def test_a_loss_that_picks_a_value_a_row_reads_its_logits_twice_as_they_lie_in_memory():
    trace = ops_in_a_row(
        ("aten::copy_", "elementwise_kernel", [LOGITS, LOGITS], ["float", "c10::BFloat16"]),
        ("aten::_log_softmax", "cunn_SoftMaxForward", [LOGITS], ["float"]),
        ("aten::gather", "_scatter_gather_elementwise_kernel", [LOGITS, A_ROW], ["float", "long int"]),
        ("aten::mean", "reduce_kernel", [A_ROW], ["float"]),
    )
    stretch = trace.get(Fusion).stretches[0]
    assert len(stretch.members) == 4
    assert stretch.least == stretch.likely == HALF, "a row of 16 kB stays on the chip, nothing of that size is left"


def test_a_gather_of_whole_rows_ends_a_stretch():
    trace = ops_in_a_row(
        ("aten::mul", "vectorized_elementwise_kernel", [LOGITS], ["float"]),
        ("aten::gather", "_scatter_gather_elementwise_kernel", [LOGITS, LOGITS], ["float", "long int"]),
        ("aten::add", "vectorized_elementwise_kernel", [LOGITS], ["float"]),
    )
    assert not trace.get(Fusion).stretches


def test_complex_numbers_are_not_fused():
    chain = [("aten::mul", "vectorized_elementwise_kernel", [LOGITS, LOGITS]), ("aten::add", "vectorized_elementwise_kernel", [LOGITS, LOGITS])]
    assert ops_in_a_row(*((*op, ["float", "float"]) for op in chain)).get(Fusion).stretches
    assert not ops_in_a_row(*((*op, ["float", "c10::complex<float>"]) for op in chain)).get(Fusion).stretches
    told = ops_in_a_row(*((name, f"{kernel}<4, MulFunctor<c10::complex<float> > >", None, None) for name, kernel, _ in chain))
    assert not told.get(Fusion).stretches, "kernels' names tell it where no types were recorded"


@pytest.mark.parametrize(
    ("kernel", "passes", "kernels"),
    [("batch_norm_collect_statistics_kernel", 3, 2), ("batch_norm_transform_input_kernel", 2, 1)],
)
def test_only_a_norm_that_takes_statistics_reads_its_input_again(kernel, passes, kernels):
    trace = ops_in_a_row(
        ("aten::native_batch_norm", kernel, [[32, 64, 56, 56]], ["float"]),
        ("aten::relu", "vectorized_elementwise_kernel", [[32, 64, 56, 56]], ["float"]),
    )
    stretch = trace.get(Fusion).stretches[0]
    assert stretch.likely == passes * 32 * 64 * 56 * 56 * 4, "read, perhaps again, written"
    assert stretch.kernels == kernels


def test_casts_of_weights_stay_launches_beside_what_is_done_with_activations():
    x, wide, bias = [8, 128, 768], [768, 3072], [3072]
    trace = ops_in_a_row(
        ("aten::gelu", "vectorized_elementwise_kernel", [x], ["float"]),
        ("aten::copy_", "elementwise_kernel", [bias, bias], ["c10::Half", "float"]),
        ("aten::copy_", "elementwise_kernel", [wide, wide], ["c10::Half", "float"]),
        ("aten::copy_", "elementwise_kernel", [x, x], ["c10::Half", "float"]),
        ("aten::mm", "nvjet_sm90_hsh_128x128", [x, wide], ["c10::Half", "c10::Half"]),
    )
    fusion = trace.get(Fusion)
    (stretch,) = fusion.stretches[:1]
    assert (stretch.kernels, stretch.apart) == (1, 2)
    assert fusion.launches[0] == 3 and fusion.saved == len(fusion.stretches)


def test_without_shapes_a_cast_right_before_another_stays_a_launch():
    trace, ops = Trace(), ("gelu", "copy_", "copy_", "copy_", "mm")
    for s in range(3):
        trace.step(1000 * s, 999, s + 1)
        for k, name in enumerate(ops):
            at = 1000 * s + 20 * k
            if name == "copy_":
                trace.op("aten::_to_copy", at - 0.5, 19)
            kernel = "nvjet_sm90_hsh_128x128" if name == "mm" else "vectorized_elementwise_kernel"
            trace.op(f"aten::{name}", at, 18).launch(at + 5, at + 8, at + 10, kernel, dur=8)
    assert {(stretch.kernels, stretch.apart) for stretch in trace.get(Fusion).stretches} == {(1, 2)}


def test_a_cast_that_the_stretch_reads_is_no_launch_of_its_own():
    x, table = [8, 128, 768], [128, 768]
    trace = ops_in_a_row(
        ("aten::copy_", "elementwise_kernel", [table, table], ["c10::Half", "float"]),
        ("aten::mul", "vectorized_elementwise_kernel", [x, table], ["c10::Half", "c10::Half"]),
        ("aten::add", "vectorized_elementwise_kernel", [x, x], ["c10::Half", "c10::Half"]),
    )
    assert trace.get(Fusion).stretches[0].apart == 0


def test_what_small_tensors_broadcast_to_is_never_written():
    """Differences of two sets of 2048 points, squared and summed: 12.6 million values a pass, of which none is read before."""
    first, second, apart = [2048, 1, 3], [1, 2048, 3], [2048, 2048, 3]
    distances = (
        ("aten::sub", "elementwise_kernel", [first, second, []], ["float", "float", "Scalar"]),
        ("aten::pow", "vectorized_elementwise_kernel", [apart, []], ["float", "Scalar"]),
        ("aten::sum", "reduce_kernel", [apart], ["float"]),
    )
    (stretch, *_) = ops_in_a_row(*distances).get(Fusion).stretches
    assert stretch.most == 0 and stretch.known and len(stretch.full) == 3, "beside what they make the points cost nothing to read"
    assert stretch.fused_us(4.0e12) == (SHORTEST_US,) * 3


def test_a_comparison_makes_a_byte_a_value():
    x = [4096, 1024]
    mask = (
        ("aten::gt", "vectorized_elementwise_kernel", [x, []], ["float", "Scalar"]),
        ("aten::logical_not", "vectorized_elementwise_kernel", [x], ["bool"]),
    )
    (stretch, *_) = ops_in_a_row(*mask).get(Fusion).stretches
    assert stretch.likely == 4096 * 1024 * (4 + 1), "floats are read, a mask is written"


@pytest.mark.parametrize("op", ["aten::normal_", "aten::uniform_", "aten::native_dropout"])
def test_random_numbers_are_made_at_a_rate_of_their_own(op):
    draws = ((op, "distribution_elementwise_grid_stride_kernel", [LOGITS], ["float"]), ("aten::mul", "vectorized_elementwise_kernel", [LOGITS], ["float"]))
    assert ops_in_a_row(*draws).get(Fusion).stretches[0].random == ROWS * CLASSES


def test_tensors_that_an_op_of_ones_own_reads_are_no_partners():
    weights = [[8_388_608, 1], [262_144]]
    own, framework = (ops_in_a_row((name, "dequantize_kernel", weights, ["unsigned char", "float"])) for name in ("bitsandbytes::dequantize_4bit", "aten::mul"))
    assert own.get(Shapes).made.max() == 8_388_608 and framework.get(Shapes).made.max() == 8_388_608 * 262_144


def test_what_is_joined_for_another_kernel_has_to_be_written():
    """A tensor is scaled twice and joined to another: nobody recorded the shapes in the list. The joined is read by a product, or by an addition."""
    scaled = [("aten::mul", "vectorized_elementwise_kernel", [LOGITS], ["float"])] * 2
    joins = ("aten::cat", "CatArrayBatchedCopy", [[], []], ["TensorList", "Scalar"])
    (ends,) = ops_in_a_row(*scaled, joins, ("aten::mm", "gemm", [LOGITS], ["float"])).get(Fusion).stretches[:1]
    assert ends.joined_us == 2 and ends.left == ROWS * CLASSES * 4
    (goes_on,) = ops_in_a_row(*scaled, joins, ("aten::add", "vectorized_elementwise_kernel", [[ROWS, 2 * CLASSES]], ["float"])).get(Fusion).stretches[:1]
    assert goes_on.joined_us == 0
    # At 1e12 bytes/s reading and writing the 16.8 MB that were made takes 33.6 µs, a generated kernel 1.5 times that: 50.3. Joining took 200 µs, all else 130.
    long = replace(ends, own_us=330.0, joined_us=200.0)
    more_us = 200 - 1.5 * 2 * 16.777216
    apart = replace(long, joined_us=0.0).fused_us(1e12)
    assert [a - b for a, b in zip(long.fused_us(1e12), apart, strict=True)] == pytest.approx([more_us] * 3)
    # What takes no longer than all else may have been made by it.
    short = replace(long, own_us=400.0)
    assert short.fused_us(1e12) == replace(short, joined_us=0.0).fused_us(1e12)
