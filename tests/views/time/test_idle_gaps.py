"""Every cause of idleness by a trace of a few lines: the GPU is free from 100 to 500, and why is worked out by hand.

In each trace an op issues the kernel that ends the gap: its launch is at 490 and the kernel starts at 500, so the last
10 µs are the launch's own and `rest` says where the 390 before it went.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.knowledge.idle import CAUSES
from advisor.recordings.timeline import Device
from advisor.views.time.device_time import Partition
from advisor.views.time.idle_gaps import Gaps
from tests.build import H200, Trace
from tests.paths import examples

WORKER = 2


def gap(op=(485, 10), at=490.0, **launch):
    """Busy until 100, then idle until the kernel at 500."""
    return Trace().op("aten::mm", 0, 5).launch(2, 5, 100, "before").op("aten::mm", *op).launch(at, 500, 600, "after", **launch)


def causes(trace):
    gaps = trace.get(Gaps)
    assert gaps.together_us(*CAUSES) == pytest.approx(gaps.dur_us)
    assert all((gaps.causes[cause] >= 0).all() for cause in CAUSES)
    return gaps


def rest(trace):
    """Causes of the gap from 100 to 500, less the 10 µs of the launch."""
    gaps = causes(trace)
    row = int(np.flatnonzero((gaps.start_us == 100) & (gaps.end_us == 500))[0])
    found = {c: round(float(gaps.causes[c][row]), 6) for c in CAUSES if gaps.causes[c][row] > 1e-9}
    assert sum(found.values()) == pytest.approx(400)
    found["launch"] = found.get("launch", 0) - 10
    return {c: v for c, v in found.items() if v}


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "hipDeviceSynchronize"])
def test_the_host_waited(call):
    assert rest(gap().call(call, 50, 400)) == {"sync": 350, "launch": 40}  # 450 to 490 is a pause between calls, and the op


def test_the_host_loaded_data():
    trace = gap().note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 90, 380)
    assert rest(trace) == {"data_loading": 370, "host": 15, "launch": 5}


def test_the_host_loaded_data_as_its_frames_say():
    trace = gap().python("torch/utils/data/dataloader.py(701): __next__", 90, 380)
    assert rest(trace) == {"data_loading": 370, "host": 15, "launch": 5}


@pytest.mark.parametrize("call", ["cudaMalloc", "cudaFree", "cudaHostAlloc", "cuMemCreate", "hipMalloc"])
def test_the_host_allocated(call):
    assert rest(gap().call(call, 90, 390)) == {"allocator": 380, "launch": 10}


def test_the_host_issued_ops():
    assert rest(gap(op=(60, 440))) == {"launch": 390}


def test_the_host_issued_ops_one_after_the_other():
    trace = gap()
    for at in range(100, 490, 30):  # ops of 10 µs with 20 µs of Python between them
        trace.op("aten::view", at, 10)
    assert rest(trace) == {"launch": 390}


def test_the_host_paused_for_work_of_its_own():
    assert rest(gap()) == {"host": 385, "launch": 5}


def test_the_pause_that_still_is_dispatch_has_two_sides():
    assert rest(gap().op("aten::view", 60, 380)) == {"launch": 390}  # 45 µs of Python until the next op
    assert rest(gap().op("aten::view", 60, 360)) == {"launch": 325, "host": 65}  # 65 µs: longer than an op takes to issue


def test_where_ops_were_not_recorded_a_launch_call_stands_for_more():
    # All that is seen of issuing an op is its call: pauses up to 200 µs between calls are dispatch, longer ones are not.
    def calls(pause):
        return Trace().launch(0, 5, 100).launch(98, 100, 101, stream=8).launch(98 + pause, 100 + pause, 110 + pause)

    assert {cause for cause, us in causes(calls(150)).causes.columns.items() if us.sum() > 1e-9} == {"launch"}
    assert causes(calls(250)).causes["host"].sum() == pytest.approx(247), "from 101 to the launch at 348"


def test_the_host_was_inside_one_op_for_a_millisecond():
    # Loading a library or autotuning happens inside ops too: a million µs before one launch are not the cost of issuing it.
    trace = Trace().launch(0, 5, 100).op("aten::mm", 50, 1_500).launch(1_490, 1_500, 1_510)
    gaps = causes(trace)
    assert gaps.causes["host"].sum() == pytest.approx(1_390) and gaps.causes["launch"].sum() == pytest.approx(15)


def test_the_profiler_flushed_its_buffers():
    assert rest(gap(op=(60, 440)).overhead("Activity Buffer Request", 200, 100)) == {"profiler": 100, "launch": 290}


def test_what_the_profiler_does_on_other_threads_holds_nobody_up():
    assert rest(gap(op=(60, 440)).overhead("TLS allocation", 200, 100, tid=WORKER)) == {"launch": 390}
    assert rest(gap(op=(60, 440)).overhead("Activity Buffer Request", 200, 100, pid=-1, tid=0)) == {"profiler": 100, "launch": 290}, "nobody knows where"


def test_one_time_loading_of_modules_is_not_the_profilers():
    assert rest(gap(op=(60, 440)).overhead("Lazy Function Loading", 200, 100)) == {"launch": 390}


def test_a_pageable_copy_holds_the_host_while_it_stages():
    # The call that ends the gap is the copy itself, and returns when its transfer is done.
    trace = Trace().launch(2, 5, 100).op("aten::copy_", 110, 500).copy(120, 480, 500, 600, "Pageable")
    gaps = causes(trace)
    assert gaps.causes["sync"].sum() == pytest.approx(380)
    early = Trace().launch(2, 5, 100).op("aten::copy_", 110, 500).copy(120, 400, 500, 600, "Pageable")
    assert causes(early).causes["sync"].sum() == pytest.approx(380), "though the call returns before half of the transfer is done"
    pinned = Trace().launch(2, 5, 100).op("aten::copy_", 110, 500).copy(120, 400, 500, 600, "Pinned")
    assert causes(pinned).causes["sync"].sum() == 0


def test_a_kernel_that_was_queued_waits_for_the_device():
    # Launched at 50, while the GPU was busy; an event of stream 9, on which nothing of ours runs, let it go at 500.
    assert rest(gap(op=(40, 20), at=50)) == {"dependency": 400, "launch": -10}


def test_a_kernel_is_not_queued_before_its_call_returns():
    # Called at 95 while the GPU was busy; but the call took until 495, as the first launch of a module does.
    assert rest(gap(op=(60, 440), at=95, dur=400.0)) == {"launch": 390}
    queued = Trace().op("aten::mm", 0, 5).launch(2, 5, 100).op("aten::mm", 90, 20).launch(95, 500, 600, dur=6.0)
    assert causes(queued).causes["launch"].sum() == pytest.approx(3), "within the clocks' skew of the gap's start: it was queued"


def test_a_kernel_on_another_stream_ends_the_gap():
    trace = Trace().op("aten::mm", 0, 20).launch(2, 5, 100, stream=7).launch(10, 130, 200, stream=8)
    assert causes(trace).by_device[0]["dependency"] == pytest.approx(30)


@pytest.mark.parametrize(("skew", "cause"), [(0.9, "launch"), (1.1, "dependency")])
def test_clocks_agree_to_a_microsecond(skew, cause):
    # The launch seems to come just before the gap: within the clocks' skew it did not.
    trace = Trace().op("aten::mm", 0, 150).launch(2, 5, 100).launch(100 - skew, 108, 120)
    assert causes(trace).causes[cause].sum() == pytest.approx(8 + (3 if cause == "launch" else 0)), "and the first launch's 3"


def test_what_was_launched_without_a_record_is_blamed_on_what_the_host_did():
    trace = Trace().op("aten::mm", 0, 5).launch(2, 5, 100).gpu(500, 600).call("cudaDeviceSynchronize", 90, 400)
    assert causes(trace).by_device[0]["sync"] == pytest.approx(390)


def test_a_trace_without_host_says_it_does_not_know():
    gaps = causes(Trace().gpu(0, 100).gpu(500, 600))
    assert gaps.by_device[0] == {**dict.fromkeys(CAUSES, 0.0), "unknown": 400}


def test_the_end_of_the_window_is_what_the_host_did():
    trace = Trace()
    for s in range(3):
        trace.step(1000 * s, 999, s + 1).op("aten::mm", 1000 * s, 20).launch(1000 * s + 5, 1000 * s + 10, 1000 * s + 100)
        trace.call("cudaDeviceSynchronize", 1000 * s + 30, 900)
    gaps = causes(trace)
    assert gaps.end_us.tolist() == [1010, 2010] and gaps.next_op.tolist() == [1, 2]
    assert gaps.by_device[0]["sync"] == pytest.approx(2 * (930 - 100))


def test_one_marked_step_may_end_idle():
    # Nothing ends the last gap but the window itself.
    trace = Trace().step(0, 1000).op("aten::mm", 0, 20).launch(5, 10, 100).call("cudaDeviceSynchronize", 30, 900)
    gaps = causes(trace)
    assert (gaps.next_op.tolist(), gaps.start_us.tolist(), gaps.end_us.tolist()) == ([0, -1], [0, 100], [10, 1000])
    assert gaps.causes["sync"].tolist() == pytest.approx([0, 830])


# Who speaks first, and on which thread


def test_the_more_telling_cause_wins():
    loader = ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 100, 380)
    assert rest(gap().note(*loader).call("cudaStreamSynchronize", 200, 100)) == {"data_loading": 280, "sync": 100, "host": 5, "launch": 5}
    assert rest(gap().note(*loader).call("cudaHostAlloc", 200, 100)) == {"data_loading": 280, "allocator": 100, "host": 5, "launch": 5}
    both = gap(op=(60, 440)).overhead("Buffer Flush", 200, 100).call("cudaStreamSynchronize", 150, 200)
    assert rest(both) == {"profiler": 100, "sync": 100, "launch": 190}


def test_other_threads_do_not_keep_the_gpu_waiting():
    trace = gap(op=(60, 440))
    trace.call("cudaEventSynchronize", 100, 380, tid=WORKER).op("aten::stack", 100, 380, tid=WORKER)
    trace.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 380, tid=WORKER)
    assert rest(trace) == {"launch": 390}


def test_autograds_thread_issues_too():
    # The main thread waits inside backward() while the engine's thread launches: its ops are dispatch.
    trace = Trace().op("aten::mm", 0, 5).launch(2, 5, 100)
    trace.op("MmBackward0", 60, 440, tid=WORKER).launch(490, 500, 600, tid=WORKER)
    assert rest(trace) == {"launch": 390}


def test_each_device_has_causes_of_its_own():
    trace = Trace((H200, Device(1, "NVIDIA H200"))).op("aten::mm", 0, 5).launch(2, 0, 600, device=0)
    trace.launch(3, 5, 100, device=1).call("cudaStreamSynchronize", 90, 400).op("aten::mm", 490, 20).launch(495, 500, 590, device=1)
    gaps = causes(trace)
    assert sum(gaps.by_device[0].values()) == 0
    assert gaps.by_device[1]["sync"] == pytest.approx(390) and sum(gaps.by_device[1].values()) == pytest.approx(5 + 400 + 10)


# Any host, any device: the causes sum to the idle time

host_rows = st.lists(
    st.tuples(
        st.sampled_from(["op", "cudaStreamSynchronize", "cudaMalloc", "loader", "overhead", "cudaEventQuery"]),
        st.integers(0, 900),
        st.integers(0, 400),
        st.integers(1, 2),
    ),
    max_size=10,
)
gpu_rows = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 90), st.integers(-30, 400), st.booleans(), st.integers(7, 8)), min_size=1, max_size=8)


@settings(max_examples=examples(80), deadline=None)
@given(host_rows, gpu_rows)
def test_causes_sum_to_idle_whatever_happened(host, gpu):
    trace = Trace()
    for kind, start, dur, tid in host:
        if kind == "op":
            trace.op("aten::mm", start, dur, tid=tid)
        elif kind == "loader":
            trace.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, dur, tid=tid)
        elif kind == "overhead":
            trace.overhead("Buffer Flush", start, dur)
        else:
            trace.call(kind, start, dur, tid=tid)
    for start, dur, lag, copy, stream in gpu:
        if copy:
            trace.copy(start - lag, lag + dur if lag > 200 else 3, start, start + dur, stream=stream)
        else:
            trace.launch(start - lag, start, start + dur, stream=stream)
    gaps = causes(trace)
    idle = trace.get(Partition).main.idle
    assert np.array_equal(gaps.start_us, idle[0]) and np.array_equal(gaps.end_us, idle[1])
    assert sum(gaps.by_device[0].values()) == pytest.approx(float((idle[1] - idle[0]).sum()))
