"""Where a device's window went, worked out by hand and counted point by point."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.engine.run import run
from advisor.recordings.timeline import Device
from advisor.views.time.device_time import Partition, total
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.steps import Steps
from tests.build import H200, Trace
from tests.paths import examples

CLASSES = ("compute", "communication", "copy", "memset", "idle")
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def shares(part):
    return {c: v for c in CLASSES if (v := float(total(getattr(part, c)).sum()))}


def window(*spans):
    """Steps whose first kernels start at 0 and 100: the window is [0, 100) whatever else is in the trace."""
    trace = Trace().step(-10, 99, 1).launch(-5, 0, 1, "first", stream=99).step(90, 50, 2).launch(95, 100, 101, "first", stream=99)
    for kind, start, end, stream in spans:
        more = {"copy": {"kind": "memcpy"}, "memset": {"kind": "memset"}}.get(kind, {})
        trace.gpu(start, end, NCCL if kind == "nccl" else kind, stream=stream, **more)
    return trace


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([("gemm", 10, 60, 7), ("copy", 20, 50, 8)], {"compute": 51, "idle": 49}),
        ([("gemm", 10, 40, 7), ("copy", 20, 60, 8)], {"compute": 31, "copy": 20, "idle": 49}),
        ([("gemm", 10, 40, 7), ("nccl", 30, 70, 20)], {"compute": 31, "communication": 30, "idle": 39}),
        ([("nccl", 30, 70, 20), ("copy", 60, 80, 8), ("memset", 75, 90, 7)], {"compute": 1, "communication": 40, "copy": 10, "memset": 10, "idle": 39}),
        ([("memset", 30, 50, 7), ("gemm", 20, 60, 8)], {"compute": 41, "idle": 59}),
        ([("gemm", -50, 20, 7), ("gemm", 90, 400, 7)], {"compute": 30, "idle": 70}),
        ([("gemm", -50, 400, 7)], {"compute": 100}),
        ([("gemm", 30, 30, 7)], {"compute": 1, "idle": 99}),
    ],
    ids=["copy hidden", "copy half hidden", "communication half hidden", "each below the one before", "memset hidden", "clipped", "full", "empty kernel"],
)  # fmt: skip
def test_hand_worked(spans, expected):
    assert shares(window(*spans).get(Partition).main) == expected


def test_overlap_on_one_stream_is_counted_once():
    # Programmatic dependent launch: the next kernel starts before the one ahead of it ends. Strict nesters drop it.
    trace = window(("a", 10, 30, 7), ("b", 25, 45, 7), ("c", 40, 60, 7))
    assert shares(trace.get(Partition).main) == {"compute": 51, "idle": 49}


def test_a_kernel_called_dma_and_one_called_memset_are_compute():
    trace = window(("my_dma_kernel", 10, 30, 7), ("MemsetLikeKernel", 30, 40, 7), ("SyncFreeKernel", 40, 50, 7))
    assert shares(trace.get(Partition).main) == {"compute": 41, "idle": 59}


def test_hips_copies_are_copies_not_communication():
    trace = window().gpu(20, 60, "hipMemcpyHtoD", kind="memcpy")
    assert shares(trace.get(Partition).main) == {"compute": 1, "copy": 40, "idle": 59}


def test_a_graph_recorded_as_one_span_is_compute():
    assert shares(window().gpu(20, 60, "graph", kind="graph").get(Partition).main) == {"compute": 41, "idle": 59}


def test_two_devices_share_the_window_and_nothing_else():
    trace = Trace((H200, Device(1, "NVIDIA H200")))
    trace.launch(0, 0, 30, device=0).copy(1, 1, 20, 60, device=0, stream=8)
    trace.launch(2, 10, 100, NCCL, device=1)
    devices = {p.device: p for p in trace.get(Partition).devices}
    assert shares(devices[0]) == {"compute": 30, "copy": 30, "idle": 40}
    assert shares(devices[1]) == {"communication": 90, "idle": 10}
    assert trace.get(Partition).main.device == 1, "the busiest"
    assert set(trace.get(Gaps).by_device) == {0, 1}


def test_without_gpu_work_there_is_no_device():
    assert Trace().op("aten::mm", 0, 10).get(Partition).main is None


# Any work, counted point by point

KINDS = {"gemm": 0, "nccl": 1, "copy": 2, "memset": 3}
work = st.lists(st.tuples(st.sampled_from(list(KINDS)), st.integers(-20, 110), st.integers(0, 40), st.integers(1, 3), st.integers(0, 1)), max_size=14)


def counted(rows, device):
    """Each µs of the window belongs to the first class that runs in it."""
    points = dict.fromkeys(range(100), "idle")
    for kind, start, dur, _, on in sorted(rows, key=lambda r: -KINDS[r[0]]):
        if on == device:
            points.update(dict.fromkeys(range(max(start, 0), min(start + dur, 100)), CLASSES[KINDS[kind]]))
    return {c: float(n) for c in CLASSES if (n := list(points.values()).count(c))}


def report(rows, shift=0):
    trace = Trace((H200, Device(1, "NVIDIA H200")))
    for edge in (0, 100):  # marks that hold the window at [0, 100): the kernels that begin it take no time
        trace.step(shift + edge - 10, 20, edge + 1)
        for k in range(9):
            trace.launch(shift + edge - 5, shift + edge, shift + edge, "mark", stream=90 + k)
    for kind, start, dur, stream, device in rows:
        more = {"copy": {"kind": "memcpy"}, "memset": {"kind": "memset"}}.get(kind, {})
        trace.gpu(shift + start, shift + start + dur, NCCL if kind == "nccl" else kind, stream=stream, device=device, **more)
    return trace


@settings(max_examples=examples(60), deadline=None)
@given(work, st.randoms(use_true_random=False), st.integers(0, 10**7))
def test_any_work_is_divided_as_counted_in_any_order_at_any_time(rows, random, shift):
    trace = report(rows)
    steps = trace.get(Steps)
    assert (steps.start_us, steps.end_us) == (0, 100)
    parts = {p.device: shares(p) for p in trace.get(Partition).devices}
    for device, found in parts.items():
        assert found == pytest.approx(counted(rows, device))
        assert sum(found.values()) == pytest.approx(100)
    shuffled = list(rows)
    random.shuffle(shuffled)
    again = report(shuffled, shift)
    assert {p.device: shares(p) for p in again.get(Partition).devices} == {d: pytest.approx(v) for d, v in parts.items()}


@settings(max_examples=20, deadline=None)
@given(work)
def test_the_spans_are_disjoint_and_the_report_says_the_same(rows):
    timeline = report(rows).timeline()
    made = run(timeline, [])
    for time in made.time:
        classes = time.compute_us + time.exposed_comm_us + time.exposed_copy_us + time.exposed_memset_us + time.idle_us
        assert classes == pytest.approx(time.window_us, rel=1e-6)
        causes = [getattr(time.idle, name) for name in time.idle.__struct_fields__]
        assert sum(causes) == pytest.approx(time.idle_us, rel=1e-6, abs=1e-9) and min(causes) >= 0
    for part in report(rows).get(Partition).devices:
        starts = np.concatenate([getattr(part, c)[0] for c in CLASSES])
        ends = np.concatenate([getattr(part, c)[1] for c in CLASSES])
        order = np.argsort(starts)
        assert (starts[order][1:] >= ends[order][:-1] - 1e-9).all(), "no µs is in two classes"
