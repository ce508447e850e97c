"""graph-candidate: a note where all steps launch the same, quiet where a graph could not be captured or is in use."""

from textwrap import dedent
from types import SimpleNamespace

import numpy as np
import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.rules._graphs import severity_cap as _at_most
from advisor.rules.fixes import of_server
from advisor.rules.fixes.capturing import capturing as _capturing
from advisor.rules.fixes.capturing import compiling_first
from advisor.views.patterns.graph_capture import Capturable
from advisor.views.patterns.optimizer import OptimizerStep
from advisor.views.trace.program import Program
from tests.build import Trace
from tests.rules.test_rules import clear, found, repeat, skipped, small_kernels

PERIOD = 420


def step(n=20, wait=None, allocate=False, dims=None):
    def body(trace, at):
        for k in range(n):
            t = at + 20 * k
            trace.op("aten::mul", t, 18, dims(at) if dims else None).launch(t + 10, t + 15, t + 19, dur=4)
        if wait is not None:
            trace.call("cudaStreamSynchronize", at + 20 * wait + 19.2, 0.6)
        if allocate:
            trace.call("cudaMalloc", at + 20 * n, 5)

    return body


def test_equal_steps_are_a_note_that_counts_once():
    finding = found("graph-candidate", repeat(PERIOD, step()))
    assert finding.severity == "info" and "same 20 GPU ops" in finding.summary and "torch.cuda.graph" in finding.fix.code.after
    both = [built_in()["graph-candidate"], built_in()["launch-gap"]]
    report = run(repeat(PERIOD, step()).timeline(), both)
    assert report.findings[0].rule == "launch-gap", "the cause stands first"
    alone = run(repeat(PERIOD, step()).timeline(), both[1:])
    assert report.headline.predicted_step_us == alone.headline.predicted_step_us


@pytest.mark.parametrize(
    ("training", "compiling", "cell", "says"),
    [
        (True, 0.3, None, "medium"),  # compiling leaves the host most of its launches
        (True, 0.7, None, "info"),  # a graph gains little more
        (True, 0.01, None, "info"),  # launch-gap's own fix is a graph where compiling gains nothing
        (True, 0.01, 0.7, "info"),  # a library's cell gains as much
        (True, 0.01, 0.4, "medium"),
        (False, 0.3, None, "info"),  # inference is compiled into graphs
    ],
)
def test_a_graph_of_a_training_step_is_a_fix_where_compiling_gains_far_less(training, compiling, cell, says):
    gains = {"graph": 0.8, "compile": compiling, "cell": cell}
    replay = SimpleNamespace(corrected=None, share=lambda _, edit: gains[edit], expected_share=lambda edit: gains[edit])
    recurrent = SimpleNamespace(cells=() if cell is None else (1,), edit="cell")
    assert _at_most(Program(training=training, compiled=False), SimpleNamespace(edit="compile"), recurrent, replay, "graph") == says


def test_the_number_of_ops_has_two_sides():
    assert "19 GPU ops" in clear("graph-candidate", repeat(PERIOD, step(19)))
    assert found("graph-candidate", repeat(PERIOD, step(19)), min_ops=19)


def test_the_thresholds_on_idle_and_saving_have_two_sides():
    trace = repeat(PERIOD, step())  # idle for 340 of 420
    assert found("graph-candidate", trace, min_idle_share=0.7)
    clear("graph-candidate", trace, min_idle_share=0.9)
    assert found("graph-candidate", trace, min_saving_share=0.3)
    clear("graph-candidate", trace, min_saving_share=0.9)


def test_steps_that_differ_are_quiet():
    assert "different kernels" in clear("graph-candidate", repeat(PERIOD, step(dims=lambda at: [[int(at) + 1, 8]])))
    trace = Trace()
    for s in range(5):
        trace.step(PERIOD * s, PERIOD - 1, s + 1)
        step(20 + s % 2)(trace, PERIOD * s)
    clear("graph-candidate", trace)


