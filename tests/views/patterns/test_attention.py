"""Written-out attention is told by its shapes: who makes the scores, who uses them, and a softmax in between."""

import pytest

from advisor.views.patterns.attention import Attentions
from tests.build import Trace

B, N, D = 8, 256, 64
SCORES, HEAD = [B, N, N], [B, N, D]
FORWARD = (
    ("aten::bmm", [HEAD, [B, D, N]]),
    ("aten::_softmax", [SCORES]),
    ("aten::bmm", [SCORES, HEAD]),
)
BACKWARD = (
    ("aten::bmm", [[B, N, N], HEAD]),  # of the weights and the gradient: that of the values
    ("aten::bmm", [HEAD, [B, D, N]]),  # of the gradient and the values: that of the weights
    ("aten::_softmax_backward_data", [SCORES, SCORES]),
    ("aten::mul", [SCORES]),
    ("aten::bmm", [SCORES, HEAD]),
    ("aten::bmm", [[B, N, N], HEAD]),
)


def attentions(*ops, dtype="c10::BFloat16"):
    trace = Trace()
    for s in range(4):
        at = 1000.0 * s
        trace.step(at, 999, s + 1)
        for k, (name, dims) in enumerate(ops):
            kernel = "nvjet_sm90_tst" if name in ("aten::bmm", "aten::mm", "aten::addmm") else "vectorized_elementwise_kernel"
            kernel = "softmax_warp_forward" if "softmax" in name else "reduce_kernel" if name.split("::")[1] in ("amax", "sum") else kernel
            trace.op(name, at + 20 * k, 18, dims, [dtype] * len(dims)).launch(at + 20 * k + 5, at + 20 * k + 12, at + 20 * k + 30, kernel)
    found = trace.get(Attentions).found
    return found[: len(found) // 3] if found else found


def between(*ops):
    return (FORWARD[0], *ops, FORWARD[2])


def test_forward():
    (one,) = attentions(*FORWARD)
    assert len(one.members) == 3 and not one.backward and one.scores == (B, N, N) and one.dtype == "c10::BFloat16"
    assert one.flops == 2 * 2 * B * N * N * D and not one.masked and not one.dropped


def test_a_head_as_wide_as_its_sequence_is_long():
    square = [B, D, D]
    forward, backward = ([(name, [square] * len(dims)) for name, dims in ops] for ops in (FORWARD, BACKWARD))
    (one,) = attentions(*forward)
    assert not one.backward and one.scores == (B, D, D) and one.flops == 2 * 2 * B * D**3
    (one,) = attentions(*backward)
    assert one.backward and one.flops == 4 * 2 * B * D**3


def test_a_product_that_is_told_where_to_write_is_read_by_what_it_multiplies():
    q, k, v = HEAD, [B, D, N], [B, N, D]
    (one,) = attentions(("aten::bmm", [q, k, SCORES]), ("aten::_softmax", [SCORES]), ("aten::bmm", [SCORES, v, HEAD]))
    assert one.scores == (B, N, N) and one.flops == 2 * 2 * B * N * N * D and len(one.members) == 3


def test_a_bias_that_is_computed_keeps_its_mask():
    fill = ("aten::masked_fill_", [SCORES, [N, N]])
    (told,) = attentions(*between(fill, FORWARD[1]))
    assert told.causal and len(told.members) == 4
    (one,) = attentions(*between(("aten::add", [SCORES, SCORES]), fill, FORWARD[1]))
    assert one.masked and not one.causal and len(one.members) == 4, "the mask is written into the bias, as no call takes both"
    (shared,) = attentions(*between(("aten::add", [SCORES, [1, N, N]]), fill, FORWARD[1]))
    assert shared.causal and len(shared.members) == 5, "a bias of all sequences is made once"


def test_a_mask_of_words_is_not_causal_where_there_are_as_many_sequences():
    words = [N, N, N]
    forward = ("aten::bmm", [[N, N, D], [N, D, N]]), ("aten::add", [words, [N, 1, N]]), ("aten::_softmax", [words]), ("aten::bmm", [words, [N, N, D]])
    (one,) = attentions(*forward)
    assert one.masked and not one.causal


@pytest.mark.parametrize(("queries", "keys", "width"), [(256, D, D), (1, 128, 128)])
def test_a_head_as_wide_as_its_keys_are_many(queries, keys, width):
    q, k, scores, v = [B, queries, width], [B, width, keys], [B, queries, keys], [B, keys, width]
    (one,) = attentions(("aten::bmm", [q, k]), ("aten::_softmax", [scores]), ("aten::bmm", [scores, v]))
    assert one.scores == (B, queries, keys) and one.flops == 2 * 2 * B * queries * keys * width


@pytest.mark.parametrize("queries", [D - 1, D, D + 1])
def test_a_head_as_wide_as_there_are_queries(queries):
    scores = [B, queries, 1024]
    (one,) = attentions(("aten::bmm", [[B, queries, D], [B, D, 1024]]), ("aten::_softmax", [scores]), ("aten::bmm", [scores, [B, 1024, D]]))
    assert one.scores == (B, queries, 1024) and one.flops == 2 * 2 * B * queries * 1024 * D


def test_one_query_over_a_cache():
    (one,) = attentions(("aten::bmm", [[B, 1, D], [B, D, N]]), ("aten::_softmax", [[B, 1, N]]), ("aten::bmm", [[B, 1, N], [B, N, D]]))
    assert one.scores == (B, 1, N)


def test_layers_that_decode_a_word_with_heads_as_wide_as_it_has_heard_words_are_no_backward_pass():
    here, there = [[B, 1, D], [B, D, 80]], [[B, 1, 80], [B, 80, D]]
    layer = ("aten::bmm", here), ("aten::_softmax", [[B, 1, 80]]), ("aten::bmm", there)
    found = attentions(*layer, ("aten::add", [[B, D]]), *layer)
    assert [(one.backward, one.scores, len(one.members)) for one in found] == [(False, (B, 1, 80), 3)] * 2
    # Another length whose layers stand between: the first's values and the second's scores are no pair.
    others = ("aten::bmm", [[B, 1, D], [B, D, 20]]), ("aten::_softmax", [[B, 1, 20]]), ("aten::bmm", [[B, 1, 20], [B, 20, D]])
    assert len(attentions(*layer, *others, *layer)) == 3
    assert not attentions(("aten::bmm", here), ("aten::_log_softmax", [[B, 32_000]]), ("aten::bmm", there))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_backward(order):
    (one,) = attentions(*(BACKWARD[k] for k in order), *BACKWARD[2:])
    assert one.backward and len(one.members) == 6 and len(one.products) == 4 and one.flops == 4 * 2 * B * N * N * D


def test_forward_then_backward():
    assert [a.backward for a in attentions(*FORWARD, *FORWARD, *BACKWARD, *BACKWARD)] == [False, False, True, True]


@pytest.mark.parametrize(
    "ops",
    [
        (("aten::div", [SCORES]), ("aten::_softmax", [SCORES])),
        (("aten::triu", [SCORES]), ("aten::masked_fill_", [SCORES]), ("aten::_softmax", [SCORES]), ("aten::native_dropout", [SCORES])),
        (("aten::where", [SCORES]), ("aten::copy_", [SCORES]), ("aten::_softmax", [SCORES]), ("aten::copy_", [SCORES])),
        (("aten::amax", [SCORES]), ("aten::sub", [SCORES]), ("aten::exp", [SCORES]), ("aten::sum", [SCORES]), ("aten::div", [SCORES])),
    ],
)
def test_what_works_on_the_scores_belongs_to_it(ops):
    (one,) = attentions(*between(*ops))
    assert len(one.members) == len(ops) + 2


def test_a_mask_and_dropout_are_seen_and_a_square_mask_is_causal():
    mask = ("aten::add", [SCORES, [N, N]])
    (one,) = attentions(*between(mask, ("aten::_softmax", [SCORES]), ("aten::native_dropout", [SCORES])))
    assert one.masked and one.causal and one.dropped
    (one,) = attentions(*between(("aten::add", [SCORES, [B, 1, N]]), ("aten::_softmax", [SCORES])))
    assert one.masked and not one.causal


def test_a_square_mask_of_each_sequence_is_told_from_a_bias_and_from_one_of_keys():
    def masked(mask):
        (one,) = attentions(*between(("aten::add", [[2, 4, N, N], mask]), ("aten::_softmax", [SCORES])))
        return one

    assert masked([2, 1, N, N]).of_sequences and not masked([2, 1, N, N]).causal
    assert not any(masked(mask).of_sequences for mask in ([1, 1, N, N], [2, 4, N, N], [2, 1, 1, N], [1, 4, N, N]))


def test_the_backward_pass_of_a_causal_attention_is_causal():
    forward = between(("aten::add", [SCORES, [N, N]]), ("aten::_softmax", [SCORES]))
    assert [a.causal for a in attentions(*forward, *BACKWARD)] == [True, True]
    assert [a.causal for a in attentions(*FORWARD, *BACKWARD)] == [False, False]


def test_the_projection_of_the_values_between_the_products_stays():
    (one,) = attentions(*between(("aten::_softmax", [SCORES]), ("aten::addmm", [[64], [2048, 64], [64, 64]])))
    assert len(one.members) == 3


@pytest.mark.parametrize(
    "ops",
    [
        between(("aten::relu", [SCORES])),
        (("aten::mm", [[2048, 64], [64, 2048]]), ("aten::_softmax", [[2048, 2048]]), ("aten::mm", [[2048, 2048], [2048, 64]])),
        (FORWARD[0], FORWARD[1]),
        (FORWARD[1], FORWARD[2]),
        (("aten::bmm", [[B, 2, D], [B, D, 4]]), ("aten::_softmax", [[B, 2, 4]]), ("aten::bmm", [[B, 2, 4], [B, 4, D]])),
    ],
)
def test_what_is_no_attention(ops):
    assert not attentions(*ops)
