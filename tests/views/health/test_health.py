"""Every question asked of a trace before any advice, each answer by a small trace: fit, with reserve, unfit."""

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import CopyKind, ReadIssue
from advisor.report.model import UNKNOWN
from advisor.views.health import TraceHealth
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.paths import ROOT


def loop(lag=3.0, periods=(100, 100, 100, 100)):
    trace, at = Trace(), 0.0
    for s, period in enumerate(periods):
        trace.step(at, period - 1, s + 1).op("aten::mm", at, 20).launch(at + 5, at + 5 + lag, at + 25 + lag)
        at += period
    return trace


def answers(trace):
    return {h.check: h.status for h in trace.get(TraceHealth).results}


def detail(trace, check):
    return next(h.detail for h in trace.get(TraceHealth).results if h.check == check)


def test_a_good_trace_passes_every_check_in_a_fixed_order():
    assert list(answers(loop())) == [
        "complete-file", "timestamps", "graph-trace", "durations", "clock-causality", "launch-links", "gpu-events", "unseen-work", "stream-order",
        "steps", "start-up", "roofline", "recording-cost", "replay",
    ]  # fmt: skip
    assert set(answers(loop()).values()) == {"ok"} and not loop().get(TraceHealth).failed
    documented = (ROOT / "docs" / "report.md").read_text()
    assert all(f"| `{check}` |" in documented for check in answers(loop()))


@pytest.mark.parametrize("check", ["complete-file", "timestamps", "graph-trace", "durations"])
@pytest.mark.parametrize("status", ["degraded", "failed"])
def test_what_the_reader_found_is_passed_on(check, status):
    timeline = loop().timeline()
    issue = ReadIssue(check, "the last 3 events are cut", status)
    timeline = replace(timeline, source=replace(timeline.source, issues=(issue, ReadIssue("another", "x", "failed"))))
    found = {h.check: h for h in Workspace(timeline).get(TraceHealth).results}
    assert found[check].status == status and "last 3 events" in found[check].detail
    assert [h.check for h in found.values() if h.status != "ok"] == [check], "and to no other check"


def cut(trace):
    timeline = trace.timeline()
    return replace(timeline, source=replace(timeline.source, issues=(ReadIssue("complete-file", "the file ends at byte 9", cut=True),)))


def test_a_file_that_was_cut_fails_and_is_judged_in_part_at_most():
    part, none = cut(loop()), cut(Trace().op("aten::mm", 0, 10))
    checks = [next(h for h in Workspace(timeline).get(TraceHealth).results if h.check == "complete-file") for timeline in (part, none)]
    assert [(h.status, h.touches) for h in checks] == [("failed", ()), ("failed", ("host", "kernels"))]
    assert all("whole file" in h.record_with for h in checks)
    report = run(none, built_in().values())
    assert report.headline.judged == "no" and {s.record_with for s in report.skipped} == {checks[1].record_with}, "recording the GPU too would not help"


def waited(trace, us):
    """Four steps of 60 kernels with a pause of the host before the next."""
    for s in range(5):
        at = s * (1200.0 + us)
        trace.step(at, 1199 + us, s + 1)
        for k in range(60):
            trace.op("aten::relu", at + 20 * k, 15).launch(at + 20 * k + 2, at + 20 * k + 8, at + 20 * k + 24)
    return trace


@pytest.mark.parametrize(("pause_us", "verdict", "of"), [(2000.0, "no", "idle time"), (200.0, "partly", "may be missing")])
def test_what_a_cut_file_may_lack_is_neither_judged_nor_found(pause_us, verdict, of):
    whole, part = (run(timeline, built_in().values()) for timeline in (waited(Trace(), pause_us).timeline(), cut(waited(Trace(), pause_us))))
    assert whole.headline.judged == "yes" and any(f.status == "found" for f in whole.findings)
    assert (part.headline.bottleneck == UNKNOWN) == (verdict == "no")
    assert part.headline.judged == verdict and of in part.headline.judged_why and "byte 9" in part.headline.judged_why
    assert part.findings and all(f.status == "possible" and not f.loud for f in part.findings)
    assert part.headline.predicted_step_us.expected == part.headline.step_us


