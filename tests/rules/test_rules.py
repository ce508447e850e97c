"""Each rule on traces of a few lines: found, quiet on both sides of its thresholds, quiet on look-alikes, skipped."""

from functools import partial

import pytest

from advisor.engine.page_sections import SECTIONS
from advisor.engine.rule import built_in
from advisor.engine.run import run as run_rules
from advisor.knowledge.interval_margins import interval_margins
from advisor.knowledge.structs import replace
from advisor.report.numbers import percent
from advisor.views.patterns.compiled_step import COMPILED_DISPATCH
from advisor.views.replay.true_step import Calibration
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace
from tests.build import H200, Trace
from tests.rules.kinds import misfits

STEPS = 5


def run(rule, trace, **options):
    timeline = trace.timeline()
    report = run_rules(timeline, [built_in()[rule]], {rule: options})
    assert not report.failed, report.failed
    assert not misfits(report, Workspace(timeline))
    return report


def found(rule, trace, **options):
    findings = run(rule, trace, **options).findings
    assert len(findings) == 1, findings
    return findings[0]


def clear(rule, trace, **options):
    report = run(rule, trace, **options)
    assert not report.findings and len(report.clear) == 1, (report.findings, report.skipped)
    return report.clear[0].why


def skipped(rule, trace):
    (one,) = run(rule, trace).skipped
    assert one.why and one.record_with
    return one.why


def widened(rule, low, high, step):
    """The ends of a saving with what errors of such rules were, as the engine gives them."""
    below, above = interval_margins(rule)
    return pytest.approx(max(0.0, low - below * step), rel=0.02), pytest.approx(high + min(above * step, max(step - high, 0.0) / 2), rel=0.02)


def repeat(period, body, steps=STEPS):
    """`body(trace, at)` once a step."""
    trace = Trace()
    for s in range(steps):
        trace.step(period * s, period - 1, s + 1)
        body(trace, period * s)
    return trace


def queued(body, host=50, gpu=120, steps=STEPS):
    """`body(trace, host_at, gpu_at)` once a step, for a host that runs ahead of a GPU that needs `gpu` µs."""
    trace = Trace()
    for s in range(steps):
        trace.step(host * s, host - 1, s + 1)
        body(trace, host * s, host + gpu * s)
    return trace


def small_kernels(trace, at, kernel=4, every=20, n=5, name="aten::mm", api="cudaLaunchKernel", does="kernel"):
    for k in range(n):
        t = at + every * k
        trace.op(name, t, every - 2).launch(t + 10, t + 15, t + 15 + kernel, does, dur=4, api=api)


@pytest.mark.parametrize("rule", built_in().values(), ids=lambda r: r.id)
def test_every_rule_has_a_whole_page_and_is_skipped_without_gpu_work(rule):
    assert all(f"\n{section}\n" in rule.page for section in SECTIONS)
    for option in rule.options:
        assert option in rule.page, f"{rule.id} does not say what {option} is"
    if Workspace(Trace().timeline(), Calibration(None)).can_build(rule.function):
        skipped(rule.id, Trace().op("aten::mm", 0, 10))


# launch-gap


def test_launches_that_starve_the_gpu_are_found():
    finding = found("launch-gap", repeat(100, small_kernels))
    assert finding.severity == "high" and "reduce-overhead" in finding.fix.code.after
    assert finding.saving.expected_us == pytest.approx(75, abs=8)
    assert finding.evidence[0].label == "idle before aten::mm"


def test_the_launch_gap_threshold_has_two_sides():
    trace = repeat(100, small_kernels)  # idle for 80 of 100
    assert found("launch-gap", trace, min_idle_share=0.79)
    assert "threshold 81%" in clear("launch-gap", trace, min_idle_share=0.81)


def test_a_busy_gpu_is_no_launch_gap():
    clear("launch-gap", repeat(100, lambda t, at: small_kernels(t, at, kernel=19.5)))


def test_passes_that_each_end_with_a_wait_may_gain_nothing_and_should_be_done_together():
    def loop(trace, at, passes):
        for i in range(passes):
            small_kernels(trace, at + 110 * i)
            trace.call("cudaStreamSynchronize", at + 110 * i + 100, 5)

    eight = found("launch-gap", repeat(880, partial(loop, passes=8)))
    assert eight.saving.low_us == 0 and eight.severity == "medium" and "after every iteration" in eight.fix.steps[0]
    seven = found("launch-gap", repeat(770, partial(loop, passes=7)))
    assert seven.saving.low_us > 0 and seven.severity == "high" and "reduce-overhead" in seven.fix.steps[0]
    # A pass waits for 5 of its 110 µs and issues, with short pauses, in the others: of these 0.65 go.
    assert eight.saving.expected_us == pytest.approx(8 * 105 * 0.65, rel=0.02) and eight.saving.expected_us / 880 < seven.saving.expected_us / 770


def test_a_step_that_is_one_graph_already_is_left_alone():
    def graph(trace, at):
        trace.correlation += 1
        trace.call("cudaGraphLaunch", at + 2, 5, trace.correlation)
        for k in range(5):
            trace.gpu(at + 12 + 15 * k, at + 16 + 15 * k, correlation=trace.correlation)

    def slow_host(trace, at):
        trace.op("aten::graph", at, 90)
        graph(trace, at + 60)

    assert "CUDA graphs" in clear("launch-gap", repeat(200, slow_host))


def test_idle_that_only_the_profiler_made_is_not_reported():
    # 18 calls recorded at 5 µs each before every launch: without the profiler the host needs a few µs.
    def body(trace, at):
        trace.op("aten::mm", at, 95)
        for k in range(18):
            trace.call("cudaStreamIsCapturing", at + 5 * k, 4.9)
        trace.launch(at + 91, at + 96, at + 96 + 75, dur=4)

    why = clear("launch-gap", repeat(100, body, steps=8), min_idle_share=0.02, min_saving_share=0.5)
    assert "launches 25% of the step" in why


def test_the_fix_fits_training_and_compiled_code():
    pointwise = partial(small_kernels, n=400, name="aten::mul", does="vectorized_elementwise_kernel<MulFunctor>")
    training = repeat(10_000, pointwise).note("Optimizer.step#AdamW.step", 9_000, 5)
    assert "fused=True" in found("launch-gap", training).fix.code.after
    mapped = repeat(100, pointwise).op("autograd::engine::evaluate_function: MulBackward0", 1, 2)
    for at in range(200, 1000, 100):
        mapped.op("aten::mv", at, 9).op("aten::movedim", at + 1, 2)
    assert "torch.func" in found("launch-gap", mapped).fix.steps[0]
    compiled = repeat(100, small_kernels).note("## Call CompiledFxGraph abc ##", 0, 10_000)
    assert "still launches each kernel separately" in found("launch-gap", compiled).fix.steps[0]


def test_without_launches_no_gap_is_blamed_on_the_host():
    skipped("launch-gap", Trace().op("aten::mm", 0, 10).gpu(0, 5).gpu(50, 60))


@pytest.mark.parametrize(("recorder", "severity"), [("jax", "medium"), ("test", "high")])
def test_jitted_calls_of_which_none_repeats_may_belong_to_no_one_step(recorder, severity):
    # 24 calls of 24 kernels of 20 µs, each launched 100 µs after the one before.
    trace = Trace(recorder=recorder)
    for k in range(24):
        name = f"f_{chr(97 + k)}"
        trace.op(f"PjitFunction({name})" if recorder == "jax" else "aten::mul", 100.0 * k, 95).launch(100.0 * k + 80, 100.0 * k + 84, 100.0 * k + 104, name)
    assert found("launch-gap", trace).severity == severity


# sync-stall


def wait_each_step(trace, at, op=None, kernel=60):
    trace.op("aten::mm", at, 30).launch(at + 20, at + 26, at + 26 + kernel, dur=4)
    if op:
        trace.op(op, at + 31, kernel + 10)
    trace.call("cudaStreamSynchronize", at + 33, kernel - 5)