def test_waits_and_allocations_cannot_be_captured():
    assert "waits for the GPU once per step" in clear("graph-candidate", repeat(PERIOD, step(wait=9)))
    assert found("graph-candidate", repeat(PERIOD, step(wait=20))), "what per step's last kernel made is read behind the graph"
    assert "allocated" in clear("graph-candidate", repeat(PERIOD, step(allocate=True)))
    trace = repeat(PERIOD, step())
    trace.call("cudaMalloc", PERIOD + 400, 5)
    assert found("graph-candidate", trace), "a pool that grows once is made by a graph too"
    trace.call("cudaFree", PERIOD + 406, 5)
    assert "allocated" in clear("graph-candidate", trace), "what is given back once is memory that was short"


def parted(n=20, sizes=(3, 4, 5, 6, 7), wait="aten::item", odd=-1):
    """Steps that work on n kernels, of other shapes in the step `odd`, look at something, and work on as many kernels of other shapes as `sizes` say."""
    trace, period = Trace(), 20 * (n + max(sizes)) + 40
    for s, size in enumerate(sizes):
        trace.step(period * s, period - 1, s + 1)
        for k in range(n + size):
            t = period * s + 20 * k + 20 * (k >= n)
            trace.op("aten::mul", t, 18, [[8 + (s == odd), 8] if k < n else [size, 8]]).launch(t + 10, t + 15, t + 19, dur=4)
        t = period * s + 20 * n
        trace.op(wait, t + 4, 10).call("cudaStreamSynchronize", t + 5, 8)
    return trace


@pytest.mark.parametrize("wait", ["aten::item", "aten::nonzero"])
def test_of_steps_that_differ_what_is_alike_is_a_graph(wait):
    finding = found("graph-candidate", parted(wait=wait))
    # The last of the five ends the trace: 80 of 98 kernels.
    assert (
        finding.title == "A CUDA graph could replay a part of the step" and "a part between waits with 82% of their kernels, of 20 kernels" in finding.summary
    )
    # The host spends 440 µs on them, the pause before them among these. A launch of 10 is left, and the read that waits for 20 kernels of 4, 0.6 apart.
    assert finding.severity == "info" and finding.saving.low_us == 0 and 300 < finding.saving.expected_us < 440 - 10 - 80 - 19 * 0.6


def test_of_steps_that_are_alike_what_comes_before_a_size_is_a_graph():
    trace = parted(sizes=(5,) * 5, wait="aten::nonzero")
    (part,) = trace.get(Capturable).parts
    # 80 of the 100 kernels of four steps: the last of the five ends the trace.
    assert (part.kernels, len(part.rows)) == (20, 80) and "80% of their kernels" in found("graph-candidate", trace).summary
    behind = parted(n=5, sizes=(20,) * 5, wait="aten::_unique2")
    assert "CUDA graph cannot" in clear("graph-candidate", behind), "the size may be another in the next step"


@pytest.mark.parametrize("inside", [0, 2])
def test_what_an_op_launches_to_find_a_size_is_no_part(inside):
    def body(trace, at):
        step(20)(trace, at)
        trace.op("aten::_unique2", at + 400 - 20 * inside, 15 + 20 * inside).call("cudaStreamSynchronize", at + 405, 5)
        trace.op("aten::mul", at + 420, 18, [[4]]).launch(at + 430, at + 435, at + 439, dur=4)

    assert (found if not inside else clear)("graph-candidate", repeat(480, body))


def test_a_part_is_of_every_step_and_of_many_kernels():
    assert "different kernels" in clear("graph-candidate", parted(n=19))
    assert "different kernels" in clear("graph-candidate", parted(odd=2))


def test_steps_without_a_kernel_have_no_part():
    trace = Trace()
    for s in range(5):
        trace.step(PERIOD * s, PERIOD - 1, s + 1)
        for k in range(20 + s % 2):
            t = PERIOD * s + 20 * k
            trace.op("aten::copy_", t, 18, [[8]]).copy(t + 10, 4, t + 15, t + 16)
    assert "different kernels" in clear("graph-candidate", trace)