def early(bad, total=100):
    """So many of `total` kernels seem to start 50 µs before their launch."""
    trace = Trace()
    for k in range(total):
        at = 100.0 * k
        trace.step(at, 99, k + 1).launch(at + 5, at + (8 if k >= bad else -45), at + (28 if k >= bad else -25))
    return trace


@pytest.mark.parametrize(("bad", "status"), [(0, "ok"), (1, "degraded"), (5, "degraded"), (6, "failed"), (100, "failed")])
def test_clock_causality(bad, status):
    trace = early(bad)
    assert answers(trace)["clock-causality"] == status
    if bad:
        assert f"{bad} of 100" in detail(trace, "clock-causality") and "50 µs" in detail(trace, "clock-causality")


@pytest.mark.parametrize(("period", "status"), [(1000, "failed"), (1100, "degraded")])
def test_clocks_that_disagree_hide_no_cause_of_gaps_that_are_far_longer(period, status):
    # Kernels of 20 µs that start 50 µs early: of gaps of 980 µs that is 5.1 %, of 1080 µs 4.6 %.
    trace = loop(lag=-50, periods=[period] * 4)
    assert answers(trace)["clock-causality"] == status
    assert ("so gaps cannot" in detail(trace, "clock-causality")) == (status == "failed")


def test_a_long_gap_before_the_steps_does_not_make_theirs_sure():
    # A kernel a second before: of the gaps of 80 µs in the steps clocks that are 50 µs off hide more than half.
    trace = loop(lag=-50)
    trace.launch(-1e6, -1e6 + 5, -1e6 + 25)
    assert answers(trace)["clock-causality"] == "failed"


def test_a_clock_may_be_off_by_a_few_microseconds():
    assert answers(loop(lag=-4.9))["clock-causality"] == "ok"
    assert answers(loop(lag=-5.1))["clock-causality"] == "failed"


def orphans(count):
    trace = loop()
    for k in range(count):
        trace.gpu(130 + k, 130.5 + k, "orphan")
    return trace


@pytest.mark.parametrize(("count", "status"), [(0, "ok"), (1, "ok"), (2, "degraded")])
def test_launch_links(count, status):
    # Three linked kernels stand in the window: of 4 they are 75 %, of 5 they are 60 %; the line is 70 %.
    assert answers(orphans(count))["launch-links"] == status


def test_merged_ranks_are_suspected():
    trace = loop().call("cudaLaunchKernel", 250, 1, 1, tid=2)
    assert answers(trace)["launch-links"] == "failed" and "several ranks" in detail(trace, "launch-links")


@pytest.mark.parametrize(
    ("periods", "status"),
    [((100, 100, 100, 100), "ok"), ((100, 120, 100, 100), "ok"), ((100, 130, 95, 100), "degraded"), ((100, 100), "degraded"), ((100,), "degraded")],
)
def test_steps(periods, status):
    assert answers(loop(periods=periods))["steps"] == status


@pytest.mark.parametrize(("ops", "status"), [(11, "failed"), (12, "degraded")])
def test_without_marks_it_says_how_to_record_them_and_a_few_ops_are_no_program(ops, status):
    trace = Trace()
    for k in range(ops):
        trace.launch(20 * k, 20 * k + 5, 20 * k + 10, f"kernel{k}")
    (steps,) = (h for h in trace.get(TraceHealth).results if h.check == "steps")
    assert steps.status == status and "prof.step()" in steps.record_with
    assert steps.touches == (("host",) if status == "failed" else ("host", "kernels"))


def test_steps_far_from_the_others_are_named():
    assert "no. 2 with 200 µs" in detail(loop(periods=(100, 200, 100, 100, 100)), "steps")


