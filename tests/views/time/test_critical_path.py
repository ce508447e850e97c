"""The critical path, walked by hand on small loops, and against what HolisticTraceAnalysis publishes of a real trace."""

import numpy as np
import pytest

from advisor.sources import load
from advisor.views.replay.replay import Replay
from advisor.views.time.critical_path import CriticalPath, _ahead
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.paths import SHARED, needs_shared


def totals(path):
    return {link: round(path.total_us(link), 3) for link in dict.fromkeys(path.links)}


def follows_without_a_gap(path):
    assert np.allclose(path.start_us[1:], path.end_us[:-1])


def test_behind_a_slow_host_the_path_is_the_host_and_its_last_launch():
    trace = Trace()
    for s in range(4):
        at = 100.0 * s
        trace.step(at, 99, s + 1).op("aten::mm", at, 90).launch(at + 80, at + 86, at + 91)
    path = trace.get(CriticalPath)
    follows_without_a_gap(path)
    # To the launch of the third step at 280; the fourth closes the window.
    assert totals(path) == {"dispatch": 280, "launch-delay": 6, "kernel": 5}


@pytest.mark.parametrize(("inside_us", "link"), [(900, "dispatch"), (5_000, "host")])
def test_what_lasts_too_long_within_an_op_is_the_hosts_own_work(inside_us, link):
    """A compiler runs inside the op that calls it, a sort on the CPU inside its own."""
    trace, period = Trace(), inside_us + 100.0
    for s in range(4):
        at = period * s
        trace.step(at, period - 1, s + 1).op("aten::sort", at, inside_us + 20).launch(at + inside_us, at + inside_us + 6, at + inside_us + 11)
    # Two steps, and the third up to its launch, of which the last op takes 11.
    assert totals(trace.get(CriticalPath))[link] >= 0.95 * 3 * inside_us


def test_on_a_busy_gpu_the_path_is_its_kernels_and_the_gaps_between():
    trace = Trace()
    for s in range(4):
        trace.step(10.0 * s, 9, s + 1).op("aten::mm", 10.0 * s, 5).launch(10.0 * s + 1, 50 + 100.0 * s, 148 + 100.0 * s)
    path = trace.get(CriticalPath)
    follows_without_a_gap(path)
    assert path.links[-1] == "kernel" and totals(path)["kernel"] == 3 * 98 and totals(path)["kernel-to-kernel"] == 2 * 2


def test_a_wait_leads_back_to_what_was_waited_for():
    trace = Trace()
    for s in range(4):
        at = 200.0 * s
        trace.step(at, 199, s + 1).op("aten::mm", at, 20).launch(at + 10, at + 16, at + 116)
        trace.call("cudaStreamSynchronize", at + 20, 100)  # returns at 120, 4 after the kernel
    path = trace.get(CriticalPath)
    follows_without_a_gap(path)
    found = totals(path)
    assert found["kernel"] == 3 * 100 and found["return"] == 3 * 4 and found["launch-delay"] == 3 * 6
    assert found["host"] + found["dispatch"] == pytest.approx(path.end_us[-1] - path.start_us[0] - 330)


def test_an_op_that_waits_for_another_stream_continues_there():
    trace = Trace()
    for s in range(4):
        at = 300.0 * s
        trace.step(at, 299, s + 1).op("aten::copy_", at, 5).copy(at + 1, 1, at + 8, at + 108, "Pinned", stream=9)
        trace.op("aten::mm", at + 10, 5).launch(at + 11, at + 114, at + 280, dur=1)
    path = trace.get(CriticalPath)
    follows_without_a_gap(path)
    assert path.links[-3:] == ("copy", "kernel-to-kernel", "kernel") and path.total_us("copy") >= 100


def test_kernels_that_follow_each_other_are_the_path_whenever_their_launches_were_recorded():
    # 1 ms each, 10 µs apart, every launch 5 µs after the end of the kernel before: a host that does not wait cannot hit that.
    trace = Trace()
    for n in range(20):
        trace.launch(1010.0 * n, 1010.0 * n + 5, 1010.0 * n + 1005, f"kernel{n % 2}")
    path = trace.get(CriticalPath)
    assert path.parts[0].link == "kernel" and path.parts[0].share > 0.95


def test_what_was_queued_behind_work_from_before_the_recording_counts_from_its_end():
    # A graph that was launched at 0 and begins at 463 ms, on a device where nothing that was recorded runs before.
    trace = Trace().launch(0, 463_000, 463_005, "first", api="cudaGraphLaunch")
    for n in range(200):
        trace.gpu(463_005.0 + 50 * n, 463_055.0 + 50 * n, f"kernel{n}", trace.correlation)
    path, step = trace.get(CriticalPath), trace.get(Replay).true_step
    assert path.parts[0].link == "kernel" and path.parts[0].share > 0.95
    assert step.high_us < 1.2 * 10_005, "nor does the host's wait for that work belong to the step"


def test_without_launches_there_is_no_path():
    assert Trace().gpu(0, 10).gpu(20, 30).get(CriticalPath).links == ()


@needs_shared
def test_delays_agree_with_those_that_hta_publishes():
    # tests/test_critical_path_analysis.py of HolisticTraceAnalysis, on this trace: the FFT kernel of correlation 5597 starts
    # 27 µs after its launch, and the next one, 5604, 7 µs after its end.
    (file,) = (SHARED / "public" / "kineto").glob("critical_path__simple_add*")
    timeline = load(str(file))
    marks = timeline.annotations[timeline.annotations["name"] == "[param|pytorch.model.alex_net|0|0|0|measure|forward]"]
    edges = marks["start_us"][1] + np.array([0.0, marks["dur_us"][1]])
    steps = Steps("nvtx", "one range", edges[0], edges[1], edges, 1, np.diff(edges), "host")
    schedule = Workspace(timeline, steps).get(Replay).recorded
    ops = timeline.gpu_ops[schedule.op_row]
    start = ops["start_us"]
    end = start + ops["dur_us"]
    launched = timeline.api_calls["start_us"][schedule.call_row][schedule.op_call]
    ahead = _ahead(schedule, start, end, launched)
    (fft,), (gemm,) = (np.flatnonzero(ops["correlation"] == n) for n in (5597, 5604))
    assert ahead[fft] == -1 and start[fft] - launched[fft] == 27
    assert ahead[gemm] == fft and start[gemm] - end[fft] == 7


def test_ops_that_each_end_within_the_clocks_skew_of_the_other_lead_back_in_time():
    """Z waits for X's event and is queued on Y's stream, while X, Y and Z begin and end within a microsecond."""
    trace = Trace().step(0, 1000)
    trace.launch(100, 509.5, 510.9, "Y", stream=2).launch(110, 510.0, 510.0, "X", stream=1)
    trace.call("cudaEventRecord", 115, 1).call("cudaStreamWaitEvent", 117, 1)
    trace.launch(120, 509.0, 509.4, "Z", stream=2).launch(130, 510.95, 900, "W", stream=2)
    schedule = trace.get(Replay).recorded
    start, end = (np.array([trace.timeline().gpu_ops[column][row] for row in schedule.op_row]) for column in ("start_us", "dur_us"))
    ahead = _ahead(schedule, start, start + end, start - 400)
    assert all(start[before] <= start[at] for at, before in enumerate(ahead.tolist()) if before >= 0)
    assert trace.get(CriticalPath).parts