def test_waits_that_keep_the_host_from_running_ahead_are_found():
    finding = found("sync-stall", repeat(100, wait_each_step))
    assert finding.severity == "high" and "torch.cuda.synchronize()" in finding.fix.code.before
    # The kernel's 60 µs bound what is left.
    assert finding.saving.expected_us == pytest.approx(40, abs=6)


def test_the_fix_names_the_op_that_waits():
    finding = found("sync-stall", repeat(100, lambda t, at: wait_each_step(t, at, "aten::item")))
    assert ".item()" in finding.fix.code.before and "aten::item" in finding.evidence[0].label
    assert "loss" not in finding.fix.code.before, "nothing is trained"
    finding = found("sync-stall", repeat(100, lambda t, at: wait_each_step(t, at, "aten::nonzero")))
    assert "torch.where" in finding.fix.code.after
    for op in ("aten::is_nonzero", "aten::to"):  # limits that are asked one after the other, results that a step hands out
        (step, *_) = found("sync-stall", repeat(100, lambda t, at, op=op: wait_each_step(t, at, op))).fix.steps
        assert "stack" in step.lower() and "read" in step


@pytest.mark.parametrize(
    ("call", "kernel", "told"),
    [
        ("cudaMemcpy", "jacobi", "cudaMemcpyAsync(error, d_error"),
        ("cudaDeviceSynchronize", "jacobi", "cudaDeviceSynchronize();"),
        ("cudaStreamSynchronize", "at::native::add", ".item()"),
        ("cudaDeviceSynchronize", "at::native::add", "torch.cuda.synchronize()"),
    ],
)
def test_where_no_op_was_recorded_the_fix_is_of_the_call_that_waits(call, kernel, told):
    trace = Trace(recorder="nsys")
    for s in range(STEPS):
        at = 100 * s
        trace.step(at, 99, s + 1).launch(at + 20, at + 26, at + 86, kernel, dur=4)
        if call == "cudaMemcpy":
            trace.launch(at + 33, at + 86, at + 87, "Memcpy DtoH (Pageable)", 55, call, kind="memcpy", copy_kind="DtoH", bytes=4, dst_kind="pageable")
        else:
            trace.call(call, at + 33, 55)
    fix = found("sync-stall", trace).fix
    assert fix.code and told in fix.code.before + fix.code.after
    assert call == "cudaDeviceSynchronize" or ("DeviceSynchronize" not in str(fix) and "torch.cuda.synchronize" not in str(fix))


def test_reading_a_value_costs_what_the_op_takes_not_what_the_host_does_before_it():
    # The host works 40 µs in an op that launches nothing, then reads a value: the op takes 26 µs, 16 of them a wait.
    def body(trace, at):
        trace.op("aten::mm", at, 20).launch(at + 10, at + 16, at + 20, dur=4)
        trace.op("aten::add", at + 22, 38)
        trace.op("aten::item", at + 60, 26).copy(at + 64, 5, at + 70, at + 71, "Pinned", 4, kind="DtoH").call("cudaStreamSynchronize", at + 69, 16)

    finding = found("sync-stall", repeat(100, body))
    assert finding.saving.expected_us == pytest.approx(26, abs=1)


def test_a_value_that_an_op_sends_holds_the_host_as_a_read_does():
    # The host launches 60 µs of work in 20, reads a value, and writes another one at indices: that one is sent. Without both the kernel, and the two copies 4 and 3 µs behind it, bound the step.
    def body(trace, at, by="aten::index_put_", size=1):
        trace.op("aten::mm", at, 20).launch(at + 10, at + 16, at + 76, dur=4)
        trace.op("aten::item", at + 20, 64).copy(at + 22, 5, at + 80, at + 81, "Pinned", 4, kind="DtoH").call("cudaStreamSynchronize", at + 28, 54)
        trace.op(by, at + 85, 14).op("aten::to", at + 86, 12).copy(at + 87, 2, at + 90, at + 91, "Pageable", size).call("cudaStreamSynchronize", at + 90, 7)

    finding = found("sync-stall", repeat(100, body))
    assert (
        finding.summary.startswith("2 calls per step")
        and any("index_put_" in of.label for of in finding.evidence)
        and any("index_fill_" in step for step in finding.fix.steps)
    )
    assert finding.saving.expected_us == pytest.approx(100 - 60 - 5 - 4, abs=1)
    for other in (repeat(100, lambda t, at: body(t, at, by="aten::copy_")), repeat(100, lambda t, at: body(t, at, size=64))):
        assert found("sync-stall", other).summary.startswith("1 call per step"), "what is written as a copy, or carries more than a value, is a copy's"


@pytest.mark.parametrize(("behind_us", "status"), [(0, "possible"), (5, "found")])
def test_a_wait_that_ends_the_range_which_marks_the_step_may_be_how_it_is_timed(behind_us, status):
    # Each range launches 60 µs of work and waits for the device; in the second case it launches another 5 µs behind that.
    def body(trace, at):
        trace.note(f"run {at // 100}", at, 99).op("aten::mm", at, 30).launch(at + 20, at + 26, at + 86, dur=4).call("cudaDeviceSynchronize", at + 33, 55)
        if behind_us:
            trace.launch(at + 90, at + 92, at + 92 + behind_us, "last", dur=1)

    trace = Trace()
    for s in range(STEPS):
        body(trace, 100 * s)
    finding = found("sync-stall", trace)
    assert trace.get(Steps).basis == "nvtx" and finding.status == status and ("only time that range" in finding.possible_why) == (status == "possible")


@pytest.mark.parametrize(("after_us", "severity"), [(300, "medium"), (2_000, "low")])
def test_what_a_part_gains_weighs_by_its_share_of_the_program(after_us, severity):
    # Twelve times two kernels in 60 of 72 µs, waited for: a sixth of that. Then three other kernels that take 29 or 74 % of the device's work.
    trace = Trace()
    for s in range(12):
        at = 72 * s
        trace.launch(at, at + 6, at + 36, "a", dur=4).launch(at + 5, at + 36, at + 66, "b", dur=4).call("cudaStreamSynchronize", at + 10, 57)
    for k in range(3):
        trace.launch(900 + 10 * k, 900 + after_us * k / 3, 900 + after_us * (k + 1) / 3, f"other{k}", dur=4)
    finding = found("sync-stall", trace)
    assert finding.severity == severity and ("of the device's work" in finding.summary) == (severity == "low")


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "cudaEventSynchronize"])
def test_a_wait_by_which_a_single_run_is_timed_is_left_out(call):
    # Two runs of different kernels, each waited for and followed by the host's own 2 ms.
    trace = Trace()
    for run_ in range(2):
        for k in range(8):
            at = 5_000 * run_ + 20 * k
            trace.launch(at, at + 5 + 300 * k, at + 300 + 300 * k, f"run{run_}_{k}", dur=4)
        trace.call(call, 5_000 * run_ + 200, 2_210)
    # The second begins behind the window.
    assert clear("sync-stall", trace).endswith("except for timing, start-up or the end of the run (1)")


def test_a_wait_on_a_gpu_with_work_queued_costs_nothing():
    def body(trace, at):
        trace.op("aten::mm", at, 8).launch(at + 2, at + 10, at + 90, dur=1).launch(at + 5, at + 90, at + 109.5, dur=1)
        # Waits for the first kernel while the second is queued.
        trace.call("cudaEventSynchronize", at + 9, 82)

    assert "that would gain 0.1%" in clear("sync-stall", repeat(100, body))


@pytest.mark.parametrize(("call", "waits"), [("cudaDeviceSynchronize", 0), ("cudaStreamSynchronize", 1)])
def test_waits_for_the_device_around_a_run_that_does_not_repeat_time_it(call, waits):
    trace = Trace()
    for k in range(10):
        trace.launch(10 * k, 10 * k + 5, 10 * k + 9, f"kernel{k}")
    trace.call(call, 95, 40)
    for k in range(10):
        trace.launch(140 + 10 * k, 150 + 10 * k, 154 + 10 * k, f"other{k}")
    report = run("sync-stall", trace)
    assert len(report.findings) == waits, report.clear


