"""Findings that rest on the host's time as recording leaves it open are possible, not found."""

import msgspec
import numpy as np
import pytest

from advisor.engine.rule import Found, Judged, built_in
from advisor.engine.run import run
from advisor.engine.uncertainty import doubted, first_seen
from advisor.knowledge.structs import replace
from advisor.report.finding import Evidence, Fix
from advisor.report.recording import Health
from advisor.views.replay.edits import CheaperDispatch, Edits, WithDurations, WithHostTime, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.replay import Replay
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.engine.test_rule import ruled


def loop(gpu_us, python=30, recorder="kineto"):
    """Four ops a step of 160 µs, each with a launch; most of the host's time goes by in Python calls that do nothing."""
    trace, free = Trace(recorder=recorder), 0.0
    for s in range(6):
        trace.step(160.0 * s, 159, s + 1)
        for k in range(4):
            at = 160.0 * s + 40 * k
            trace.op("aten::relu", at, 39)
            for i in range(python):
                trace.python("<built-in function len>", at + 0.5 + 0.6 * i, 0.3)
            start = max(at + 28, free)
            trace.launch(at + 20, start, start + gpu_us / 4, dur=5)
            free = start + gpu_us / 4
    return trace


def launch_gap(report):
    return next((f for f in report.findings if f.rule == "launch-gap"), None)


def judged(trace):
    return run(trace.timeline(), [built_in()["launch-gap"]])


def test_a_host_that_is_the_bound_at_its_fastest_stays_found():
    report = judged(loop(gpu_us=8, python=0))
    found = launch_gap(report)
    assert found and found.status == "found" and found.severity in ("high", "medium") and not found.decide_with


def test_a_host_that_may_hide_behind_the_gpu_is_only_possible():
    trace = loop(gpu_us=64)
    step = trace.get(Replay).true_step
    assert step.low_us < 80 < step.high_us
    report = judged(trace)
    found = launch_gap(report)
    if found:  # where it is worth a word at all
        assert found.status == "possible" and found.severity in ("low", "info") and "--step-ms" in found.decide_with
    assert report.headline.predicted_step_us.expected == report.headline.step_us
    assert report.headline.judged_reason == "overhead"


def test_the_same_trace_by_a_recorder_that_costs_nothing_is_found():
    found = launch_gap(judged(loop(gpu_us=64, recorder="unheard of")))
    assert found and found.status == "found"


def test_savings_and_the_step_are_in_true_time():
    report = judged(loop(gpu_us=8, python=0))
    window = report.window
    assert report.headline.step_us == window.true_step_us.expected < window.step_us == 160
    assert window.recording_us == window.step_us - window.true_step_us.expected
    assert launch_gap(report).saving.high_us <= report.headline.step_us
    # Time stays as recorded; what recording added is idle time of the profiler's.
    (time,) = report.time
    assert abs(time.idle.profiler - window.recording_us * window.steps) < 1e-6
    assert abs(sum(part.us for part in report.breakdown) - report.headline.step_us) < 1e-6


def compiled(costs_us):
    """A rule whose fix halves what the GPU does, and costs the host so much for each of the four ops of a step."""

    def function(work: GpuWork, *, max_calls: int = 3):
        every = np.arange(len(work.dur_us))
        edits = Edits.exact(combine(WithDurations(every, work.dur_us / 2), WithHostTime(every, costs_us)))
        fix = Fix(title="Do less", steps=("Do less.",))
        return Found(summary="It is slow.", evidence=(Evidence("relu", 0.0, 1.0),), fix=fix, edits=edits)

    return ruled(function)


def test_a_fix_that_costs_the_host_is_only_possible_where_a_slow_host_would_be_the_bound():
    # The GPU needs 94 µs a step, the host 78, or 141 where recording cost least: half of the GPU's time is then nothing.
    timeline = loop(gpu_us=90).timeline()
    (free,), (dear,) = (run(timeline, [compiled(us)]).findings for us in (0.0, 2.0))
    # What costs it nothing gains the mean of that and of what is left where recording cost most: the GPU's half, and the gaps between its ops.
    assert free.status == "found" and free.saving.expected_us == pytest.approx(((94 - 78) + (90 / 2)) / 2, abs=1)
    # What costs it 8 µs loses these where it is the bound, which is less than likely: 0.27 of the GPU's half, the rest what the likely host gains.
    mean_us = 0.73 * (94 - 78 - 8) + 0.27 * (90 / 2)
    assert dear.status == "possible" and dear.severity == "low" and dear.saving.expected_us == pytest.approx(mean_us, abs=1)
    assert "adds host work" in dear.possible_why and "--step-ms" in dear.decide_with