def words(count, n=20, grows=False, shapes=True, first=0, copied_by="aten::copy_", size=8):
    """A step that makes words one by one, each by n kernels, the first by as many more, and copies each to the host."""

    def body(trace, at):
        for _ in range(first):
            trace.op("aten::add", at, 18, [[4, 4]]).launch(at + 10, at + 15, at + 19, dur=4)
            at += 20
        for word in range(count):
            dims = [[8 + word * grows, 64]] if shapes else None
            for k in range(n):
                t = at + (20 * n + 40) * word + 20 * k
                trace.op("aten::mul", t, 18, dims).launch(t + 10, t + 15, t + 19, dur=4)
            trace.op(copied_by, t + 19.5, 16).copy(t + 20, 15, t + 22, t + 24, kind="DtoH", size=size)

    return repeat((20 * n + 40) * count + 20 * (first + 1), body)


def test_passes_that_are_alike_are_a_graph_each():
    finding = found("graph-candidate", words(3))
    (part,) = words(3).get(Capturable).parts
    assert (part.kernels, part.times) == (20, 3) and "Capture an iteration" in finding.fix.steps[0]
    # Of 440 µs a word the device works 82; a graph is launched for 10, and its result copied.
    assert finding.saving.low_us == 0 and 0.6 < finding.saving.expected_us / (3 * 440 + 20) < 0.9
    assert "5 passes that launch the same 20 kernels" in found("graph-candidate", words(6, first=3)).summary, "the first of six sets something up"
    assert "CUDA graph cannot" in clear("graph-candidate", words(3, copied_by="aten::_unique2")), "a size, which happens to be alike"


@pytest.mark.parametrize(
    ("trace", "values"),
    [(words(3, grows=True), "2 values"), (words(2), "1 value"), (words(3, n=19), "2 values"), (words(3, shapes=False), "2 values")],
    ids=["a cache that grows, as in all steps", "few passes", "of few kernels", "whose shapes are not known"],
)
def test_other_passes_are_one_graph_if_nobody_looked_between_them(trace, values):
    finding = found("graph-candidate", trace)
    assert (
        f"copy {values} to the host in between" in finding.summary
        and finding.title.endswith("if it copied no values to the host")
        and finding.saving.low_us == 0
    )


@pytest.mark.parametrize("size", [8192, -1])
def test_a_result_or_what_may_be_one_is_no_value_that_is_looked_at(size):
    assert "CUDA graph cannot" in clear("graph-candidate", words(3, grows=True, size=size))


def test_values_and_sizes_of_masks_have_to_go_first_and_how_many_values_differ_cannot():
    def asking(op):
        def body(trace, at):
            step(dims=lambda _: [[8, 8]])(trace, at)
            trace.op(op, at + 199.1, 0.8).call("cudaStreamSynchronize", at + 199.2, 0.6)

        return body

    read, masked = (found("graph-candidate", repeat(PERIOD, asking(op))) for op in ("aten::item", "aten::nonzero"))
    assert (
        "copy 1 value to the host in between" in read.summary
        and "a CUDA graph cannot contain a read" in read.fix.steps[0]
        and len(read.fix.steps) == len(masked.fix.steps)
    )
    assert (
        "need 1 data-dependent size in between" in masked.summary
        and "torch.where" in masked.fix.steps[0]
        and masked.title.endswith("if it needed no data-dependent shapes")
    )
    # Of 420 µs the device works 80, and a graph's nodes stand 1 µs apart.
    for finding in (read, masked):
        assert finding.severity == "info" and finding.saving.low_us == 0 and 420 - 80 - 50 < finding.saving.expected_us < 420 - 80
    assert masked.confidence < read.confidence
    assert "waits for the GPU once" in clear("graph-candidate", repeat(PERIOD, asking("aten::_unique2")))


def masked(sizes=(3, 4, 5, 4, 3), before=8, n=20, left_out=0, shapes=True, op="aten::nonzero", gemms=0, flat=False):
    """Steps of n kernels: three in the shape of `before`, a mask whose size is asked for, and the others in as many rows as come out; of the second step
    the last `left_out` are missing, and the first `gemms` of each are products."""
    trace, period = Trace(), 20 * n + 40
    for s, size in enumerate(sizes):
        trace.step(period * s, period - 1, s + 1)
        for k in range(n - left_out * (s == 1)):
            t = period * s + 20 * k + 20 * (k >= 3)
            dims = [[before if k < 3 else size, 8][: 1 + (not flat)]] if shapes else None
            trace.op("aten::mul", t, 18, dims).launch(t + 10, t + 15, t + 19, "sm90_xmma_gemm" if k < gemms else "kernel", 4)
        trace.op(op, period * s + 64, 10).call("cudaStreamSynchronize", period * s + 65, 8)
    return trace


