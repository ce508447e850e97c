"""repeated-heads: copies of keys and values for each head that shares them, told from all else that is expanded and copied."""

import json

import pytest

from advisor.knowledge.structs import replace
from advisor.views.patterns.shared_heads import RepeatedHeads, expansion
from tests.build import H200, Trace
from tests.rules.test_rules import clear, found, queued, skipped, widened

BF16 = "c10::BFloat16"
BATCH, SHARED, TIMES, KEYS, WIDTH = 4, 2, 4, 1024, 64
HEADS = SHARED * TIMES
GPU = 2000  # µs of a step: two copies of 200, attention of 400, a layer of 1190


def copy(trace, host, gpu, sizes=(BATCH, SHARED, TIMES, KEYS, WIDTH), spread=2, us=200, dtype=BF16):
    """`repeat_interleave` or `expand(...).reshape(...)`: the axis `spread` of the source has stride 0."""
    strides = [0 if k == spread else 1 << (8 - k) for k in range(len(sizes))]
    trace.op("aten::repeat_interleave", host, 8)
    trace.op("aten::copy_", host + 2, 5, [list(sizes), list(sizes), []], [dtype, dtype, "Scalar"])
    trace.rows["cpu_ops"][-1]["strides"] = json.dumps([[1] * len(sizes), strides, []])
    trace.launch(host + 3, gpu, gpu + us, "elementwise_kernel")


def one_call(trace, host, gpu, queries, dtype, mask):
    sizes = [[BATCH, HEADS, queries, WIDTH], *2 * [[BATCH, HEADS, KEYS, WIDTH]], *([[BATCH, 1, queries, KEYS]] if mask else [])]
    trace.op("aten::scaled_dot_product_attention", host, 12, sizes, [dtype] * len(sizes))
    trace.op("aten::_scaled_dot_product_cudnn_attention", host + 1, 10, sizes, [dtype] * len(sizes))
    trace.launch(host + 2, gpu, gpu + 400, "cudnn_generated_fort_native_sdpa_sm90_flash_fprop")


def products(trace, host, gpu, queries, dtype, mask):
    """Scores, their softmax, what they weigh; with a mask that the scores' product adds."""
    for k, (left, right) in enumerate((([queries, WIDTH], [WIDTH, KEYS]), ([queries, KEYS], [KEYS, WIDTH]))):
        added = [[BATCH * HEADS, 1, KEYS]] if mask and not k else []
        sizes = [*added, [BATCH * HEADS, *left], [BATCH * HEADS, *right]]
        trace.op("aten::baddbmm" if added else "aten::bmm", host + 5 * k, 4, sizes, [dtype] * len(sizes))
        trace.launch(host + 5 * k + 1, gpu + 200 * k, gpu + 200 * k + 199, "gemm")
    trace.op("aten::_softmax", host + 4.2, 0.7, [[BATCH * HEADS, queries, KEYS]], [dtype]).launch(host + 4.4, gpu + 199, gpu + 200, "softmax_kernel")


def decoder(attend=one_call, queries=1, dtype=BF16, mask=False, **copied):
    """Two copies, attention that reads them, a layer; the GPU is the bound."""

    def body(trace, host, gpu):
        copy(trace, host, gpu, dtype=dtype, **copied)
        copy(trace, host + 10, gpu + 200, dtype=dtype, **copied)
        attend(trace, host + 20, gpu + 400, queries, dtype, mask)
        trace.op("aten::mm", host + 34, 5, [[BATCH, 512], [512, 512]], [dtype] * 2).launch(host + 35, gpu + 800, gpu + 1990, "gemm")

    return queued(body, host=50, gpu=GPU)


@pytest.mark.parametrize("attend", [one_call, products])
def test_repeated_keys_and_values_are_found(attend):
    finding = found("repeated-heads", decoder(attend))
    assert finding.summary.startswith("2 key/value tensors per step are copied 4x") and "400 µs of copies" in finding.summary
    # Without the copies 400 µs go, and their launches; with keys that are read once attention takes 1.15 / 4 of its 400: 285 µs go too.
    assert finding.saving.expected_us == pytest.approx(400 + 400 * (1 - 1.15 / 4), rel=0.03)
    low, _ = widened("repeated-heads", 408, 685, GPU)  # two launches cost 4 µs each
    # The layer stays whole, and at least half of the 115 µs that attention then takes.
    assert (finding.saving.low_us, finding.saving.high_us) == (low, pytest.approx(GPU - 1190 - 115 / 2, rel=0.01))