@pytest.mark.parametrize(("gpu_us", "of_the_gpu"), [(64, True), (90, False)])
def test_what_gains_at_one_end_of_the_hosts_range_alone_is_possible_and_never_clear(gpu_us, of_the_gpu):
    """The host likely needs 78 µs of a step, and 43 to 141 may be: a GPU of 64 is not the bound likely, one of 90 is."""

    def function(work: GpuWork, *, max_calls: int = 3):
        every = np.arange(len(work.dur_us))
        edits = Edits.exact(WithDurations(every, work.dur_us / 2) if of_the_gpu else CheaperDispatch(0.2))
        fix = Fix(title="Do less", steps=("Do less.",))
        return Found(summary="It is slow.", quiet="it is slow", evidence=(Evidence("relu", 0.0, 1.0),), fix=fix, edits=edits)

    timeline = loop(gpu_us=gpu_us).timeline()
    replay = Workspace(timeline).get(Replay)
    ops = np.arange(len(replay.corrected.op_row))
    edit = WithDurations(ops, np.full(len(ops), gpu_us / 8)) if of_the_gpu else CheaperDispatch(0.2)
    assert replay.share(replay.corrected, edit) < 0.01 and replay.expected_share(edit) < 0.2 < replay.most_share(edit)
    (finding,) = run(timeline, [ruled(function, min_saving_share=0.2)]).findings
    assert (finding.status, finding.severity) == ("possible", "low") and "profiler overhead hides which of them limits the step" in finding.possible_why
    assert finding.saving.low_us == 0 and finding.saving.high_us > 0.2 * replay.true_step.expected_us and "--step-ms" in finding.decide_with


def test_a_fix_that_costs_a_host_far_below_the_gpu_stands():
    (finding,) = run(loop(gpu_us=300).timeline(), [compiled(2.0)]).findings
    assert finding.status == "found" and finding.severity == "high"


def held(**saving):
    """A finding of 40 % that gains the host's time by cheaper launches, and its replay."""
    trace = loop(gpu_us=8, python=0, recorder="unheard of")
    found = launch_gap(judged(trace))
    finding = msgspec.structs.replace(found, severity="high", status="found", saving=msgspec.structs.replace(found.saving, **saving))
    return Judged(finding, Edits(*(CheaperDispatch(0.5),) * 3)), trace.get(Replay), trace.timeline().source


def test_a_gain_of_the_hosts_time_is_only_possible_where_a_check_of_the_host_fails():
    failed = Health(check="steps", status="failed", detail="a start", touches=("host",), record_with="more steps")
    finding = doubted(*held(), failed).finding
    assert (finding.status, finding.severity, finding.decide_with) == ("possible", "low", "more steps") and "steps" in finding.possible_why
    assert doubted(*held()).finding.severity == "high"


def test_what_may_gain_nothing_is_no_more_than_medium():
    finding = doubted(*held(low_us=0.0)).finding
    assert (finding.status, finding.severity) == ("found", "medium")


@pytest.mark.parametrize(
    ("low_us", "expected_us", "on_host", "severity"),
    [
        (0.0, 20.0, False, "low"),  # of steps of 160 µs: an eighth
        (0.0, 32.0, False, "high"),
        (4.0, 20.0, False, "high"),
        (0.0, 20.0, True, "low"),
        (0.0, 32.0, True, "medium"),
        (4.0, 32.0, True, "high"),
    ],
)
def test_what_may_gain_nothing_and_likely_not_much_is_low(low_us, expected_us, on_host, severity):
    found, replay, source = held(low_us=low_us, expected_us=expected_us)
    if not on_host:
        found = found._replace(
            finding=msgspec.structs.replace(found.finding, rule="precision"),
            edits=Edits.exact(WithDurations(np.arange(len(replay.recorded.op_row)), replay.recorded.dur_us / 2)),
        )
    assert doubted(found, replay, source).finding.severity == severity
    if not on_host:  # a collective that moves elsewhere is no other kernel
        moved = found._replace(finding=msgspec.structs.replace(found.finding, rule="missed-overlap"))
        assert doubted(moved, replay, source).finding.severity == "high"
        told = [doubted(found, replay, replace(source, format="kineto", shapes=shapes)).finding for shapes in (True, False)]
        unsure = severity == "low"
        assert [finding.status for finding in told] == ["found", "possible" if unsure else "found"], "shapes were not recorded"
        assert [finding.severity for finding in told] == [severity] * 2