def test_steps_that_the_sizes_of_masks_make_differ_are_a_graph_without_them():
    finding, capturable = found("graph-candidate", masked()), masked().get(Capturable)
    assert len(capturable.masks) == len(capturable.removable) > 0, "the sizes of masks are all that is in the way"
    assert "x[mask]" in finding.fix.steps[0] and finding.severity == "info"
    # Of 440 µs the device works 80.
    assert finding.saving.low_us == 0 and 440 - 80 - 50 < finding.saving.expected_us < 440 - 80
    assert found("graph-candidate", masked(n=40, left_out=4)), "a mask that picks nothing launches nothing"


def test_products_that_would_take_as_long_as_the_launches_are_abstained_from():
    # Of 440 µs a step 11 products of 4 µs are a tenth.
    assert found("graph-candidate", masked(gemms=10))
    assert "GEMMs take 11% of the step" in clear("graph-candidate", masked(gemms=12))


def test_what_no_mask_decides_stays_different():
    assert "different kernels" in clear("graph-candidate", masked(op="aten::item")), "a number may be any size"
    assert "different kernels" in clear("graph-candidate", masked(op="aten::_unique2")), "nor has this a twin of one size"
    assert "different kernels" in clear("graph-candidate", masked(n=40, left_out=5)), "an eighth less is another step"
    assert "different kernels" in clear("graph-candidate", masked(shapes=False, n=40, left_out=1)), "whether a cache grows is not known"
    for flat in (False, True):
        assert "different kernels" in clear("graph-candidate", masked(sizes=(100, 101, 102, 103, 104), flat=flat)), "a cache grows whatever a mask picks"
    differing = masked()
    differing.op("aten::mul", 1, 8, [[2, 2]]).launch(2, 3, 4, dur=4)
    assert "different kernels" in clear("graph-candidate", differing), "nobody had asked yet"


def branching(op="aten::is_nonzero", more=2, behind=10, grows=False, shapes=True):
    """Five steps of forty kernels, and of `more` in the second and fourth behind the first `behind`; after ten the host looks at a tensor. grows: the
    last ones of each step work on a cache."""
    trace, period = Trace(), 20 * (44 + more)
    for s in range(5):
        trace.step(period * s, period - 1, s + 1)
        for k in range(40 + more * (s % 2)):
            t = period * s + 20 * k + 20 * (k >= 10)
            extra = behind <= k < behind + more * (s % 2)
            dims = [[4 if extra else 16 + s if grows and k > 37 else 8]] if shapes else None
            trace.op("aten::mul", t, 18, dims).launch(t + 10, t + 15, t + 19, "extra" if extra else "kernel", 4)
        t = period * s + 200
        trace.op(op, t + 4, 10).call("cudaStreamSynchronize", t + 5, 8)
    return trace


def test_steps_that_a_condition_on_a_tensor_makes_differ_are_a_graph_without_it():
    finding, capturable = found("graph-candidate", branching()), branching().get(Capturable)
    assert len(capturable.removable) and not len(capturable.masks) and not len(capturable.sent), "values that are read are all that is in the way"
    assert "torch.where" in finding.fix.steps[0] and finding.severity == "info" and finding.saving.low_us == 0
    # Of 920 µs the device works 160 or 168, and a graph's nodes stand 1 µs apart.
    assert 920 - 168 - 60 < finding.saving.expected_us < 920 - 160


def test_what_no_condition_decides_stays_different():
    assert "different kernels" in clear("graph-candidate", branching("aten::item")), "a number may be a size"
    assert "different kernels" in clear("graph-candidate", branching(more=5)), "a ninth more is more than a branch"
    assert "different kernels" in clear("graph-candidate", branching(behind=4)), "nobody had looked yet"
    assert "different kernels" in clear("graph-candidate", branching(grows=True)), "a cache grows whatever is looked at"
    assert "different kernels" in clear("graph-candidate", branching(shapes=False)), "whether one does is not known"