def waited(times):
    """Kernels that differ from one to the next, each waited for; the host then works for 20 µs before it launches another."""
    trace = Trace()
    for k in range(times):
        trace.launch(40 * k, 40 * k + 5, 40 * k + 12 + k % 7, f"kernel{k}", dur=4).call("cudaDeviceSynchronize", 40 * k + 5, 9 + k % 7)
    return trace


def read_late(usual):
    """Each step reads a value behind 1 ms of kernels; after it the device idles for so many µs, and in two of five steps for 900."""
    trace, at = Trace(), 0.0
    for s in range(6):
        pause = 900 if s in (1, 3) else usual
        trace.step(at, 1_000 + pause - 1, s + 1).launch(at + 5, at + 10, at + 1_000, dur=2)
        trace.op("aten::item", at + 20, 990).copy(at + 25, 980, at + 1_000, at + 1_001, "Pinned", 4, kind="DtoH")
        at += 1_000 + pause
    return trace


def test_what_a_few_steps_lose_to_a_wait_the_others_do_not():
    saving = found("sync-stall", read_late(100)).saving
    # The mean step loses 430 µs, the median 110.
    assert saving.expected_us <= 111 and saving.high_us > 300


def test_what_removing_a_wait_is_said_to_gain_is_what_it_saves():
    finding = found("sync-stall", read_late(40))
    step = run_rules(read_late(40).timeline(), [built_in()["sync-stall"]]).headline.step_us
    assert f"Removing it alone gains {percent(finding.saving.expected / step)}, because" in finding.summary


def test_nobody_times_a_run_by_hundreds_of_waits():
    assert waited(130).get(Steps).basis == "whole"
    assert "130 calls" in found("sync-stall", waited(130)).summary or "129 calls" in found("sync-stall", waited(130)).summary
    clear("sync-stall", waited(90))


def test_the_wait_that_ends_the_capture_is_outside_the_window():
    trace = repeat(100, small_kernels)
    trace.call("cudaDeviceSynchronize", 100 * STEPS - 5, 5000)
    assert "no call makes the host wait" in clear("sync-stall", trace)


def test_one_cheap_wait_a_step_may_be_logging():
    def body(trace, at):
        small_kernels(trace, at)
        trace.op("aten::item", at + 97, 2).call("cudaStreamSynchronize", at + 98, 0.5)

    assert "waits once per step" in clear("sync-stall", repeat(100, body), min_saving_share=0.2)
    assert found("sync-stall", repeat(100, body), min_saving_share=0.2, min_per_step=1).severity in ("low", "info")


# memcpy


def upload(trace, at, memory="Pageable", size=10_000_000, copy=400, kernel=300):
    trace.op("aten::copy_", at, copy + 12).copy(at + 2, copy if memory == "Pageable" else 3, at + 8, at + 8 + copy, memory, size)
    busy = at + 8 + copy
    trace.op("aten::mm", at + copy + 14, 20).launch(at + copy + 20, busy + 20, busy + 20 + kernel, dur=4)


def test_pageable_copies_before_compute_are_found():
    finding = found("memcpy", repeat(730, upload))
    assert finding.severity == "high" and "non_blocking=True" in finding.fix.code.after
    assert "Pin the memory" in finding.fix.steps[0] and "all from or to pageable" in finding.summary
    # 10 MB at some 55 GB/s take 180 µs and hide behind 300 of compute.
    assert finding.saving.expected_us == pytest.approx(400, rel=0.15)


@pytest.mark.parametrize(("op", "told"), [("index_put_", "index_put_((row, index), yes)"), ("copy_", "pinned"), ("where", "where(c, x, 0.0)")])
def test_numbers_that_are_written_at_indices_are_told_to_be_on_the_gpu_already(op, told):
    """Eight times x[i] = 1.0, each of which waits, before the kernel."""

    def body(trace, at):
        for k in range(at, at + 240, 30):
            trace.op(f"aten::{op}", k, 28).op("aten::to", k + 2, 24).copy(k + 3, 2, k + 10, k + 11, size=4).call("cudaStreamSynchronize", k + 6, 18)
        trace.op("aten::mm", at + 240, 20).launch(at + 250, at + 256, at + 300, dur=4)

    assert told in found("memcpy", repeat(310, body)).fix.code.after


def test_what_goes_up_and_then_comes_down_is_not_both_at_once_for_sure():
    finding = found("memcpy", repeat(4000, both_ways("HtoD", "DtoH")))
    # Pinned, each takes 180 µs at some 55 GB/s: one after the other at the least.
    assert finding.saving.low_us <= 4000 - 2 * 180 < finding.saving.high_us
    assert "ahead" in finding.fix.title


def test_what_comes_to_the_host_and_goes_back_up_is_kept_on_the_gpu():
    assert found("memcpy", repeat(4000, both_ways("DtoH", "HtoD"))).fix.title == "Keep data on the GPU instead of copying it back"
    result_and_next_batch = repeat(4000, both_ways("DtoH", "HtoD", kernel_at=1))
    assert found("memcpy", result_and_next_batch).fix.title != "Keep data on the GPU instead of copying it back", "nothing works on it in its step"


def both_ways(*kinds, kernel_at=3992):
    """10 MB in one direction, then 10 MB in the other, and a kernel behind or before them."""

    def body(trace, at):
        for k, kind in enumerate(kinds):
            trace.op("aten::copy_", at + 2000 * k, 1990).copy(
                at + 2000 * k + 2, 1980, at + 2000 * k + 8, at + 2000 * k + 1978, size=10_000_000, kind=kind, stream=20 + 2 * (kind == "HtoD")
            )
        trace.launch(at + kernel_at, at + kernel_at + 2, at + kernel_at + 4, dur=1)

    return body


def fetched(trace, at):
    """10 MB come to the host in 400 µs, behind 200 µs of a kernel that is waited for with them."""
    trace.launch(at, at + 5, at + 205, dur=4)
    trace.copy(at + 5, 602, at + 206, at + 606, size=10_000_000, kind="DtoH")


@pytest.mark.parametrize(("own_us", "expected_us"), [(300, 407), (600, 400 - 182)])
def test_what_comes_to_the_host_gains_no_more_than_the_copy_and_at_least_its_pinned_rate(own_us, expected_us):
    """Where the host then works for itself for longer than the copy took, it reads what came, and waits for it as before."""
    trace = Trace(recorder="nsys")
    for k in range(8):
        fetched(trace, (600 + own_us) * k)
    finding = found("memcpy", trace)
    # Of 602 µs in the call 200 are the kernel's, which the host waits for whatever is copied how; 5 more pass until the kernel begins.
    assert finding.saving.expected_us == pytest.approx(expected_us, abs=2)
    # Pinned, 10 MB at 55 GB/s take 182 µs; the host waits for them as before.
    assert finding.saving.low_us <= 400 - 182


def test_copies_without_a_kernel_load_what_is_not_used_yet():
    trace = Trace(recorder="nsys")
    for k, way in enumerate("HHDHDDHHHDHD"):
        trace.copy(700 * k, 402, 700 * k + 2, 700 * k + 402, size=10_000_000, kind="HtoD" if way == "H" else "DtoH")
    report = run("memcpy", trace)
    assert "without steps or kernels" in report.clear[0].why
    assert report.headline.judged == "partly" and "no kernel" in report.headline.judged_why
    assert found("memcpy", trace.launch(9_000, 9_005, 9_400, dur=4)), "with one it may be how the program runs"


def held_up(trace, at, name):
    """A small upload that returns only once 400 µs of a kernel are over, after which the host is late with 6 launches."""
    trace.launch(at + 2, at + 8, at + 408, name, dur=4)
    trace.op("aten::index", at + 10, 405).copy(at + 12, 400, at + 408, at + 410, "Pageable", 3_000)
    for n in range(6):
        trace.op("aten::mm", at + 420 + 40 * n, 38).launch(at + 450 + 40 * n, at + 456 + 40 * n, at + 476 + 40 * n, dur=4)