def with_lost(lost, step_losses=0):
    """100 steps of ten launches, of which `lost` have no kernel, all in different steps behind the first ten; and a step that lost so many."""
    trace = Trace()
    for s in range(101):
        trace.step(100.0 * s, 99, s + 1)
        for k in range(10):
            at = 100.0 * s + 9 * k
            gone = (10 <= s < 10 + lost and k == 5) or (s == 99 and 0 < k <= step_losses)
            trace.call("cudaLaunchKernel", at, 2) if gone else trace.launch(at, at + 6, at + 8, dur=2)
    return trace


@pytest.mark.parametrize(("lost", "in_one_step", "status"), [(0, 0, "ok"), (5, 0, "ok"), (6, 0, "degraded"), (51, 0, "failed"), (0, 5, "ok"), (0, 6, "failed")])
def test_gpu_events(lost, in_one_step, status):
    assert answers(with_lost(lost, in_one_step))["gpu-events"] == status


def test_launches_that_a_capture_records_are_not_lost():
    trace = loop()
    trace.call("cudaStreamBeginCapture_v10000", 30, 1)
    for k in range(10):
        trace.call("cudaLaunchKernel", 32 + k, 0.5)
    trace.call("cudaStreamEndCapture_v10000", 45, 1)
    assert answers(trace)["gpu-events"] == "ok"
    trace.call("cudaLaunchKernel", 150, 0.5)
    assert answers(trace)["gpu-events"] == "failed", "one made after it is"


def test_a_recording_that_lost_most_of_its_work_outside_the_window_says_so():
    trace = loop()
    assert answers(trace)["gpu-events"] == "ok"
    for k in range(1000):
        trace.call("cudaLaunchKernel", 100_000 + k, 0.5)
    found = {check.check: check for check in trace.get(TraceHealth).results}["gpu-events"]
    assert found.status == "degraded" and "; outside the window 1,000 of 1,001 have none: the GPU's work" in found.detail and not found.touches


def test_where_no_op_names_its_launch_none_is_called_lost():
    trace = Trace()
    for s in range(3):
        trace.step(100.0 * s, 99, s + 1).call("cudaLaunchKernel", 100.0 * s + 5, 2).gpu(100.0 * s + 10, 100.0 * s + 30)
    assert answers(trace)["gpu-events"] == "ok"


@pytest.mark.parametrize(("early", "status"), [(0, "ok"), (9, "ok"), (60, "failed")])
def test_stream_order(early, status):
    # Kernels of 100 µs, each begun so long before the end of the one ahead.
    trace, start = Trace(), 10.0
    for s in range(5):
        trace.step(50.0 * s, 49, s + 1).launch(50.0 * s, start, start + 100)
        start += 100 - early
    assert answers(trace)["stream-order"] == status


def test_nodes_of_one_graph_may_run_side_by_side():
    trace = Trace()
    for s in range(5):
        trace.step(500.0 * s, 499, s + 1).call("cudaGraphLaunch", 500.0 * s, 10, 100 + s)
        for k in range(4):
            trace.gpu(500.0 * s + 20 + 10 * k, 500.0 * s + 120 + 10 * k, f"node{k}", correlation=100 + s)
    assert answers(trace)["stream-order"] == "ok"


def test_nodes_of_one_graph_may_start_and_end_together():
    trace = Trace()
    for s in range(5):
        trace.step(500.0 * s, 499, s + 1).call("cudaGraphLaunch", 500.0 * s, 10, 100 + s)
        for k in range(2):
            trace.gpu(500.0 * s + 20, 500.0 * s + 120, f"node{k}", correlation=100 + s)
    assert answers(trace)["stream-order"] == "ok"


def test_ops_that_are_there_twice_are_no_nodes_of_a_graph():
    trace = loop()
    for row in [*trace.rows["gpu_ops"]]:
        trace.gpu(row["start_us"], row["start_us"] + row["dur_us"], correlation=row["correlation"])
    assert answers(trace)["stream-order"] == "failed"