def test_one_call_takes_shared_heads_as_they_are():
    """The call in place of products and softmax spares both copies too, if nothing keeps it from taking shared heads."""
    repeated, whole = (found("unfused-attention", decoder(products, queries=128, spread=spread)) for spread in (2, None))
    assert repeated.saving.expected_us - whole.saving.expected_us == pytest.approx(400, rel=0.03)
    assert repeated.saving.low_us == pytest.approx(whole.saving.low_us, abs=10)
    assert any("enable_gqa" in step for step in repeated.fix.steps) and not any("enable_gqa" in step for step in whole.fix.steps)


def test_the_fix_fits_how_attention_is_written():
    assert any("enable_gqa" in step for step in found("repeated-heads", decoder()).fix.steps)
    assert "enable_gqa" in found("repeated-heads", decoder()).fix.code.after
    folded = found("repeated-heads", decoder(products)).fix
    assert "rows of the matrix product" in folded.steps[0] and "times * words" in folded.code.after


@pytest.mark.parametrize(("attend", "queries", "attention"), [(one_call, 2, 0), (products, 2, 285), (products, 17, 0), (one_call, 17, 0)])
def test_attention_of_more_queries_reads_no_fewer_keys(attend, queries, attention):
    """The one call takes each head's queries by themselves; a product of 4 x 17 rows and more is no longer bound by what it reads."""
    finding = found("repeated-heads", decoder(attend, queries))
    assert finding.saving.expected_us == pytest.approx(400 + attention, rel=0.03)


@pytest.mark.parametrize(("how", "severity", "hint"), [({"dtype": "float"}, "low", "FP32"), ({}, "high", None)])
def test_what_no_fused_kernel_takes_is_no_more_than_low(how, severity, hint):
    finding = found("repeated-heads", decoder(**how))
    assert finding.severity == severity and any((hint or "enable_gqa") in step for step in finding.fix.steps)


