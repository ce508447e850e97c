"""What a compiler makes of attention that is written out: one kernel where its patterns hold the spelling. The answers are Inductor's own, of torch 2.13."""

import pytest

from advisor.views.patterns.fused_attention import FusedAttentions
from tests.build import Trace

BATCH, HEADS, D = 4, 8, 64
KERNELS = {"aten::_softmax": "softmax_warp_forward", "aten::bmm": "nvjet_sm90_tst"}


def known(*between, keys=256, dtype="c10::Half", axes=4, product="aten::matmul", training=False):
    """Whether a compiler puts one kernel in the place of two products with these ops between them."""
    lead, flat = ([BATCH, HEADS], [BATCH * HEADS]) if axes == 4 else ([BATCH * HEADS], [BATCH * HEADS])
    scores, head, turned = [keys, keys], [keys, D], [D, keys]
    trace = Trace()
    for s in range(4):
        at = 1000.0 * s
        trace.step(at, 999, s + 1)
        ops = [(None, head, turned), *((name, scores, None) for name in between), (None, scores, head)]
        for k, (name, first, second) in enumerate(ops):
            now = at + 20 * k
            if name is None:
                trace.op(product, now, 19, [[*lead, *first], [*lead, *second]], [dtype] * 2)
                name, dims = "aten::bmm", [[*flat, *first], [*flat, *second]]
            else:
                dims = [[*lead, *first]]
            kernel = KERNELS.get(name, "vectorized_elementwise_kernel")
            trace.op(name, now + 1, 17, dims, [dtype] * len(dims)).launch(now + 5, now + 12, now + 30, kernel)
        if training:
            trace.op("autograd::engine::evaluate_function: MulBackward0", at + 900, 5).op("torch::autograd::AccumulateGrad", at + 901, 1)
    fused = trace.get(FusedAttentions)
    assert len(fused.found), "it is attention"
    return bool(fused.by_compiler.all())


SOFTMAX, MUL, DIV, ADD, CAST, DROP = (f"aten::{name}" for name in ("_softmax", "mul", "div", "add", "copy_", "native_dropout"))


@pytest.mark.parametrize(
    ("ops", "infers", "trains"),
    [
        ((MUL, SOFTMAX), True, False),
        ((MUL, SOFTMAX, CAST), True, False),
        ((DIV, SOFTMAX), True, True),
        ((DIV, ADD, SOFTMAX), True, True),
        ((MUL, ADD, SOFTMAX), False, False),
        ((SOFTMAX,), False, False),  # scaled before: a pattern of three axes alone
        ((DIV, "aten::masked_fill", SOFTMAX), False, False),
        ((MUL, SOFTMAX, DROP), True, True),
        ((MUL, SOFTMAX, CAST, DROP), True, False),
    ],
)
def test_the_spellings_that_inductor_knows(ops, infers, trains):
    assert known(*ops) is infers
    assert known(*ops, training=True) is trains


def test_batches_of_matrices_are_known_unscaled_and_untrained():
    assert known(SOFTMAX, axes=3, product="aten::bmm") and not known(MUL, SOFTMAX, axes=3, product="aten::bmm")
    assert not known(SOFTMAX, axes=3, product="aten::bmm", training=True)


def test_einsum_is_not_known():
    assert not known(MUL, SOFTMAX, product="aten::einsum")


def test_rows_off_alignment_are_padded_first():
    assert not known(MUL, SOFTMAX, keys=257) and known(MUL, SOFTMAX, keys=260)
    assert known(MUL, SOFTMAX, keys=257, dtype="float"), "nothing pads products in FP32"