def test_an_op_without_its_launch_is_told_as_one_and_not_as_another_recording():
    trace = Trace().op("aten::mm", 0, 5).gpu(10, 100)
    (found,) = (h for h in trace.get(TraceHealth).results if h.check == "launch-links")
    assert found.detail == "none of 1 GPU op in the window has its launch in the trace" and "activities" not in found.record_with


@pytest.mark.parametrize(("unit", "status"), [(1.0, "ok"), (1000.0, "failed")])
def test_times_in_nanoseconds_are_not_taken_for_microseconds(unit, status):
    trace = Trace(recorder="kineto")
    for k in range(20):
        at = 20 * k * unit
        trace.step(at, 19 * unit, k + 1).op("aten::mm", at, 9 * unit).launch(at + unit, at + 9 * unit, at + 12 * unit, dur=4 * unit)
    assert answers(trace)["timestamps"] == status


def test_launches_that_wait_for_a_full_queue_are_no_times_in_nanoseconds():
    trace = Trace(recorder="kineto")
    for k in range(20):
        trace.op("aten::mm", 500 * k, 450).launch(500 * k, 500 * k + 500, 500 * k + 990, dur=440)
        trace.op("aten::view", 500 * k + 460, 3)
    assert answers(trace)["timestamps"] == "ok"


def test_a_host_that_waits_for_a_full_queue_in_each_op_has_microseconds():
    trace = Trace(recorder="kineto")
    for k in range(20):
        trace.op("aten::mm", 10_000.25 * k, 9_990.125).launch(10_000.25 * k + 1, 10_000.25 * (k + 1), 10_000.25 * (k + 2) - 1, dur=9_980.5)
    assert answers(trace)["timestamps"] == "ok"


def recorded_by_kineto(launches):
    """A host that needs 100 µs a step, all of it within events, and a GPU that works 10 of them."""
    trace = Trace(recorder="kineto")
    for s in range(5):
        trace.step(100.0 * s, 99, s + 1)
        for k in range(launches):
            at, each = 100.0 * s + 100 / launches * k, 100 / launches
            trace.op("aten::add", at, 0.9 * each).launch(at + 0.3 * each, at + 0.9 * each, at + 0.9 * each + 10 / launches, dur=0.6 * each)
    return trace


def test_recording_that_leaves_much_of_the_step_open_is_said_with_what_would_tell():
    (cost,) = (h for h in recorded_by_kineto(10).get(TraceHealth).results if h.check == "recording-cost")
    assert cost.status == "degraded" and "--step-ms" in cost.record_with
    assert cost.touches == ()  # each finding is held against it by itself
    (cost,) = (h for h in recorded_by_kineto(1).get(TraceHealth).results if h.check == "recording-cost")
    assert "a step took 100 µs with the profiler" in cost.detail
    once = Trace(recorder="kineto")
    for k in range(20):
        once.op(f"aten::{'add' * (k + 1)}", 10.0 * k, 9).launch(10.0 * k + 3, 10.0 * k + 9, 10.0 * k + 10, name=f"kernel{k}", dur=5)
    (cost,) = (h for h in once.get(TraceHealth).results if h.check == "recording-cost")
    assert "the run took" in cost.detail, "where nothing repeats there is no step"


def held(us):
    """A kernel that starts `us` after its launch for no reason that the trace shows, and a host that waits for it: of a
    step of 200 + us the replay knows some 200."""
    trace, period = Trace(), 200 + us
    for s in range(5):
        at = float(period * s)
        trace.step(at, period - 1, s + 1).op("aten::mm", at, 60).launch(at + 5, at + 11, at + 50).launch(at + 50, at + 50 + us, at + 60 + us, stream=8)
        trace.call("cudaDeviceSynchronize", at + 60, us + 5)
    return trace


@pytest.mark.parametrize(("us", "status"), [(20, "ok"), (110, "degraded"), (800, "failed")])
def test_replay(us, status):
    assert answers(held(us))["replay"] == status


