"""Single records that contradict all others are put right and counted; what only looks like them is left as it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.knowledge.structs import replace
from advisor.sources import load
from advisor.sources.damaged import mended
from advisor.sources.queues import rising
from advisor.views.health import TraceHealth
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.sources.kineto.layouts import LAYOUTS, x

US, STEPS, KERNELS = 100.0, 4, 60


def loop(lag_us=6.0, waits=True):
    """Kernels of 80 µs, one each 100, in steps that end in a wait for the device."""
    trace = Trace()
    for step in range(STEPS):
        trace.step(step * KERNELS * US, KERNELS * US - 1, step + 1)
        for k in range(KERNELS):
            at = (step * KERNELS + k) * US
            trace.op("aten::mm", at + 1, 20).launch(at + 5, at + 5 + lag_us, at + 85 + lag_us, f"kernel{k % 3}")
        if waits:
            trace.correlation += 1
            trace.call("cudaDeviceSynchronize", (step + 1) * KERNELS * US - 12, 10, trace.correlation)
    return trace.timeline()


def with_row(timeline, table, row, **values):
    """The timeline with other values in one row of a table, sorted anew as a reader would."""
    rows = getattr(timeline, table)
    changed = {column: np.where(np.arange(len(rows)) == row, value, rows[column]) for column, value in values.items()}
    return replace(timeline, **{table: rows.with_columns(**changed).sorted_by("start_us")})


def checks(timeline):
    return {check.check: check for check in Workspace(timeline).get(TraceHealth).results}


def test_what_fits_is_the_same_timeline():
    timeline = loop()
    assert mended(timeline) is timeline


def test_durations_that_overflowed_end_where_the_next_kernel_begins_and_are_counted():
    timeline = loop()
    for row in (20, 90, 150, 239):
        timeline = with_row(timeline, "gpu_ops", row, dur_us=16_080.0)
    found = mended(timeline)
    durations = found.gpu_ops["dur_us"]
    assert (np.delete(durations, [20, 90, 150, 239]) == 80).all()
    assert durations[[20, 90, 150, 239]].tolist() == [100, 100, 100, 87], "as long as the stream has room, or until the wait is over"
    assert checks(found)["durations"].detail.startswith("4 of 240 GPU records were up to 16.0 ms longer")
    assert checks(found)["durations"].status == "degraded"


@pytest.mark.parametrize("row", [0, 100, 239])
@pytest.mark.parametrize("waits", [True, False])
def test_one_endless_record_neither_hides_the_others_nor_stretches_the_window(row, waits):
    good = loop(waits=waits)
    found = mended(with_row(good, "gpu_ops", row, dur_us=4.29e9))
    assert found.gpu_ops["dur_us"].max() <= 110 and "1 of 240" in checks(found)["durations"].detail
    assert checks(found)["durations"].status == "ok", "of so many records one more or less changes no figure"
    assert Workspace(found).get(Steps).end_us == Workspace(good).get(Steps).end_us


@pytest.mark.parametrize("row", [0, 1, 100, 239])
@pytest.mark.parametrize("off_us", [-4e15, -3.6e9, -2_000.0, 3.6e9])
def test_one_record_that_is_far_off_is_no_clock_problem_and_does_not_stretch_the_window(row, off_us):
    good = loop()
    if off_us == -2_000.0 and row > 100:
        pytest.skip("the stream's end is no other place than this")
    found = mended(with_row(good, "gpu_ops", row, start_us=good.gpu_ops["start_us"][row] + off_us))
    was, now = Workspace(good).get(Steps), Workspace(found).get(Steps)
    assert now.steps == was.steps and now.step_us == pytest.approx(was.step_us, abs=30)
    assert now.end_us == pytest.approx(was.end_us, abs=30), "times count from the first record that stands"
    assert checks(found)["clock-causality"].status == "ok" and "1 of 240 GPU records was" in checks(found)["timestamps"].detail


def test_a_record_alone_on_its_stream_begins_with_its_launch():
    timeline = loop()
    row = 50
    found = mended(with_row(timeline, "gpu_ops", row, stream=9, start_us=timeline.gpu_ops["start_us"][row] - 700))
    side = found.gpu_ops[found.gpu_ops["stream"] == 9]
    assert side["start_us"].tolist() == [5005.0] and side["dur_us"].tolist() == [80.0]


@pytest.mark.parametrize(("skew_us", "status"), [(-20.0, "failed"), (-2e4, "failed")])
def test_clocks_that_disagree_are_no_damage(skew_us, status):
    timeline = loop(lag_us=6.0 + skew_us)
    assert mended(timeline) is timeline and checks(timeline)["clock-causality"].status == status


def test_kernels_that_start_a_little_early_overlap_in_part_and_are_left():
    timeline = loop()
    for row in (20, 90, 150):
        timeline = with_row(timeline, "gpu_ops", row, dur_us=170.0)
    assert mended(timeline) is timeline, "they end before the next one does"


def queue_told_as_another(name, **more):
    """Eight records of a queue of its own, each over two kernels of the stream under whose number it was recorded."""
    trace = Trace()
    for k in range(200):
        trace.launch(US * k, US * k + 10, US * k + 90, f"kernel{k % 3}")
        if k % 25 == 3:
            trace.launch(US * k + 20, US * k + 30, US * k + 350, name, **more)
    return trace.timeline()


@pytest.mark.parametrize(
    ("name", "more"),
    [("ncclDevKernel_AllReduce", {}), ("Memcpy HtoD", {"kind": "memcpy"}), ("some_collective", {"collective": "allreduce"}), ("side_kernel", {})],
)
def test_work_of_a_queue_that_is_not_told_is_left(name, more):
    timeline = queue_told_as_another(name, **more)
    assert mended(timeline) is timeline


def test_many_that_overlap_are_several_queues():
    timeline = loop()
    for row in range(0, 240, 15):
        timeline = with_row(timeline, "gpu_ops", row, dur_us=1_000.0)
    assert mended(timeline) is timeline and checks(timeline)["stream-order"].status == "failed"


def test_nodes_of_one_graph_may_run_side_by_side():
    trace = Trace()
    for s in range(20):
        trace.call("cudaGraphLaunch", 500.0 * s, 10, 100 + s)
        for k in range(4):
            trace.gpu(500.0 * s + 20 + 10 * k, 500.0 * s + 400 - 50 * k, f"node{k}", correlation=100 + s)
    timeline = trace.timeline()
    assert mended(timeline) is timeline


def test_of_a_few_records_it_is_not_told_which_are_damaged():
    trace = Trace().launch(1000, 10, 20)
    for k in range(1, 8):
        trace.launch(1000 + US * k, 1010 + US * k, 1090 + US * k)
    timeline = trace.timeline()
    assert mended(timeline) is timeline
    assert mended(trace.launch(1800, 1810, 1890).timeline()).gpu_ops["start_us"].min() == pytest.approx(0), "one of nine is put to its launch"


def test_two_threads_that_launch_at_once_may_be_numbered_against_their_order():
    trace = Trace()
    for k in range(50):
        trace.launch(US * k, US * k + 10, US * k + 90)
    trace.call("cudaLaunchKernel", 6000, 30, 900).call("cudaLaunchKernel", 6002, 20, 901, tid=2)
    timeline = trace.gpu(6030, 6530, "later", 901).gpu(6530, 7030, "first", 900).timeline()
    assert mended(timeline) is timeline


@pytest.mark.parametrize("row", [60, 61, 242])  # a wait, the launch after it, the last launch
def test_a_call_that_outlasts_its_op_ends_with_it_or_where_the_next_call_begins(row):
    timeline = loop()
    found = mended(with_row(timeline, "api_calls", row, dur_us=3.6e9))
    assert found.api_calls["dur_us"].max() <= 25 and "1 of 244 calls" in checks(found)["durations"].detail
    assert checks(found)["start-up"].detail == checks(timeline)["start-up"].detail


def test_a_call_that_begins_far_off_goes_back_among_those_of_its_thread():
    timeline = loop()
    found = mended(with_row(timeline, "api_calls", 30, start_us=-5e9))
    assert (np.diff(found.api_calls["start_us"]) >= 0).all() and found.api_calls["start_us"].min() == pytest.approx(5)
    assert (np.diff(found.api_calls["correlation"][:60]) >= 0).all() and "1 of 244 calls was 5,000 s off" in checks(found)["timestamps"].detail


def test_every_trace_that_is_loaded_is_looked_at(tmp_path):
    events = []
    for k in range(40):
        args = {"correlation": k + 1, "External id": k + 1}
        events.append(x("cuda_runtime", "cudaLaunchKernel", 100 + 50 * k, 5, **args))
        events.append(x("kernel", f"kernel{k % 3}", 110 + 50 * k if k != 20 else -4e9, 30, **args, device=0, stream=7))
    path = tmp_path / "trace.json"
    path.write_text(LAYOUTS["compact"](events))
    found = load(path)
    (issue,) = found.source.issues
    assert (issue.check, issue.events, issue.of) == ("timestamps", 1, 40) and found.gpu_ops["start_us"].max() == pytest.approx(1960)


@given(st.lists(st.integers(0, 12), max_size=9))
def test_what_rises_is_as_long_as_can_be(numbers):
    kept = rising(np.array(numbers, np.int64))
    left = [number for number, keep in zip(numbers, kept, strict=True) if keep]
    most = [1] * len(numbers)
    for i in range(len(numbers)):
        most[i] = 1 + max((most[j] for j in range(i) if numbers[j] <= numbers[i]), default=0)
    assert left == sorted(left) and len(left) == max(most, default=0)