@pytest.mark.parametrize(("low_us", "expected_us", "status"), [(0.0, 28.0, "possible"), (0.0, 36.0, "found"), (4.0, 28.0, "found")])
def test_of_a_single_step_what_may_gain_nothing_and_no_fifth_is_only_possible(low_us, expected_us, status):
    found, replay, source = held(low_us=low_us, expected_us=expected_us)
    told = doubted(found, replay, source, alone=True).finding
    assert told.status == status and (told.severity, bool(told.decide_with)) == (("low", True) if status == "possible" else (told.severity, False))
    assert doubted(found, replay, source).finding.status == "found", "of several steps"


@pytest.mark.parametrize(("brief", "severity"), [(True, "low"), (False, "medium")])
def test_the_hosts_time_of_what_little_is_left_behind_a_start_is_low(brief, severity):
    found, replay, _ = held()
    assert first_seen(found, replay, brief).finding.severity == severity


@pytest.mark.parametrize(("context_us", "severity"), [(500_000, "medium"), (0, "high")])
def test_what_a_first_pass_shows_is_no_more_than_medium(context_us, severity):
    # 24 products in FP32 of 300 µs, each by a kernel of its own, one after the other; in the first case behind half a second of start-up.
    trace = Trace(recorder="torch")
    if context_us:
        trace.call("cudaFree", 0, context_us)
    for k in range(24):
        at, runs = context_us + 40.0 * k, context_us + 25 + 300.0 * k
        trace.op("aten::mm", at, 30, [[2048, 2048], [2048, 2048]]).launch(at + 20, runs, runs + 300, f"ampere_sgemm_128x{k + 1}_nn")
    report = run(trace.timeline(), [built_in()["precision"]])
    assert [f.severity for f in report.findings] == [severity] and ("first pass" in report.headline.judged_why) == (severity == "medium")


@pytest.mark.parametrize(("gpu_us", "status"), [(2.0, "possible"), (20.0, "found")])
def test_where_the_device_hardly_works_and_nothing_repeats_the_hosts_time_is_only_possible(gpu_us, status):
    # 24 kernels of different names, each launched 100 µs after the one before: the device works for 2, or for 20 % of that.
    trace = Trace()
    for k in range(24):
        trace.op(f"aten::op{k}", 100.0 * k, 95).launch(100.0 * k + 80, 100.0 * k + 84, 100.0 * k + 84 + gpu_us, f"kernel_{chr(97 + k)}")
    report = run(trace.timeline(), [built_in()["launch-gap"]])
    (finding,) = (f for f in report.findings if f.rule == "launch-gap")
    assert finding.status == status and report.headline.judged == ("partly" if status == "possible" else "yes")
    assert (finding.severity in ("high", "medium")) == (status == "found")


@pytest.mark.parametrize(
    ("before_us", "after_us", "judged"), [(80, 0, "yes"), (80, 24_000, "partly"), (24_000, 0, "partly")], ids=["all of it", "goes on", "begins before"]
)
def test_a_range_of_the_program_around_what_does_not_repeat_belongs_to_the_recording(before_us, after_us, judged):
    # 24 kernels of 20 µs in 2.4 ms: a fifth of that, or 2 % of a range of the same thread that launches nothing for 24 ms more.
    trace = Trace().note("inference", 80 - before_us, before_us + 2_324 + after_us)
    for k in range(24):
        trace.op(f"aten::op{k}", 100.0 * k, 95).launch(100.0 * k + 80, 100.0 * k + 84, 100.0 * k + 104, f"kernel_{chr(97 + k)}")
    report = run(trace.timeline(), [built_in()["launch-gap"]])
    (finding,) = (f for f in report.findings if f.rule == "launch-gap")
    assert report.headline.judged == judged and (report.headline.judged_reason == "hardly-works") == (judged == "partly")
    assert finding.status == ("found" if judged == "yes" else "possible")