def test_a_copy_that_waits_for_a_collective_gains_nothing_that_other_ranks_hold():
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    finding = found("memcpy", repeat(700, lambda t, at: held_up(t, at, "gemm")))
    assert finding.saving.expected_us > 100 and "the host waits 400 µs for them as recorded; it launches only afterwards" in finding.summary
    assert "would gain" in clear("memcpy", repeat(700, lambda t, at: held_up(t, at, reduce)))


def behind_a_wait(trace, at):
    """After a wait the device begins 90 µs late, whatever comes first: here 4 bytes that hold the host for nothing. Later ops begin promptly."""
    trace.copy(at, 4, at + 90, at + 91, size=4)
    trace.launch(at + 10, at + 93, at + 103, "f(float*)", dur=4).call("cudaEventSynchronize", at + 15, 95)
    for k in range(2):
        trace.launch(at + 115 + 10 * k, at + 119 + 10 * k, at + 123 + 10 * k, "g(float*)", dur=4)
    trace.call("cudaEventSynchronize", at + 130, 6)


def test_what_the_device_waits_for_before_a_copy_is_no_copys():
    trace = repeat(140, behind_a_wait)
    assert found("sync-stall", trace).saving.expected_us > 50, "a host that does not wait issues the next ones meanwhile"
    assert "would gain" in clear("memcpy", trace)


def test_copies_of_memory_of_unknown_kind_are_not_called_pinned():
    def body(trace, host, gpu):
        trace.op("aten::copy_", host, 10).copy(host + 2, 3, gpu, gpu + 400, "", 10_000_000)
        trace.op("aten::mm", host + 15, 10).launch(host + 20, gpu + 401, gpu + 700, dur=4)

    finding = found("memcpy", queued(body, gpu=701))
    assert "unrecorded memory kind" in finding.summary and "pinned" not in finding.summary


def test_pinned_copies_in_turn_with_compute_are_told_to_overlap_not_to_pin():
    def body(trace, host, gpu):
        trace.op("aten::copy_", host, 10).copy(host + 2, 3, gpu, gpu + 400, "Pinned", 10_000_000)
        trace.op("aten::mm", host + 15, 10).launch(host + 20, gpu + 401, gpu + 700, dur=4)

    finding = found("memcpy", queued(body, gpu=701))
    assert finding.saving.expected_us == pytest.approx(300, rel=0.05), "the copy's 400 bound what is left"
    assert not any("Pin the memory" in s for s in finding.fix.steps) and "stream of its own" in finding.fix.title


def waited_for(trace, at):
    """A pinned kilobyte that takes a microsecond and is waited for, and a product that needs nothing of it."""
    trace.copy(at, 4, at + 10, at + 11, "Pinned", 1_000).call("cudaStreamSynchronize", at + 5, 8)
    trace.launch(at + 15, at + 22, at + 24, "f(float*)", dur=4)


def test_pinned_copies_that_are_waited_for_are_told_not_to_be_waited_for():
    trace = Trace(recorder="nsys")
    for k in range(20):
        waited_for(trace, 40 * k)
    finding = found("memcpy", trace)
    assert "all pinned" in finding.summary and "the host waits 8.00 µs for them" in finding.summary
    told = f"{finding.fix.title} {' '.join(finding.fix.steps)}"
    assert "without waiting" in told and "cudaMallocHost" not in told


def small_copies(count):
    def body(trace, at):
        for k in range(count):
            trace.op("aten::copy_", at + 20 * k, 18).copy(at + 20 * k + 10, 6, at + 20 * k + 17, at + 20 * k + 19, "Pinned", 512)
        trace.op("aten::mm", at + 20 * count, 18).launch(at + 20 * count + 10, at + 20 * count + 17, at + 20 * count + 19, dur=4)

    return repeat(20 * count + 20, body)


def test_many_small_copies_become_one_with_what_issued_the_others():
    finding = found("memcpy", small_copies(16))
    assert finding.saving.expected_us == pytest.approx(15 * 20, rel=0.05), "16 copies and a product of 20 µs each: two are left"
    assert finding.fix.title == "Send small tensors in a single copy" and finding.fix.steps[0].startswith("Pack small tensors")
    assert "torch.cat" in finding.fix.code.after and "loader" not in finding.fix.code.before
    # What is said accounts for the gain: 2 µs of each transfer would not.
    assert "Launching the small copies takes 300 µs" in finding.summary
    assert "would gain" in clear("memcpy", small_copies(4)), "few are not worth a buffer"


def test_small_copies_that_follow_on_results_cannot_be_packed():
    """A program that sends what it makes of the result it has just read, sixteen times: no copy could go earlier."""

    def body(trace, at):
        for k in range(16):
            t = at + 40 * k
            trace.op("aten::copy_", t, 18).copy(t + 10, 6, t + 17, t + 19, "Pinned", 512)
            trace.op("aten::mm", t + 20, 8).launch(t + 22, t + 24, t + 26, dur=2)
            trace.op("aten::copy_", t + 29, 10).copy(t + 30, 6, t + 33, t + 35, "Pinned", 512, kind="DtoH")

    assert "would gain" in clear("memcpy", repeat(660, body))


def test_a_pinned_copy_behind_compute_is_quiet():
    def body(trace, at):
        trace.op("aten::mm", at, 20).launch(at + 5, at + 10, at + 705, dur=4)
        trace.op("aten::copy_", at + 30, 10).copy(at + 32, 3, at + 40, at + 440, "Pinned", 20_000_000, stream=13)

    assert "would gain 0%" in clear("memcpy", repeat(700, body))


def test_tensors_built_on_the_host_are_told_to_be_built_on_the_gpu():
    def body(trace, at):
        trace.op("aten::zeros", at, 5).op("aten::to", at + 6, 106).op("aten::copy_", at + 7, 104)
        trace.copy(at + 8, 100, at + 10, at + 109, size=2_000_000).call("cudaStreamSynchronize", at + 108.5, 2)
        trace.op("aten::mm", at + 115, 10).launch(at + 118, at + 124, at + 140)

    finding = found("memcpy", repeat(150, body))
    assert 'device="cuda"' in finding.fix.code.after


def test_reading_a_value_is_a_wait_not_a_copy():
    def body(trace, at):
        wait_each_step(trace, at, "aten::item")
        trace.copy(at + 92, 3, at + 93, at + 94, kind="DtoH", size=4)

    assert "no copy" in clear("memcpy", repeat(100, body))
    assert found("sync-stall", repeat(100, body))


def test_copies_within_the_device_are_not_counted():
    def body(trace, at):
        trace.op("aten::copy_", at, 10).launch(at + 2, at + 8, at + 80, "Memcpy DtoD (Device -> Device)", kind="memcpy", copy_kind="DtoD", bytes=1000)

    assert "no copy" in clear("memcpy", repeat(100, body))


# unfused-elementwise

N = [[4096, 4096]]  # 67 MB of float: at least 28 µs to read and write at 4.8 TB/s


def pointwise(trace, host, gpu, names=("mul", "tanh", "add"), dims=N, each=40):
    for k, name in enumerate(names):
        trace.op(f"aten::{name}", host + 4 * k, 3, dims * (2 if name in ("mul", "add") else 1)).launch(
            host + 4 * k + 1, gpu + each * k, gpu + each * (k + 1) - 0.5, "vectorized_elementwise_kernel"
        )


def test_a_chain_of_pointwise_kernels_is_found():
    finding = found("unfused-elementwise", queued(pointwise))
    assert finding.severity == "high" and "torch.compile" in finding.fix.code.after
    assert finding.evidence[0].label == "mul → tanh → add"
    least = 2 * 4096 * 4096 * 4 / 4.8e12 * 1e6
    assert 120 - finding.saving.high_us >= least * 0.95


