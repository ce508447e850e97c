"""What charts draw: lanes and slices of a cut, places of evidence, modules of backward work, outliers."""

from __future__ import annotations

import numpy as np
import pytest

import advisor
from advisor.engine.analysis import Analysis
from advisor.intervals import length
from advisor.recordings.timeline import Timeline
from advisor.report.charts import Cut
from advisor.report.finding import Code, Evidence, Finding, Fix, Saving
from advisor.report.model import Report
from advisor.views.charts import build as view
from advisor.views.charts.build import Tables, picture
from advisor.views.charts.slices import Cutter
from advisor.views.charts.spotlight import moment
from advisor.views.time.device_time import Partition
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.paths import ROOT


def finding(*evidence: Evidence) -> Finding:
    saving = Saving(0.0, 1.0, 2.0, "simulated")
    return Finding("t", "s", "low", 0.5, saving, evidence, Fix("f", ("step",), Code("a", "b")), rule="r")


def steps(periods: list[float]) -> Trace:
    """A kernel of 40 µs at the start of each step, and one more step that closes the window."""
    trace, at = Trace(), 0.0
    for period in [*periods, 100.0]:
        trace.step(at, period).launch(at + 1, at + 10, at + 50, "k")
        at += period
    return trace


def slices(cut: Cut) -> list[tuple[str, int, str]]:
    return [(cut.lanes[lane].label, depth, cut.names[name]) for lane, depth, name in zip(cut.lane, cut.depth, cut.name, strict=True)]


def test_a_cut_holds_what_overlaps_it_on_lanes_that_nest() -> None:
    trace = Trace().op("aten::mm", 10, 30).launch(20, 60, 90, "gemm", dur=5).op("aten::add", 200, 10).launch(205, 220, 230, "add")
    cut = trace.get(Cutter).cut(0, 100, 100)
    assert [one for one in slices(cut) if one[0] != "GPU 0 idle"] == [
        ("thread 1", 0, "aten::mm"),
        ("thread 1", 1, "cudaLaunchKernel"),
        ("GPU 0 stream 7", 0, "gemm"),
    ]
    kernel = cut.names.index("gemm")
    row = cut.name.tolist().index(kernel)
    assert cut.names[cut.name[cut.launched_by[row]]] == "cudaLaunchKernel"
    assert cut.names[cut.op[row]] == "aten::mm"
    assert cut.kinds[cut.kind[row]] == "gemm"


def test_a_cut_keeps_the_longest_and_says_how_many_are_missing() -> None:
    trace = Trace()
    for at in range(10):
        trace.launch(100.0 * at, 100.0 * at + 10, 100.0 * at + 20 + at, f"k{at}")
    cut = trace.get(Cutter).cut(0, 1_000, 5)
    assert len(cut.lane) == 5
    assert cut.left_out > 0
    everything = trace.get(Cutter).cut(0, 1_000, 1_000)
    assert min(cut.slice_dur_us) >= np.sort(everything.slice_dur_us)[-5]
    assert len(trace.get(Cutter).cut(5_000, 6_000, 5).lane) == 0


def test_the_idle_lane_is_the_idle_time_of_the_step() -> None:
    workspace = Workspace(advisor.load(ROOT / "samples" / "launch-gap" / "slow.json.gz"))
    window = workspace.get(Steps)
    cut = workspace.get(Cutter).cut(window.start_us, window.end_us, 100_000)
    idle = np.array([lane.side == "idle" for lane in cut.lanes])[cut.lane]
    assert cut.slice_dur_us[idle].sum() == pytest.approx(length(workspace.get(Partition).main.idle))


def test_the_step_nearest_the_median_is_drawn_and_far_ones_are_outliers() -> None:
    made = picture(Workspace(steps([100, 101, 100, 102, 250, 101, 99, 100]).timeline()), ())
    assert np.flatnonzero(made.steps.outlier).tolist() == [4]
    assert made.steps.period_us[made.steps.middle] == np.median(made.steps.period_us) or made.steps.middle in (0, 1, 2, 5, 7)
    assert made.step_span_us[1] - made.step_span_us[0] == pytest.approx(made.steps.period_us[made.steps.middle])
    parts = made.steps.compute_us + made.steps.communication_us + made.steps.copy_us + made.steps.memset_us + made.steps.idle_us
    assert parts == pytest.approx(made.steps.period_us)


@pytest.mark.parametrize("periods", [[100, 100, 100, 104, 100], [100, 200] * 4, [100, 150]])
def test_what_is_near_or_common_is_no_outlier(periods: list[float]) -> None:
    assert not picture(Workspace(steps(periods).timeline()), ()).steps.outlier.any()


def test_a_step_with_too_much_is_drawn_by_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace()
    for at in range(300):
        trace.launch(10.0 * at, 10.0 * at + 2, 10.0 * at + 5, f"k{at % 7}{at % 5}")
    monkeypatch.setattr(view, "SLICES", 100)
    made = picture(Workspace(trace.timeline()), ())
    assert made.step is not None and 20 < len(made.step.lane) <= 110
    middle = (made.step.start_us + made.step.end_us) / 2
    assert middle == pytest.approx(sum(made.step_span_us) / 2, rel=0.02)


def test_the_moment_of_a_gap_marks_gaps_of_its_cause() -> None:
    workspace = Workspace(advisor.load(ROOT / "samples" / "launch-gap" / "slow.json.gz"))
    report = advisor.analyze(workspace.get(Timeline))
    found = report.findings[0]
    made = moment(workspace.get(Cutter), found)
    assert made is not None
    band, *marks = made.marks
    assert band.lane == -1 and band.start_us == found.evidence[0].start_us
    assert marks and {made.cut.lanes[mark.lane].side for mark in marks} == {"idle"}
    assert made.cut.start_us < band.start_us < band.end_us < made.cut.end_us