@pytest.mark.parametrize(("us", "kernel", "status"), [(0, "gemm", "ok"), (3000, "gemm", "failed"), (3000, "ncclDevKernel_AllReduce_Sum_f32", "ok")])
def test_a_host_that_stands_still_while_the_device_does_not_is_no_base_for_a_replay(us, kernel, status):
    # The device is 5 ms behind, and works off what was launched before. One that waits for other ranks is behind now more, now less.
    trace, at = Trace().gpu(0, 5000, "warm-up"), 0.0
    for s in range(5):
        pause = us if s == 2 else 0
        trace.step(at, 99 + pause, s + 1).launch(at + 1, 5000 + 100 * s, 5049 + 100 * s).launch(at + 50 + pause, 5050 + 100 * s, 5099 + 100 * s, kernel)
        at += 100 + pause
    assert answers(trace)["replay"] == status


def test_a_check_that_touches_all_silences_every_rule_and_says_why():
    timeline = held(800).timeline()
    report = run(timeline, built_in().values())
    speak = {rule.id for rule in built_in().values() if Workspace(timeline).can_build(rule.function)}
    assert not report.findings and not report.clear and {s.rule for s in report.skipped} == speak
    assert all("unseen-work" in s.why and s.record_with for s in report.skipped), "the first of those that fail"
    assert report.headline.predicted_step_us.expected == report.headline.step_us
    assert (report.headline.judged, report.headline.bottleneck) == ("no", UNKNOWN), "what bounds per step that cannot be judged is not known"
    assert report.headline.summary.startswith("The check for unrecorded work (`unseen-work`) failed: 2.18 ms in 4 waits of the host while nothing runs ")
    assert not [check for check in report.health if check.check == "consistency"]


def test_no_gpu_work_is_nothing_to_replay():
    found = answers(Trace().op("aten::mm", 0, 10))
    assert found["replay"] == "ok" and found["launch-links"] == "ok" and found["clock-causality"] == "ok"


def test_pages_that_migrate_are_no_ops_of_the_program():
    trace = Trace().launch(0, 5, 1_000, "add", dur=4)
    for k in range(40):
        trace.gpu(10 + 20 * k, 20 + 20 * k, "migration", stream=9, kind="memcpy", copy_kind=CopyKind.MIGRATION_HTOD.value)
    assert answers(trace)["steps"] == "failed" and detail(trace, "steps").startswith("1 GPU op ")


def test_what_is_too_little_to_matter_is_said_all_the_same():
    assert detail(with_lost(5), "gpu-events") == "5 of 1,000 launches in the window have no GPU op in the trace (up to 0.5% is tolerated)"
    # In two steps of 200 kernels one overlaps the one before it by 55 of 75 µs; and loading a library takes 0.1 of 40 ms.
    trace = Trace()
    for s in range(3):
        trace.step(20_200.0 * s, 20_199, s + 1)
        for k in range(200):
            at = 20_200.0 * s + 100 * k - (80 if (s, k) == (1, 50) else 0)
            trace.launch(at + 10, at + 20, at + 95, f"kernel{k % 7}")
    trace.call("cuModuleLoadData", 20_097, 100)
    assert detail(trace, "stream-order").startswith("1 of 400 GPU ops in the window overlap another op of their stream by half")
    assert answers(trace)["start-up"] == "ok" and detail(trace, "start-up").startswith("0.2% of the window is start-up work")


def test_what_a_check_lets_pass_is_counted_and_no_text_says_more_than_was_looked_at():
    assert detail(loop(), "clock-causality") == "of 4 GPU ops with a launch none starts before it"
    assert detail(loop(lag=-2.5), "clock-causality") == "4 of 4 GPU ops start before their launch, by up to 2.50 µs (up to 5 µs is tolerated)"
    beyond = loop(periods=[100] * 20)
    beyond.call("cudaLaunchKernel", 100_000, 0.5)
    assert answers(beyond)["gpu-events"] == "ok"
    assert detail(beyond, "gpu-events") == "of 19 launches in the window none lacks its GPU op; outside the window 1 of 2 have none"