def sending(size, read=False):
    """A step that sends something between its kernels and waits for that, perhaps after it has read a value."""

    def body(trace, at):
        step()(trace, at)
        if read:
            trace.op("aten::item", at + 99.1, 0.8).call("cudaStreamSynchronize", at + 99.2, 0.6)
        trace.op("aten::_to_copy", at + 199.05, 0.9).copy(at + 199.1, 0.2, at + 199.25, at + 199.35, size=size).call("cudaStreamSynchronize", at + 199.4, 0.5)

    return repeat(PERIOD, body)


def test_what_the_host_sends_can_be_sent_before_the_graph():
    finding, capturable = found("graph-candidate", sending(1 << 20)), sending(1 << 20).get(Capturable)
    assert len(capturable.sent) == len(capturable.removable) > 0, "what is sent is all that is in the way"
    assert "before the replay" in finding.fix.steps[0] and finding.saving.low_us == 0


def test_behind_a_read_only_a_constant_can():
    finding = found("graph-candidate", sending(4, read=True))
    assert (
        "copy 1 value to the host and wait for host-to-device copies" in finding.summary
        and "a CUDA graph cannot contain a read" in finding.fix.steps[0]
        and "constants" in finding.fix.steps[1]
    )
    assert "CUDA graph cannot" in clear("graph-candidate", sending(1 << 20, read=True)), "it may be made of what was read"


def test_graphs_in_use_are_quiet():
    def body(trace, at):
        small_kernels(trace, at, n=20)
        trace.correlation += 1
        trace.call("cudaGraphLaunch", at + 400, 5, trace.correlation)
        for k in range(25):  # more than half of the step's ops
            trace.gpu(at + 410 + k, at + 411 + k, correlation=trace.correlation)

    assert "in use" in clear("graph-candidate", repeat(PERIOD + 20, body))


def test_without_launches_it_is_skipped():
    skipped("graph-candidate", Trace().op("aten::mm", 0, 10).gpu(0, 5).gpu(50, 60))


class Recorded:
    """Stands for torch and whatever a fix calls: it notes what is called, and refuses nothing."""

    def __init__(self, calls, name=""):
        self.calls, self.name = calls, name

    def __getattr__(self, name):
        return Recorded(self.calls, f"{self.name}.{name}".strip("."))

    def __call__(self, *args, **kwargs):
        self.calls.append(self.name)
        return self

    __enter__ = __exit__ = lambda self, *args: None


def pasted(code, **names):
    """What runs when a fix's code is pasted into a program that has these names."""
    calls = []
    one = Recorded(calls)
    exec(compile(code, "fix", "exec"), {"torch": one, **{name: getattr(one, name) for name in names.pop("known").split()}, **names})
    return calls


def test_the_code_of_a_capture_runs_as_it_is():
    code = _capturing(Program(training=False, compiled=False), None).code
    assert pasted(code.after, known="step", batches=[Recorded([], "x")] * 2).count("cuda.CUDAGraph") == 1
    method = built_in()["graph-candidate"].method.partition("same shape:")[2]
    assert pasted(dedent(method.strip("\n")), known="model loss_of lr", batches=[Recorded([], "x")])


@pytest.mark.parametrize(("optimizer", "fused"), [("AdamW", True), ("LBFGS", False)])
def test_a_training_step_is_compiled_first(optimizer, fused):
    trace = repeat(PERIOD, step())
    fix = compiling_first(OptimizerStep(optimizer, "loop", np.zeros(0, int), (np.zeros(0), np.zeros(0)), 8))
    assert 'model = torch.compile(model, mode="reduce-overhead")' in fix.code.after and "CUDAGraph" not in fix.code.after
    assert ("fused=True" in fix.code.after) == fused == any("fused=True" in text for text in fix.steps)
    assert "compile" in fix.risk and "Python code" not in fix.risk and "3 to 6 times as fast" in " ".join(fix.steps)
    assert "CUDAGraph" in found("graph-candidate", trace).fix.code.after, "of inference, the capture"


def test_a_server_is_told_its_own_switches_whatever_could_be_captured():
    kept = _capturing(Program(False, False, server="vLLM"), "Capture the identical parts and replay them", "First of all")
    assert kept == of_server(Program(False, False, server="vLLM")), "it captures by itself"