def test_the_moment_of_a_kernel_marks_kernels_of_its_name_and_of_other_evidence() -> None:
    trace = Trace().launch(0, 10, 20, "a").launch(21, 30, 40, "b").launch(41, 45, 50, "a").launch(61, 70, 80, "c")
    cutter = trace.get(Cutter)
    only = moment(cutter, finding(Evidence("x", 10.0, 20.0, 2, 0)))
    assert only and [(mark.start_us, mark.end_us) for mark in only.marks] == [(10.0, 20.0), (45.0, 50.0)]
    both = moment(cutter, finding(Evidence("x", 10.0, 20.0, 2, 0), Evidence("y", 30.0, 10.0, 1, 0)))
    assert both and sorted(mark.start_us for mark in both.marks) == [10.0, 30.0, 45.0]


def test_the_moment_of_a_host_call_marks_it_on_its_thread() -> None:
    trace = Trace().call("cudaDeviceSynchronize", 100, 50).launch(0, 10, 140, "k")
    made = moment(trace.get(Cutter), finding(Evidence("cudaDeviceSynchronize", 100.0, 50.0, thread=1)))
    assert made and {made.cut.lanes[mark.lane].side for mark in made.marks if mark.lane >= 0} == {"host"}


def test_a_moment_outside_of_all_is_none() -> None:
    assert moment(Trace().launch(0, 10, 20, "a").get(Cutter), finding(Evidence("x", 9_000.0, 1.0))) is None


def test_time_stands_under_modules_and_backward_work_under_those_of_its_forward_op() -> None:
    trace = Trace()
    trace.python("nn.Module: Net_0", 0, 100).python("nn.Module: Linear_1", 10, 50)
    trace.op("aten::linear", 20, 30, sequence=5).launch(30, 60, 90, "fwd")
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", 200, 50, sequence=5, tid=2).launch(210, 220, 260, "bwd", tid=2)
    leaves = {leaf.path[-1]: leaf.path for leaf in trace.get(Tables).leaves}
    assert leaves["fwd"][:2] == ("Net_0", "Linear_1")
    assert leaves["bwd"][:2] == ("Net_0", "Linear_1")
    assert leaves["bwd"][2].startswith("autograd::engine")


@pytest.mark.parametrize("name", ["launch-gap/slow", "data-loading/slow", "healthy/conv_training", "memcpy/slow"])
def test_leaves_and_ops_are_all_of_the_gpu_time(name: str) -> None:
    workspace = Workspace(advisor.load(ROOT / "samples" / f"{name}.json.gz"))
    window, ops = workspace.get(Steps), workspace.get(Timeline).gpu_ops
    inside = ops[(ops["start_us"] >= window.start_us) & (ops["start_us"] < window.end_us)]
    tables = workspace.get(Tables)
    assert sum(leaf.total_us for leaf in tables.leaves) == pytest.approx(inside["dur_us"].sum())
    assert sum(leaf.calls for leaf in tables.leaves) == len(inside)
    moved = inside[inside["kind"].isin(["memcpy", "memset"])]
    assert sum(row.total_us for row in tables.copies) == pytest.approx(moved["dur_us"].sum())
    assert all(0 <= row.exposed_us <= row.total_us + 1e-6 for row in tables.copies)


def test_time_is_told_by_line_of_the_program_too_and_the_hosts_own_time_by_op() -> None:
    trace = Trace().python("nn.Module: Net_0", 0, 100).python("train.py(12): step", 5, 90)
    trace.op("aten::linear", 20, 40).op("aten::addmm", 30, 20).launch(35, 60, 90, "gemm")
    tables = trace.get(Tables)
    (leaf,) = tables.leaves
    assert (leaf.path, leaf.line, leaf.modules) == (("Net_0", "aten::linear", "aten::addmm", "gemm"), "train.py:12", 1)
    assert {leaf.path: leaf.total_us for leaf in tables.host_leaves} == {
        ("Net_0", "aten::linear"): 20.0, ("Net_0", "aten::linear", "aten::addmm"): 20.0,
    }  # fmt: skip


def test_the_whole_cut_holds_the_step_and_what_was_around_it() -> None:
    made = picture(Workspace(steps([100, 101, 100]).timeline()), ())
    assert made.whole is not None and made.step is not None
    assert made.whole.start_us <= made.step.start_us and made.whole.end_us >= made.step.end_us
    assert (made.whole.name == made.whole.names.index("k")).sum() == 4


def test_copies_are_told_by_direction_and_memory() -> None:
    trace = Trace().copy(0, 5, 10, 30, size=4_000).copy(40, 5, 50, 60, "Pinned", size=1_000).launch(0, 15, 25, "k", stream=8)
    rows = {row.what: row for row in trace.get(Tables).copies}
    assert rows["HtoD, pageable to device"].bytes == 4_000
    assert rows["HtoD, pageable to device"].exposed_us == pytest.approx(10.0)
    assert rows["HtoD, pinned to device"].exposed_us == pytest.approx(10.0)


def test_the_picture_stays_out_of_the_json() -> None:
    made = advisor.analyze(ROOT / "samples" / "healthy" / "gemm_loop.json.gz")
    assert made.picture is not None and made.picture is made.picture, "cut once"
    assert Report.from_json(made.to_json()) == made.report
    assert Analysis(made.report).picture is None