def test_pointwise_kernels_that_do_not_chain_are_quiet():
    def apart(trace, host, gpu):
        pointwise(trace, host, gpu, ("mul",))
        trace.op("aten::mm", host + 10, 3).launch(host + 11, gpu + 40, gpu + 80, "gemm")
        trace.op("aten::add", host + 20, 3, N * 2).launch(host + 21, gpu + 80, gpu + 119, "vectorized_elementwise_kernel")

    clear("unfused-elementwise", queued(apart))


@pytest.mark.parametrize(("between", "chained"), [("native_layer_norm", False), ("add", True)])
def test_norms_one_behind_another_are_no_chain(between, chained):
    def body(trace, host, gpu):
        for k, name in enumerate(("native_layer_norm", between, "native_group_norm", "native_batch_norm")):
            kernel = "vectorized_elementwise_kernel" if name == "add" else f"{name}_kernel"
            trace.op(f"aten::{name}", host + 4 * k, 3, [[64, 64, 64, 64]]).launch(host + 4 * k + 1, gpu + 30 * k, gpu + 30 * k + 29.5, kernel)

    report = run("unfused-elementwise", queued(body))
    assert bool(report.findings) == chained


def test_of_several_kinds_of_chains_the_largest_is_named():
    """Once the large chain, which has to move 201 MB (three operands and the result, of which two count half) and saves some 47 of 119.5 µs, and twice
    a small one, which saves some 7 of 9.5 µs each."""

    def body(trace, host, gpu):
        pointwise(trace, host, gpu)
        for k in range(2):
            trace.op("aten::mm", host + 12 + 12 * k, 2, N).launch(host + 13 + 12 * k, gpu + 120 + 20 * k, gpu + 129.5 + 20 * k, "gemm")
            pointwise(trace, host + 15 + 12 * k, gpu + 130 + 20 * k, ("exp", "mul"), [[512, 512]], each=5)

    told = found("unfused-elementwise", queued(body, gpu=170)).summary
    share = int(told.split(" of the gain is in ")[0].rpartition(" ")[2].removesuffix("%"))
    assert 75 <= share <= 79 and "in 1 of 2 chain types" in told
    assert "chain types" not in found("unfused-elementwise", queued(pointwise)).summary


def test_pointwise_kernels_of_other_sizes_do_not_chain():
    def body(trace, host, gpu):
        pointwise(trace, host, gpu, ("mul",))
        trace.op("aten::tanh", host + 10, 3, [[77, 5]]).launch(host + 11, gpu + 40, gpu + 119, "vectorized_elementwise_kernel")

    clear("unfused-elementwise", queued(body))


def test_an_interpolation_is_part_of_a_chain():
    finding = found("unfused-elementwise", queued(lambda t, host, gpu: pointwise(t, host, gpu, ("tanh", "upsample_bilinear2d", "mul", "add")), gpu=165))
    assert finding.evidence[0].label == "tanh → upsample_bilinear2d → mul → add"


def test_a_loop_over_one_op_is_no_chain():
    clear("unfused-elementwise", queued(lambda t, host, gpu: pointwise(t, host, gpu, ("add",) * 6), gpu=240))


def test_a_loop_over_arrays_is_a_chain_for_each_though_it_does_more_now_and_then():
    """Twenty arrays, each in three kernels, and one division between the tenth and the next. No op and no shape was recorded."""
    names = [*("subtract", "add", "multiply") * 10, "divide", *("subtract", "add", "multiply") * 10]

    def body(trace, host, gpu):
        for k, name in enumerate(names):
            trace.launch(host + k, gpu + 40 * k, gpu + 40 * k + 39.5, f"cupy_{name}__float64_float64_float64")

    finding = found("unfused-elementwise", queued(body, host=80, gpu=2440))
    assert "60 elementwise kernels" in finding.summary and "20 chains" in finding.summary
    # Of each chain's 118.5 µs the longest kernel's 39.5 stay: 790 of 2,370.
    assert "790 µs" in finding.summary


def test_chains_that_gain_by_fewer_launches_alone_are_left_to_the_rule_of_launches():
    def body(trace, at):
        for k, name in enumerate(("mul", "tanh", "add")):
            trace.op(f"aten::{name}", at + 30 * k, 28, [[64, 64]]).launch(at + 30 * k + 20, at + 30 * k + 25, at + 30 * k + 26, "vectorized_elementwise_kernel")

    assert "on the GPU (threshold 3%)" in clear("unfused-elementwise", repeat(100, body), min_gpu_share=0.03)
    assert found("unfused-elementwise", repeat(100, body), min_gpu_share=0.0)


def test_fewer_launches_gain_no_more_than_the_device_waited_for_them():
    # Three kernels of 20 µs whose launches the device never waits for: only what they take themselves can go.
    def body(trace, at):
        trace.op("aten::mm", at, 8).launch(at + 2, at + 8, at + 200, "gemm")
        for k, name in enumerate(("mul", "tanh", "add")):
            trace.op(f"aten::{name}", at + 30 + 50 * k, 40, N).launch(at + 60 + 50 * k, at + 200 + 20 * k, at + 220 + 20 * k, "vectorized_elementwise_kernel")

    saving = found("unfused-elementwise", repeat(262, body)).saving
    assert saving.expected_us <= 60


def test_a_compiler_may_spare_inference_a_part_of_every_launch():
    """Three chained kernels and four products of 25 µs, each issued in 50 µs. Two launches go, and `high` has the other five at a share of what they cost:
    all that the device waits, 25 µs for each, but no more."""

    def body(trace, at):
        for k, name in enumerate(("mul", "tanh", "add", *["mm"] * 4)):
            kernel = "gemm" if name == "mm" else "vectorized_elementwise_kernel"
            trace.op(f"aten::{name}", at + 50 * k, 50, N).launch(at + 50 * k + 40, at + 50 * k + 45, at + 50 * k + 70, kernel)

    saving = found("unfused-elementwise", repeat(350, body)).saving
    assert saving.expected_us <= 100
    assert 100 + 5 * 50 * (1 - COMPILED_DISPATCH) <= saving.high_us <= 7 * 25 + 2 * 25


def test_a_handful_of_ops_that_do_not_repeat_is_no_program_to_fuse():
    trace = Trace()
    pointwise(trace, 0, 100)
    assert "are start-up" in clear("unfused-elementwise", trace)


def test_the_optimizers_pointwise_kernels_are_not_this_rules():
    trace = queued(pointwise)
    for s in range(STEPS):
        trace.note("Optimizer.step#SGD.step", 50 * s, 20)
    clear("unfused-elementwise", trace)


def test_kernels_that_are_fused_already_are_quiet():
    def body(trace, host, gpu):
        for k in range(3):
            trace.op("triton_poi_fused_mul_tanh_add_0", host + 4 * k, 3).launch(
                host + 4 * k + 1, gpu + 36 * k, gpu + 35 + 36 * k, "triton_poi_fused_mul_tanh_add_0", api="cuLaunchKernel"
            )

    clear("unfused-elementwise", queued(body))


# low-arithmetic-intensity


def linear(rows, us):
    def body(trace, at):
        trace.op("aten::mm", at, 5, [[rows, 8192], [8192, 8192]], ["c10::BFloat16"] * 2).launch(
            at + 1, at + 8, at + 8 + us, "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNN"
        )

    return body


def test_one_row_against_a_large_weight_is_found():
    finding = found("low-arithmetic-intensity", repeat(40, linear(1, 39)))
    assert finding.severity == "high" and "1.00 FLOP per byte" in finding.summary and "torch.stack" in finding.fix.code.after
    assert finding.saving.low_us == widened("low-arithmetic-intensity", 30, 40, 40)[0], "four requests share per step"


