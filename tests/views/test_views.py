"""Views on traces of a few lines, each answer worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.knowledge import cuda_api
from advisor.knowledge.idle import CAUSES
from advisor.recordings.timeline import Device
from advisor.views.health import TraceHealth
from advisor.views.time.device_time import Partition, total
from advisor.views.time.idle_gaps import Gaps
from advisor.views.time.roofline import Roofline
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources, user_frame
from advisor.views.trace.steps import Steps
from tests.build import H200, Trace


def shares(part):
    return {name: float(total(getattr(part, name)).sum()) for name in ("compute", "communication", "copy", "memset", "idle")}


def causes(trace):
    gaps = trace.get(Gaps)
    assert gaps.together_us(*CAUSES) == pytest.approx(gaps.dur_us)
    return {c: v for c in CAUSES if (v := float(gaps.causes[c].sum())) > 1e-9}


# Steps and the window


def loop(period, kernel, lag, steps=4, call_every=None):
    """A step every `call_every` on the host whose one kernel of `kernel` µs starts `lag` after its launch or when free."""
    trace, free = Trace(), 0.0
    for i in range(steps):
        host = i * (call_every or period)
        trace.step(host, (call_every or period) - 1, i + 1)
        start = max(host + 5 + lag, free)
        free = start + kernel
        trace.launch(host + 5, start, free)
    return trace


def test_host_bound_step_is_the_period_of_the_host():
    steps = loop(period=100, kernel=20, lag=3).get(Steps)
    assert (steps.basis, steps.steps, steps.step_us) == ("profiler-step", 3, 100)


def test_gpu_bound_step_is_the_period_of_the_gpu_though_the_host_runs_ahead():
    # The host marks a step every 30 µs, the GPU needs 80 for each.
    steps = loop(period=80, kernel=80, lag=3, call_every=30).get(Steps)
    assert steps.step_us == pytest.approx(80) and steps.start_us == 8


def test_warm_up_work_that_runs_in_the_first_step_is_not_in_the_window():
    trace = loop(period=80, kernel=80, lag=300, call_every=30)
    trace.gpu(0, 300, "warm-up")
    partition = trace.get(Partition).main
    assert shares(partition)["idle"] == pytest.approx(0)


def test_one_step_lasts_to_the_end_of_its_work():
    trace = Trace().step(0, 50).launch(10, 20, 80)
    steps = trace.get(Steps)
    assert (steps.start_us, steps.end_us, steps.steps) == (0, 80, 1)


def test_start_up_steps_are_left_out():
    trace = Trace()
    for i, at in enumerate([0, 500, 600, 700, 800, 900]):
        trace.step(at, 90, i + 1).launch(at + 5, at + 8, at + 20)
    steps = trace.get(Steps)
    assert steps.steps == 4 and steps.step_us == 100 and "first 1 left out" in steps.detail


def test_a_repeated_range_of_the_user_is_a_step():
    trace = Trace()
    for at in range(0, 500, 100):
        trace.note(f"iteration {at // 100}", at, 95).launch(at + 5, at + 8, at + 90)
    steps = trace.get(Steps)
    assert steps.basis == "nvtx" and steps.step_us == 100


def test_a_repeated_launch_sequence_is_found():
    trace = Trace()
    for at in range(0, 600, 100):
        for j, name in enumerate(["gemm", "add", "relu"]):
            trace.launch(at + 10 * j, at + 10 * j + 4, at + 10 * j + 9, name)
    steps = trace.get(Steps)
    assert steps.basis == "detected" and steps.step_us == pytest.approx(100)


def test_without_any_pattern_the_whole_is_one_window():
    trace = Trace().launch(0, 10, 30, "a").launch(40, 50, 90, "b")
    steps = trace.get(Steps)
    assert (steps.basis, steps.start_us, steps.end_us) == ("whole", 0, 90)


# Partition


def test_a_lower_class_counts_only_where_no_higher_one_runs():
    trace = Trace().launch(0, 0, 40, "gemm").copy(1, 1, 30, 60, stream=8)
    trace.launch(2, 50, 80, "ncclDevKernel_AllReduce", stream=9).gpu(90, 100, "Memset", kind="memset", stream=7)
    assert shares(trace.get(Partition).main) == {"compute": 40, "communication": 30, "copy": 10, "memset": 10, "idle": 10}


def test_devices_stay_apart():
    trace = Trace((H200, Device(1, "NVIDIA H200"))).launch(0, 0, 100, device=0).launch(1, 10, 30, device=1)
    by_device = {p.device: p for p in trace.get(Partition).devices}
    assert by_device[0].busy_us == 100 and by_device[1].busy_us == 20


def test_overlapping_streams_never_exceed_the_window():
    trace = Trace().launch(0, 0, 60, stream=1).launch(1, 10, 90, stream=2).launch(2, 20, 50, stream=3)
    assert shares(trace.get(Partition).main)["compute"] == 90


ops = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.sampled_from(["kernel", "memcpy", "memset", "nccl"]), st.integers(1, 3)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(ops, st.randoms(), st.integers(0, 10**6))
def test_classes_sum_to_the_window_in_any_order_and_at_any_time(rows, random, shift):
    def partition(rows, shift):
        trace = Trace()
        for start, dur, kind, stream in rows:
            name = "ncclDevKernel_AllReduce" if kind == "nccl" else kind
            trace.gpu(shift + start, shift + start + dur, name, kind="kernel" if kind == "nccl" else kind, stream=stream)
        return shares(trace.get(Partition).main), trace.get(Steps)

    found, steps = partition(rows, 0)
    covered = {t for s, d, _, _ in rows for t in range(s, s + d)}
    assert sum(found.values()) == pytest.approx(steps.end_us - steps.start_us)
    assert found["idle"] == pytest.approx(steps.end_us - steps.start_us - len(covered))
    random.shuffle(rows)
    assert partition(rows, shift)[0] == pytest.approx(found)


# Gaps


def test_a_gap_before_a_late_launch_is_the_hosts_and_the_rest_the_launchs():
    # The GPU is free at 20; the op that issues the next kernel runs from 18, the launch is at 50, the kernel at 56.
    trace = Trace().op("aten::a", 0, 8).launch(5, 10, 20).op("aten::b", 18, 35).launch(50, 56, 70)
    assert causes(trace) == {"launch": pytest.approx(36 + 5)}  # and the 5 before the first kernel


def test_waiting_loading_allocating_and_pausing_are_told_apart():
    def gap(fill):
        trace = Trace().op("aten::mm", 0, 2).launch(0, 0, 20)
        fill(trace)
        return {k: round(v) for k, v in causes(trace.launch(400, 400, 420)).items()}

    assert gap(lambda t: t.call("cudaStreamSynchronize", 10, 390)) == {"sync": 380}
    assert gap(lambda t: t.call("cudaMalloc", 100, 200)) == {"allocator": 200, "host": 180}
    assert gap(lambda t: t.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 300)) == {
        "data_loading": 300,
        "host": 80,
    }
    assert gap(lambda t: t.overhead("Buffer Flush", 50, 100)) == {"profiler": 100, "host": 280}
    assert gap(lambda t: None) == {"host": 380}
    # Loading a module is the program's own first use, not the profiler's cost.
    assert gap(lambda t: t.overhead("Runtime Triggered Module Loading", 50, 100)) == {"host": 380}


def test_a_kernel_that_was_queued_waits_for_the_device_not_for_the_host():
    trace = Trace().launch(0, 5, 50).launch(2, 53, 60)
    assert causes(trace) == {"launch": 5, "dependency": 3}


def test_minutes_inside_one_op_are_not_the_cost_of_issuing_it():
    trace = Trace().launch(0, 0, 20).op("aten::cpu_work", 20, 50_000).launch(50_000, 50_010, 50_020)
    assert set(causes(trace)) == {"host", "launch"} and causes(trace)["launch"] < 100


# Launches and ops


def test_one_graph_launch_owns_many_ops():
    trace = Trace().call("cudaGraphLaunch", 0, 10, 5)
    for i in range(3):
        trace.gpu(20 + 10 * i, 28 + 10 * i, f"node{i}", correlation=5)
    launches = trace.get(Launches)
    assert launches.call.tolist() == [0, 0, 0] and launches.calls_with(cuda_api.ApiRole.GRAPH_LAUNCH).tolist() == [0]


def test_the_first_row_launches_too():
    assert Trace().call("cudaLaunchKernel", 0, 1, 0).gpu(5, 9, correlation=0).get(Launches).call.tolist() == [0]


def test_of_calls_that_share_an_id_the_last_before_the_op_launched_it():
    trace = Trace().call("cudaLaunchKernel", 0, 1, 9).call("cudaLaunchKernel", 500, 1, 9, tid=2).gpu(505, 510, correlation=9)
    launches = trace.get(Launches)
    assert launches.call.tolist() == [1] and launches.ambiguous == 1
    nested = Trace().call("cudaLaunchKernel", 0, 10, 9).call("cuLaunchKernel", 2, 5, 9).gpu(20, 30, correlation=9)
    assert nested.get(Launches).ambiguous == 0


def test_calls_belong_to_the_innermost_op_on_their_thread():
    trace = Trace().op("aten::linear", 0, 50).op("aten::addmm", 10, 20).op("other thread", 0, 90, tid=2)
    trace.launch(15, 30, 40).call("cuLaunchKernel", 15.2, 0.5)
    ops = trace.get(Ops)
    assert ops.chain(int(ops.of_gpu[0])) == ["aten::addmm", "aten::linear"]
    assert ops.name(int(ops.of_call[1])) == "aten::addmm", "through the runtime call around it"


# Work, sources, health


def test_the_work_of_one_op_is_divided_among_its_kernels_and_never_counted_twice():
    trace = Trace().op("aten::mm", 0, 10, [[64, 32], [32, 16]]).launch(1, 20, 30, "gemm").launch(2, 30, 60, "splitKreduce")
    trace.op("aten::mm", 100, 10, [[64, 32], [32, 16]]).launch(101, 120, 130, "gemm")
    flops = trace.get(Roofline).flops
    assert flops == pytest.approx(np.array([0.25, 0.75, 1.0]) * 2 * 64 * 32 * 16)


def test_the_user_frame_is_not_the_librarys():
    assert user_frame("train.py(88): step").line == 88
    for name in (
        "torch/nn/modules/module.py(1773): _call_impl",
        "/x/site-packages/foo/a.py(1): f",
        "threading.py(1): run",
        "<built-in method item>",
    ):
        assert user_frame(name) is None


def test_the_line_of_a_call_is_the_innermost_user_frame_then():
    trace = Trace().python("train.py(10): main", 0, 100).python("model.py(5): forward", 10, 50).python("torch/x.py(1): f", 12, 40)
    trace.launch(20, 30, 40).launch(70, 75, 80)
    sources = trace.get(Sources)
    assert [sources.line_of_call(i).file for i in (0, 1)] == ["model.py", "train.py"]


def test_a_call_of_the_backward_pass_points_to_its_forward_op():
    trace = Trace().python("train.py(10): main", 0, 100).op("aten::mm", 10, 5, sequence=3).launch(11, 20, 30)
    trace.op("MmBackward0", 200, 20, tid=2, sequence=3).launch(205, 210, 220, tid=2)
    assert trace.get(Sources).line_of_call(1).line == 10


def health(trace):
    return {h.check: h.status for h in trace.get(TraceHealth).results}


def test_ops_before_their_launch_fail_the_clock_check():
    trace = loop(period=100, kernel=20, lag=3)
    assert health(trace)["clock-causality"] == "ok"
    assert health(loop(period=100, kernel=20, lag=-60))["clock-causality"] == "failed"


def test_ops_without_launches_are_said():
    trace = loop(period=100, kernel=20, lag=3)
    for i in range(20):
        trace.gpu(130 + i, 131 + i, "orphan")
    assert health(trace)["launch-links"] == "degraded"


def test_steps_that_differ_are_said():
    trace = Trace()
    for i, at in enumerate([0, 100, 300, 350]):
        trace.step(at, 40, i + 1).launch(at + 5, at + 8, at + 20)
    assert health(trace)["steps"] == "degraded" and health(loop(100, 20, 3))["steps"] == "ok"