@pytest.mark.parametrize(
    ("sizes", "spread"),
    [
        ((BATCH, SHARED, TIMES, KEYS, WIDTH // 2), 2),  # other tensors than those that attention reads
        ((BATCH, SHARED * TIMES, KEYS, WIDTH), None),  # a copy of what is not expanded
        ((TIMES, BATCH, SHARED, KEYS, WIDTH), 0),  # the whole batch, as for beams
        ((BATCH, SHARED, KEYS, WIDTH // 4, 4), 4),  # each value of a vector, as rotary angles are
    ],
)
def test_other_copies_are_quiet(sizes, spread):
    assert "no keys or values are repeated" in clear("repeated-heads", decoder(sizes=sizes, spread=spread))


@pytest.mark.parametrize(
    ("capability", "severity", "says"), [((9, 0), "high", "enable_gqa"), ((8, 0), "low", "no fused kernel takes a mask together with shared heads")]
)
def test_only_cudnn_takes_a_mask_with_shared_heads(capability, severity, says):
    """Which the one call chooses on Hopper and Blackwell."""
    trace = decoder(mask=True)
    trace.devices = (replace(H200, compute_capability=capability),)
    finding = found("repeated-heads", trace)
    assert finding.severity == severity and any(says in step for step in finding.fix.steps)
    assert ("enable_gqa=True" in finding.fix.code.after) == (severity == "high"), "what is refused would fall back to separate kernels"


@pytest.mark.parametrize(("how", "capability", "spared"), [({"dtype": "float"}, (9, 0), 0), ({"mask": True}, (8, 0), 0), ({"mask": True}, (9, 0), 400)])
def test_one_call_that_would_fall_back_takes_no_shared_heads(how, capability, spared):
    savings = []
    for spread in (2, None):
        trace = decoder(products, queries=128, spread=spread, **how)
        trace.devices = (replace(H200, compute_capability=capability),)
        savings += [found("unfused-attention", trace, min_saving_share=0.0).saving.expected_us]
    assert savings[0] - savings[1] == pytest.approx(spared, abs=12)


def test_what_a_product_adds_is_not_what_is_asked():
    """512 words ask, though the mask that the scores' product adds has one row: attention reads no fewer keys."""
    assert found("repeated-heads", decoder(products, queries=512, mask=True)).saving.expected_us == pytest.approx(400, rel=0.03)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ([BATCH * HEADS, 1, 64], "a product without a softmax is no attention"),
        ([BATCH * HEADS, 128, 64], "a product of as many rows neither"),
    ],
)
def test_other_products_read_no_keys(shape, why):
    def hyper(trace, host, gpu, *_):
        trace.op("aten::bmm", host, 4, [shape, [BATCH * HEADS, WIDTH, KEYS]], [BF16] * 2).launch(host + 1, gpu, gpu + 400, "gemm")

    assert "no keys or values are repeated" in clear("repeated-heads", decoder(hyper)), why


def test_heads_of_a_repeated_batch_are_not_shared():
    """Beams that share a prompt: [batch, beams, heads, keys, width], the beams without a stride."""
    assert "no keys or values are repeated" in clear("repeated-heads", decoder(sizes=(2, 2, HEADS, KEYS, WIDTH), spread=1))


def test_a_copy_that_a_product_makes_itself_is_no_call_of_its_own():
    """A product that broadcasts expands and copies inside."""

    def steps(around):
        def body(trace, host, gpu):
            if around:
                trace.op("aten::matmul", host, 18)
            copy(trace, host + 1, gpu)
            products(trace, host + 9, gpu + 200, 1, BF16, False)

        return queued(body, host=50, gpu=600)

    calls = [[one.call for one in steps(around).get(RepeatedHeads).found] for around in (True, False)]
    assert calls[0] and {*calls[0]} == {-1} and calls[1] and -1 not in calls[1]


@pytest.mark.parametrize("sizes", [[[[2, 3], [1]] * 5, []], [[-4, -2, 4, 1024, 64], [1]], [["x"], [1]], [[0, 2, 4, 1024, 64], []]])
def test_sizes_that_are_none_are_no_expansion(sizes):
    assert expansion(sizes, [[4, 4, 0, 1, 1], [1]]) is None


@pytest.mark.parametrize("sizes", [[[1], [32, 1, 64], [32, 64, 1024]], [[64], [4, 8, 1024, 64], [4, 8, 1024, 64]], [[4, 8, 1024, 64]]])
def test_inputs_of_other_shapes_are_quiet(sizes):
    def odd(name, kernel):
        return lambda trace, host, gpu, *_: trace.op(name, host, 4, sizes, [BF16] * len(sizes)).launch(host + 1, gpu, gpu + 400, kernel)

    for name, kernel in (("aten::baddbmm", "gemm"), ("aten::scaled_dot_product_attention", "flash_fwd_kernel")):
        assert "no keys or values are repeated" in clear("repeated-heads", decoder(odd(name, kernel)))


def test_tiled_heads_are_in_another_order():
    trace = decoder()
    for row in trace.rows["cpu_ops"]:
        row["name"] = row["name"].replace("repeat_interleave", "repeat")
    assert "no keys or values are repeated" in clear("repeated-heads", trace)


def test_keys_that_nothing_reads_are_quiet():
    def body(trace, host, gpu):
        copy(trace, host, gpu)
        trace.op("aten::mm", host + 20, 5, [[BATCH, 512], [512, 512]], [BF16] * 2).launch(host + 21, gpu + 200, gpu + 900, "gemm")

    assert "no keys or values are repeated" in clear("repeated-heads", queued(body, host=50, gpu=1000))


def test_the_saving_threshold_has_two_sides():
    assert found("repeated-heads", decoder(us=20))
    assert "threshold 90%" in clear("repeated-heads", decoder(us=20), min_saving_share=0.9)


def test_without_shapes_or_ops_it_is_skipped():
    trace = decoder()
    for row in trace.rows["cpu_ops"]:
        row["dims"] = row["types"] = ""
    skipped("repeated-heads", trace)
    del trace.rows["cpu_ops"]
    skipped("repeated-heads", trace)


@pytest.mark.parametrize(
    ("sizes", "strides", "times"),
    [
        ([4, 2, 3, 16, 8], [256, 128, 0, 8, 1], 3),  # (batch, shared, times, keys, width)
        ([4, 16, 2, 3, 8], [256, 16, 8, 0, 1], 3),  # (batch, keys, shared, times, width): repeated before heads are turned
        ([1, 4, 2, 3, 16, 8], [0, 256, 128, 0, 8, 1], 3),  # an axis of one has any stride
        ([4, 2, 3, 16, 8], [384, 128, 128, 8, 1], None),
        ([4, 2, 3, 16, 8], [0, 128, 0, 8, 1], None),  # the batch is repeated too: not heads alone
        ([1, 1, 3, 16, 8], [128, 128, 0, 8, 1], None),  # all that there is, spread: no heads of several that share
        ([2, 3, 16, 8], [128, 0, 8, 1], None),
        ([4, 2, 3, 16, 8], [256, 128, 0, 8], None),  # strides cut short
    ],
)
def test_an_expansion_is_told_by_one_stride_of_zero(sizes, strides, times):
    made = expansion([[1], sizes], [[1], strides])
    assert (made and made.times) == times


def test_a_trace_without_copies_is_quiet():
    trace = Trace()
    trace.step(0, 99).op("aten::mm", 0, 5, [[8, 8], [8, 8]]).launch(1, 2, 50, "gemm")
    assert "no keys or values are repeated" in clear("repeated-heads", trace)