@pytest.mark.parametrize(("dims", "seen"), [((8192, 8192), True), ((8192, 4096), False)])
def test_casting_its_weight_is_a_products_work_that_requests_share(dims, seen):
    """16 µs of a product on one row in a step of 80, behind 60 of a cast to FP32: of its weight, or of something else."""

    def body(trace, at):
        shape = [list(dims)] * 2
        trace.op("aten::copy_", at, 3, shape, ["float", "c10::BFloat16"]).launch(at + 1, at + 4, at + 64, "unrolled_elementwise_kernel_copy", dur=2)
        trace.op("aten::mm", at + 4, 5, [[1, 8192], [8192, 8192]], ["float"] * 2).launch(at + 5, at + 64, at + 80, "ampere_sgemm_32x32", dur=2)

    if not seen:
        assert "take 21% of busy time" in clear("low-arithmetic-intensity", repeat(80, body))
        return
    finding = found("low-arithmetic-intensity", repeat(80, body))
    assert finding.severity == "high" and "with the casts of its weights, take 100%" in finding.summary


def test_a_run_that_something_else_held_up_is_not_a_products_work():
    def body(longest):
        def one(trace, at):
            took = longest if at >= 3 * 100 else 3
            linear(1, took)(trace, at)
            trace.op("aten::add", at + 12, 5, N).launch(at + 14, at + 20 + took, at + 30 + took, "vectorized_elementwise_kernel")

        return repeat(100, one)

    assert "take 23% of busy time" in clear("low-arithmetic-intensity", body(3))
    assert "take 1.1% of busy time" in clear("low-arithmetic-intensity", body(800)), "one of four runs took 267 times as long"
    assert found("low-arithmetic-intensity", body(55), min_step_share=0.1), "18 times as long"


def test_the_intensity_threshold_has_two_sides():
    # The ridge of an H200 in BF16 is 989 / 4.8 = 206 FLOP/byte; 16 rows do 16 FLOP/byte, 32 rows do 31.8.
    assert found("low-arithmetic-intensity", repeat(40, linear(16, 39)))
    clear("low-arithmetic-intensity", repeat(40, linear(32, 39)))
    assert found("low-arithmetic-intensity", repeat(40, linear(32, 39)), max_of_ridge=0.2)


def test_in_training_samples_share_a_step():
    def body(trace, at):
        linear(1, 39)(trace, at)
        trace.op("autograd::engine::evaluate_function: MmBackward0", at + 6, 2)

    finding = found("low-arithmetic-intensity", repeat(40, body))
    assert finding.saving.per == "sample" and finding.severity == "low" and finding.fix.title == "Train on more samples at once"


def test_the_ridge_is_that_of_the_device_that_runs_the_product():
    def body(trace, at):
        trace.launch(at, at + 2, at + 3, device=1)
        linear(16, 35)(trace, at + 4)

    trace = repeat(40, body)
    a100 = replace(H200, name="NVIDIA A100-SXM4-80GB")
    trace.devices = (H200, replace(a100, id=1))
    assert found("low-arithmetic-intensity", trace)
    # The ridge of an A100 in BF16 is 312 / 2.039 = 153 FLOP/byte.
    trace.devices = (a100, replace(H200, id=1))
    clear("low-arithmetic-intensity", trace)


def test_a_large_product_is_quiet():
    assert "median intensity" in clear("low-arithmetic-intensity", repeat(1600, linear(8192, 1500)))


def test_a_small_share_of_the_time_is_quiet():
    def body(trace, at):
        linear(1, 30)(trace, at)
        linear(8192, 900)(trace, at + 32)

    clear("low-arithmetic-intensity", repeat(1000, body))


def network(trace, at, us=4):
    """A large product, and 8 pointwise kernels whose launches take longer than they do."""
    trace.op("aten::mm", at, 18, [[8192, 8192]] * 2, ["c10::BFloat16"] * 2).launch(at + 5, at + 12, at + 12 + us, "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNN")
    for k in range(8):
        now = at + us + 16 + 20 * k
        trace.op("aten::add", now, 18, N).launch(now + 5, now + 12, now + 16, "vectorized_elementwise_kernel")


def test_where_launches_bind_an_inference_step_more_requests_share_them():
    finding = found("low-arithmetic-intensity", repeat(200, network))
    assert finding.severity == "low" and finding.status == "possible" and finding.saving.per == "request"
    # The host's 200 µs and the pointwise kernels are one eighth each; the product's 4 µs each request's own.
    assert finding.saving.expected_us == pytest.approx(200 - 200 / 8, abs=4)


def test_what_shares_launches_has_two_sides():
    def without_products(trace, at):
        for now in (at + 20 * k for k in range(10)):
            trace.op("aten::add", now, 18, N).launch(now + 5, now + 12, now + 16, "vectorized_elementwise_kernel")

    assert "no GEMMs" in clear("low-arithmetic-intensity", repeat(200, without_products))
    clear("low-arithmetic-intensity", repeat(200, network), min_launch_share=0.9)
    clear("low-arithmetic-intensity", repeat(600, lambda t, at: network(t, at, 400)))

    def trained(trace, at):
        network(trace, at)
        trace.op("autograd::engine::evaluate_function: MmBackward0", at + 181, 5)

    clear("low-arithmetic-intensity", repeat(200, trained))


def recurrent(blocks):
    """A large product, then a recurrence that fills the GPU's time and, by its blocks, a part of its 132 multiprocessors."""

    def body(trace, at):
        trace.op("aten::mm", at, 10, [[8192, 8192]] * 2, ["c10::BFloat16"] * 2).launch(
            at + 5, at + 12, at + 52, "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNN", grid_blocks=132
        )
        trace.op("aten::_cudnn_rnn", at + 15, 15).launch(at + 20, at + 52, at + 1000, "RNN_blockPersist_fp_LSTM<float>", grid_blocks=blocks)

    return body


def test_kernels_on_few_multiprocessors_are_shared_by_more_requests():
    finding = found("low-arithmetic-intensity", repeat(1000, recurrent(8)))
    assert finding.severity == "low" and "small kernels (1 / 8 of it or less) 95%" in finding.summary and "launches" not in finding.summary
    # Of 948 µs on 8 of 132 multiprocessors an eighth each; the product's 40 µs are each request's own.
    assert finding.saving.expected_us == pytest.approx(948 * 7 / 8, abs=12)
    # On 17, the eight of one multiprocessor each would be more than the device.
    clear("low-arithmetic-intensity", repeat(1000, recurrent(17)))
    clear("low-arithmetic-intensity", repeat(1000, recurrent(-1)))


def test_kernels_on_few_multiprocessors_beside_each_other_are_not_few():
    def side_by_side(trace, at):
        recurrent(132)(trace, at)
        for k in range(8):
            trace.launch(at + 40 + k, at + 60, at + 990, "walk_kernel", stream=20 + k, grid_blocks=8)

    clear("low-arithmetic-intensity", repeat(1000, side_by_side))


def test_products_on_few_rows_are_quiet_where_they_take_little_of_the_step():
    # 39 µs of one row's product in 40 are all of a step; of 400 they are a tenth.
    assert found("low-arithmetic-intensity", repeat(150, linear(1, 39))).severity == "high"
    clear("low-arithmetic-intensity", repeat(400, linear(1, 39)))
    assert found("low-arithmetic-intensity", repeat(400, linear(1, 39)), min_step_share=0.05)


def test_without_shapes_it_says_how_to_record_them():
    assert "shapes" in skipped("low-arithmetic-intensity", repeat(100, small_kernels))


# allocator


def freeing(trace, at, calls=("cudaFree", "cudaMalloc")):
    trace.op("aten::mm", at, 20).launch(at + 10, at + 16, at + 60, dur=4)
    for k, name in enumerate(calls):
        trace.call(name, at + 62 + 150 * k, 148)


def test_freeing_and_allocating_in_every_step_is_found():
    trace = repeat(370, freeing)
    finding = found("allocator", trace)
    assert finding.severity == "high" and "empty_cache" in finding.fix.code.before
    assert finding.saving.expected_us == pytest.approx(296, rel=0.1)


def test_allocating_gains_no_more_than_the_time_for_which_the_device_idles():
    """Each step sends a message for 142 of its 340 µs, on a stream of its own. Memory is freed, which waits for that, and asked for; a product of 100 µs
    follows. Were nothing allocated, the product might run beside the message: 100 µs more than the 98 for which the device idles, possible at most."""

    def body(trace, at):
        trace.launch(at + 10, at + 16, at + 158, "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", dur=4, stream=20)
        trace.call("cudaFree", at + 20, 140).call("cudaMalloc", at + 162, 60)
        trace.op("aten::mm", at + 224, 20).launch(at + 226, at + 230, at + 330, dur=4)

    saving = found("allocator", repeat(340, body)).saving
    assert saving.expected_us <= 98 < saving.high_us <= 98 + 142


def test_pinning_in_every_step_has_its_own_fix():
    finding = found("allocator", repeat(370, lambda t, at: freeing(t, at, ("cudaHostAlloc", "cudaHostAlloc"))))
    assert "Pin host memory once" in finding.fix.title


def test_where_nothing_is_given_back_no_call_is_spoken_of():
    (step,) = found("allocator", repeat(370, lambda t, at: freeing(t, at, ("cudaMalloc", "cudaMalloc")))).fix.steps
    assert "expandable_segments" in step and "no such call" not in step


def test_a_cache_that_grows_now_and_then_is_quiet():
    assert "1 call per step" in clear("allocator", repeat(370, lambda t, at: freeing(t, at, ("cudaMalloc",))))


def test_allocating_behind_a_busy_gpu_costs_nothing():
    def body(trace, host, gpu):
        trace.op("aten::mm", host, 5).launch(host + 2, gpu, gpu + 499, dur=1)
        trace.call("cudaMalloc", host + 10, 10).call("cudaMalloc", host + 25, 10)

    assert "would gain 0%" in clear("allocator", queued(body, gpu=500))


def test_allocations_outside_a_repeated_step_are_start_up():
    trace = Trace().launch(0, 5, 30, "a").call("cudaMalloc", 40, 500).call("cudaFree", 600, 500).launch(1200, 1210, 1300, "b")
    for k in range(12):
        trace.launch(1310 + 20 * k, 1315 + 20 * k, 1325 + 20 * k, f"c{k}")
    clear("allocator", trace)


def unmarked(names, rounds=20):
    """Without steps: rounds of a kernel of 50 µs and of the host's calls of 100 µs each, with pauses of no period."""
    trace, at = Trace(), 0.0
    for n in range(rounds):
        trace.launch(at, at + 5, at + 55, "mine(float*)", dur=4)
        for k, name in enumerate(names):
            trace.call(name, at + 60 + 100 * k, 100)
        if n % 3 == 0:
            trace.launch(at + 260, at + 265, at + 270, f"other{n % 5}(float*)", dur=4)
        at += 300 + 37 * (n * n % 7)
    return trace


def test_memory_that_a_run_without_steps_gives_back_again_and_again_is_found():
    finding = found("allocator", unmarked(("cudaMalloc", "cudaFree")))
    # Between the first and the last of twenty launches: nineteen rounds of two calls.
    assert "38 calls in all hold the host" in finding.summary and "3.80 ms in all" in finding.summary


def test_a_cache_that_fills_in_a_run_without_steps_frees_nothing():
    assert "again and again" in clear("allocator", unmarked(("cudaMalloc", "cudaMalloc")))


def trying(trace, at, steps):
    """A convolution that waits for three kernels in turn in the first of these steps, then ten steps' worth of other work."""
    for s in range(5):
        t = at + 1500 * s
        trace.step(t, 1499, s + 1).op("aten::cudnn_convolution", t + 1, 890)
        for k in range(3 if s < steps else 0):
            trace.launch(t + 10 + 250 * k, t + 20 + 250 * k, t + 120 + 250 * k, f"algorithm{k}").call("cudaEventSynchronize", t + 30 + 250 * k, 95)
        trace.launch(t + 950, t + 960, t + 1400, "later")
    return trace


def test_waits_of_a_convolution_that_tries_algorithms_are_no_stalls():
    assert "no call makes the host wait" in clear("sync-stall", trying(Trace(), 0, 1))
    assert run("sync-stall", trying(Trace(), 0, 5)).findings, "in each step it is the program's way"


# unfused-attention


HEADS = [[16, 512, 64], [16, 64, 512]], [[16, 512, 512], [16, 512, 64]]
SCORES = [[16, 512, 512]]
ATTENTION = ("aten::bmm", "aten::mul", "aten::add", "aten::_softmax", "aten::bmm")


def attention(trace, host, gpu, ops=ATTENTION, each=40, shapes=True, dtype="c10::Half", mask=SCORES):
    """A product, pointwise work, a softmax, a product, of 16 heads of 64 and 512 words."""
    names = {**dict.fromkeys(("aten::bmm", "aten::baddbmm", "aten::mm"), "nvjet_sm90_tst"), "aten::_softmax": "softmax_warp_forward"}
    of = {"aten::mm": [[8192, 64], [64, 8192]], "aten::baddbmm": [*SCORES, *HEADS[0]], "aten::add": mask}
    for k, op in enumerate(ops):
        dims = HEADS[k > 0] if op == "aten::bmm" else of.get(op, SCORES)
        trace.op(op, host + 4 * k, 3, dims if shapes else None, [dtype] * len(dims)).launch(
            host + 4 * k + 1, gpu + each * k, gpu + each * (k + 1) - 0.5, names.get(op, "vectorized_elementwise_kernel")
        )


def test_attention_written_out_is_found():
    finding = found("unfused-attention", queued(attention, gpu=200))
    assert finding.severity == "high" and "scaled_dot_product_attention" in finding.fix.code.after
    # 64 rows of tiles take as long as 128; each has 4 tiles and one more of 4 x 128 x 128 x 64 FLOP, at 0.26 (masked) of 989.5 TFLOP/s: 10.4 µs.
    assert finding.edits[0].gpu_us == pytest.approx(197.5 - 10.4, abs=0.2)


def test_a_mask_of_each_sequence_is_left_out_or_read():
    finding = found("unfused-attention", queued(lambda t, h, g: attention(t, h, g, mask=[[2, 8, 512, 512], [2, 1, 512, 512]]), gpu=200))
    # 128 rows of 4.8 tiles at 0.46 of the rate: 5.7 µs; read, 10.4 as above.
    assert finding.edits[0].gpu_us == pytest.approx(197.5 - 5.7, abs=0.2)


def test_tensors_of_five_axes_may_gain_nothing_from_the_call():
    def deep(trace, host, gpu):
        attention(trace, host, gpu)
        for k in (0, 4):  # the program's call, around the batched product
            trace.op("aten::matmul", host + 4 * k - 0.5, 3.7, [[2, 1, 8, 512, 64]] * 2)

    finding = found("unfused-attention", queued(deep, gpu=200))
    assert finding.saving.low_us == 0 and finding.severity == "medium" and any("four axes" in step for step in finding.fix.steps)


MI300 = replace(H200, name="AMD Instinct MI300X", compute_capability=(9, 4))
RTX_5090 = replace(H200, name="NVIDIA GeForce RTX 5090", compute_capability=(12, 0))


@pytest.mark.parametrize(
    ("lengths", "dtype", "device", "planned"),
    [
        (range(500, 508), "c10::Half", H200, True),
        ([512] * 8, "c10::Half", H200, False),
        (range(500, 508), "float", H200, False),
        (range(500, 508), "c10::Half", MI300, False),
        (range(500, 508), "c10::Half", RTX_5090, False),
    ],
)
def test_lengths_of_each_step_s_own_are_planned_anew(lengths, dtype, device, planned):
    """One word after the other is decoded: where the call prefers cuDNN, that makes a plan for each length, which takes longer than the step."""
    trace = Trace((device,))
    for s, keys in enumerate(lengths):
        trace.step(50 * s, 49, s + 1)
        sizes = [[64, 64, 128], [64, 128, keys]], [[64, 64, keys]], [[64, 64, keys]], [[64, 64, keys], [64, keys, 128]]
        for k, (op, dims) in enumerate(zip(("aten::bmm", "aten::mul", "aten::_softmax", "aten::bmm"), sizes, strict=True)):
            name = {"aten::bmm": "nvjet_sm90_tst", "aten::_softmax": "softmax_warp_forward"}.get(op, "vectorized_elementwise_kernel")
            at, gpu = 50 * s + 4 * k, 50 + 800 * s + 200 * k
            trace.op(op, at, 3, dims, [dtype] * len(dims)).launch(at + 1, gpu, gpu + 199, name)
    finding = found("unfused-attention", trace)
    assert any("enable_cudnn_sdp" in step for step in finding.fix.steps) == planned
    assert not planned or (finding.severity, finding.saving.low_us) == ("low", 0)


def test_a_pause_inside_attention_is_not_what_fusing_it_gains():
    # Four layers, recorded once. Inside the third op of each the host pauses for 5 ms, for no reason that repeats.
    trace, names = Trace(), {"aten::bmm": "nvjet_sm90_tst", "aten::_softmax": "softmax_warp_forward"}
    host = 0.0
    for layer in range(4):
        for k, op in enumerate(ATTENTION):
            pause = 5000.0 * (k == 2)
            dims = HEADS[k > 0] if op == "aten::bmm" else SCORES
            trace.op(op, host, 8 + pause, dims, ["c10::Half"] * len(dims))
            trace.launch(host + pause + 2, host + pause + 8, host + pause + 48, names.get(op, f"vectorized_elementwise_kernel_{layer}"))
            host += pause + 60
    finding = found("unfused-attention", trace)
    # 20 kernels of 40 µs, and what the device waited for each launch: nothing of the 20 ms of pauses.
    assert 700 < finding.saving.expected_us < 4 * 5 * 60


@pytest.mark.parametrize(("each", "whole"), [(40, 197.5), (8, 37.5)])
def test_a_fused_attention_in_fp32_may_cost_more_than_it_saves(each, whole):
    """128 rows of 8.2 tiles of 4 x 64 x 64 x 64 FLOP, at 0.4 (masked) of 66.9 TFLOP/s: 41 µs, whatever the kernels took."""
    finding = found("unfused-attention", queued(lambda t, h, g: attention(t, h, g, each=each, dtype="float"), gpu=5 * each))
    assert finding.edits[0].gpu_us == pytest.approx(whole - 41.1, abs=0.2)


def test_attention_is_found_by_its_order_where_no_shapes_were_recorded():
    finding = found("unfused-attention", queued(lambda t, h, g: attention(t, h, g, shapes=False), gpu=200))
    assert 200 - finding.saving.expected_us == pytest.approx(0.7 * 79, abs=3)


def test_without_shapes_attention_in_fp32_takes_twice_as_long():
    def body(trace, host, gpu):
        attention(trace, host, gpu, shapes=False)
        for row in trace.rows["gpu_ops"][-5::4]:
            row["name"] = "ampere_sgemm_128x64_nn"

    assert found("unfused-attention", queued(body, gpu=200)).edits[0].gpu_us == pytest.approx(197.5 - 2 * 0.7 * 79, abs=0.2)


def test_without_shapes_the_other_products_of_a_node_of_autograd_belong_to_attention():
    """The backward pass: two products a node, of which only one stands next to what lies between them; fused, one kernel takes 0.7 of all four."""
    ops = ("aten::bmm", "aten::bmm", "aten::mul", "aten::_softmax", "aten::bmm", "aten::bmm")

    def body(trace, host, gpu):
        attention(trace, host, gpu, ops, shapes=False)
        for k in (0, 4):
            trace.op("autograd::engine::evaluate_function: BmmBackward0", host + 4 * k - 0.5, 8)

    assert found("unfused-attention", queued(body, gpu=240)).edits[0].gpu_us == pytest.approx(6 * 39.5 - 0.7 * 4 * 39.5, abs=0.2)


def test_a_classifiers_softmax_is_no_attention():
    ops = ("aten::mm", "aten::add", "aten::_softmax", "aten::mul", "aten::mm")
    for shapes in (True, False):
        clear("unfused-attention", queued(lambda t, h, g, s=shapes: attention(t, h, g, ops, shapes=s), gpu=200))


def test_a_softmax_without_products_around_it_is_no_attention():
    ops = ("aten::bmm", "aten::_softmax", "aten::add", "aten::mul", "aten::add")
    clear("unfused-attention", queued(lambda t, h, g: attention(t, h, g, ops), gpu=200))


def test_without_shapes_other_work_between_the_products_ends_the_search():
    ops = ("aten::bmm", "aten::sort", "aten::_softmax", "aten::mul", "aten::bmm")

    def body(trace, host, gpu):
        attention(trace, host, gpu, ops, shapes=False)
        trace.rows["gpu_ops"][-4]["name"] = "DeviceRadixSortOnesweepKernel"

    clear("unfused-attention", queued(body, gpu=200))


def test_without_shapes_a_bias_that_is_fetched_by_index_belongs_to_attention():
    ops = ("aten::bmm", "aten::index", "aten::_softmax", "aten::mul", "aten::bmm")

    def body(trace, host, gpu):
        attention(trace, host, gpu, ops, shapes=False)
        trace.rows["gpu_ops"][-4]["name"] = "void at::native::vectorized_gather_kernel<16, long>"

    found("unfused-attention", queued(body, gpu=200))


def test_fused_attention_is_said():
    def body(trace, host, gpu):
        trace.op("aten::_scaled_dot_product_flash_attention", host, 5).launch(host + 1, gpu, gpu + 99, "flash_fwd_kernel")

    assert "attention is fused" in clear("unfused-attention", queued(body, gpu=100))


# precision


def product(kernel, dtype="float", us=1500.0):
    def body(trace, host, gpu):
        trace.op("aten::mm", host, 5, [[4096, 4096], [4096, 4096]], [dtype] * 2).launch(host + 1, gpu, gpu + us, kernel)

    return queued(body, gpu=us + 1)


FFMA = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas"


def test_fp32_on_cuda_cores_is_found_though_its_name_says_xmma():
    finding = found("precision", product(FFMA))
    # TF32, the first fix: 2 x 4096^3 FLOP at 0.8 of 494.5 TFLOP/s take 347 µs. In BF16 174 µs and casts of 47 µs would be left.
    assert 1501 - finding.saving.expected_us == pytest.approx(348, rel=0.01)
    assert 1501 - finding.saving.high_us < 221
    assert "set_float32_matmul_precision" in finding.fix.code.after and "bfloat16" in finding.fix.steps[1] and finding.severity == "high"


def test_tf32_gains_what_16_bits_are_faster_and_bf16_is_quiet():
    finding = found("precision", product("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16"))
    assert "TF32" in finding.title
    assert finding.saving.low_us == pytest.approx(0, abs=1), "turning TF32 on gains nothing where it is on"
    # What holds a TF32 product up beside its rate stays: half of 1,500 µs, though 137 GFLOP would take 174.
    assert finding.saving.expected_us == pytest.approx(750, rel=0.01)
    assert "bf16" in clear("precision", product("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "c10::BFloat16"))


def test_a_device_without_known_rates_is_skipped_and_one_without_tensor_cores_quiet():
    from advisor.recordings.timeline import Device

    trace = product(FFMA)
    trace.devices = (Device(0, "Some GPU", 10, (3, 5)),)
    assert "Some GPU" in skipped("precision", trace)


def test_fp32_behind_a_slow_host_gains_nothing():
    def body(trace, at):
        trace.op("aten::mm", at, 900, [[512, 512], [512, 512]]).launch(at + 880, at + 886, at + 946, FFMA, dur=4)

    assert "would gain" in clear("precision", repeat(1000, body), min_saving_share=0.07)


def test_a_wait_after_the_last_launch_of_the_only_step_is_worth_nothing():
    def one(waits_at):
        trace = Trace().step(0, 1000, 1)
        for k in range(10):
            trace.launch(100 + 20 * k, 110 + 60 * k, 165 + 60 * k, f"kernel{k}")
        trace.call("cudaStreamSynchronize", waits_at, 300)
        return trace

    assert "no call makes the host wait" in clear("sync-stall", one(420))
