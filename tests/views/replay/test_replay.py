"""The replay on loops worked out by hand: its period is the recorded one, and each change gains what it must.

`tests/views/replay/test_edits.py` has the plain host-bound, GPU-bound, waiting and copying loops; here are the situations in which a
wait, a copy or a launch is worth nothing, or something else than it seems.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.engine.rule import built_in
from advisor.engine.run import analyze
from advisor.knowledge.structs import replace
from advisor.views.replay.edits import (
    AsGraph,
    Batched,
    CheaperDispatch,
    Edits,
    FasterCopies,
    Fused,
    OnSideStream,
    WithDispatch,
    WithDurations,
    WithHostTime,
    WithoutWaits,
    combine,
)
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.replay import MAX_CALLS, Replay
from advisor.views.replay.schedule import Schedule
from advisor.views.replay.simulate import period_us, run
from tests.build import Trace
from tests.paths import examples

STEPS = 6


def of(trace):
    """The unedited schedule, after checking that its replay is the recording."""
    replay = trace.get(Replay)
    assert period_us(replay.recorded) == pytest.approx(replay.step_us, rel=0.01)
    return replay.recorded


def waits(schedule):
    return np.flatnonzero(schedule.waits_for != -1)


def every(schedule, edit):
    return period_us(edit.apply(schedule))


# The same loops, bound by different sides


def late_wait():
    """Launch-bound: five kernels of 5 µs at 30 µs each, then a wait for the last, which was done long before."""
    trace = Trace()
    for s in range(STEPS):
        at = 200.0 * s
        trace.step(at, 199, s + 1)
        for k in range(5):
            t = at + 30 * k
            trace.op("aten::add", t, 28).launch(t + 20, t + 26, t + 31, dur=5)
        trace.op("aten::item", at + 155, 44).call("cudaStreamSynchronize", at + 160, 2)
    return trace


def test_removing_a_wait_in_a_launch_bound_loop_gains_nothing_but_the_call():
    schedule = of(late_wait())
    assert len(waits(schedule)) == STEPS - 1
    gained = period_us(schedule) - every(schedule, WithoutWaits(waits(schedule)))
    assert gained == pytest.approx(2, abs=0.01), "the call's own 2 µs of 200"


def queued_wait():
    """GPU-bound: the host waits 70 of 100 µs for the kernel before the last, while the last is queued."""
    trace, end = Trace(), 30.0
    for s in range(STEPS):
        at, before = 100.0 * s, end
        trace.step(at, 99, s + 1).op("aten::mm", at, 25)
        end = before + 100
        trace.launch(at + 20, before, end, dur=4)
        trace.call("cudaEventSynchronize", at + 26, before - (at + 26)) if before > at + 26 else None
    return trace


def test_a_wait_at_which_the_gpu_has_work_queued_gains_nothing():
    schedule = of(queued_wait())
    assert period_us(schedule) == pytest.approx(100)
    assert every(schedule, WithoutWaits(np.arange(len(schedule.call_row)))) == pytest.approx(100, rel=0.01)


def test_a_wait_for_all_streams_is_for_what_ended_last_not_for_what_was_launched_last():
    """A kernel of 484 µs on one stream, then one of 5 on another, then a wait of 465 for both."""
    trace = Trace()
    for s in range(STEPS):
        at = 600.0 * s
        trace.step(at, 599, s + 1).launch(at + 10, at + 16, at + 500, "long", stream=7).launch(at + 20, at + 26, at + 31, "short", stream=8)
        trace.call("cudaDeviceSynchronize", at + 40, 465)
    schedule = of(trace)
    assert schedule.call_us[waits(schedule)].max() == pytest.approx(0)
    long = np.flatnonzero(schedule.dur_us > 100)
    assert period_us(WithDurations(long, schedule.dur_us[long] / 2).apply(schedule)) == pytest.approx(600 - 242, abs=1)


@pytest.mark.parametrize(("kernel", "host", "expected"), [(100, 60, 101), (40, 60, 60)])
def test_a_wait_for_a_kernel_gains_up_to_the_slower_side(kernel, host, expected):
    # Each step: `host` µs of issuing with the launch at its end, 6 µs of latency, the kernel, 2 µs to return.
    trace, at = Trace(), 0.0
    for s in range(STEPS):
        done = at + host + 6 + kernel
        trace.step(at, done + 1 - at, s + 1).op("aten::mm", at, host)
        trace.launch(at + host - 4, at + host + 6, done, dur=4).call("cudaDeviceSynchronize", at + host, done + 2 - at - host)
        at = done + 2
    schedule = of(trace)
    assert period_us(schedule) == pytest.approx(host + 8 + kernel)
    assert every(schedule, WithoutWaits(waits(schedule))) == pytest.approx(expected, rel=0.01)


# Copies


def staged():
    """A pageable copy of 200 µs that holds the host until 2 µs after it, then a kernel of 94 on the same stream.

    From the call's return the host needs 20 µs to launch the kernel and to call the next copy, which starts 2 µs after the
    kernel: 2 + 200 + 16 + 94 = 312 a step.
    """
    trace, at, free = Trace(), 0.0, 4.0
    for s in range(STEPS):
        done = free + 2 + 200
        trace.step(at, done + 19 - at, s + 1).op("aten::copy_", at, done + 4 - at)
        trace.copy(at + 2, done - at, done - 200, done, "Pageable", 5_000_000)
        trace.op("aten::mm", done + 6, 12).launch(done + 10, done + 16, done + 110, dur=4)
        at, free = done + 20, done + 110
    return trace


def test_a_staged_copy_loop_is_the_copy_and_what_cannot_overlap_it():
    schedule = of(staged())
    assert period_us(schedule) == pytest.approx(312)
    copies = np.flatnonzero(schedule.dur_us == 200)
    assert len(copies) == STEPS - 1 and (schedule.waits_for[schedule.op_call[copies]] == copies).all()
    pinned = combine(WithoutWaits(schedule.op_call[copies]), FasterCopies(copies, np.full(len(copies), 100.0)))
    # The two on one stream, with the gaps between them.
    assert every(schedule, pinned) == pytest.approx(2 + 100 + 1 + 94, abs=2)
    # On a stream of its own the copy hides the kernel: the longer of the two.
    assert every(schedule, combine(pinned, OnSideStream(copies))) == pytest.approx(100, abs=2)


def test_a_faster_copy_is_never_a_slower_one():
    schedule = of(staged())
    copies = np.flatnonzero(schedule.dur_us == 200)
    assert every(schedule, FasterCopies(copies, np.full(len(copies), 900.0))) <= period_us(schedule) + 1e-9


def test_a_copy_hidden_behind_compute_gains_nothing():
    trace = Trace()
    for s in range(STEPS):
        at = 300.0 * s
        trace.step(at, 299, s + 1).op("aten::mm", at, 20).launch(at + 5, at + 11, at + 310, dur=4)
        trace.op("aten::copy_", at + 30, 10).copy(at + 32, 3, at + 40, at + 140, "Pinned", 5_000_000, stream=13)
    schedule = of(trace)
    copies = np.flatnonzero(schedule.dur_us == 100)
    gone = Fused(np.empty(0, np.int64), copies, np.empty(0))
    assert every(schedule, gone) == pytest.approx(period_us(schedule), rel=0.01)


def test_without_the_event_that_ties_a_kernel_to_its_copy_they_overlap():
    # A copy of 100 µs on stream 9; a kernel of 80, launched at once, waits for it by an event; the host waits for the kernel.
    trace = Trace()
    for s in range(STEPS):
        at = 200.0 * s
        trace.step(at, 199, s + 1).op("aten::copy_", at, 5).copy(at + 1, 1, at + 8, at + 108, "Pinned", stream=9)
        trace.op("aten::mm", at + 10, 5).launch(at + 11, at + 114, at + 194, dur=1)
        trace.call("cudaStreamSynchronize", at + 16, 180)
    schedule = of(trace)
    copies = np.flatnonzero(schedule.dur_us == 100)
    # 11 until the kernel's launch, 7 to start it, 80 for it, 2 to return and 4 more: the next batch is copied meanwhile.
    assert every(schedule, OnSideStream(copies)) == pytest.approx(11 + 7 + 80 + 2 + 4, abs=1)


# CUDA graphs, overlap, backlog, a full queue


def graphed(nodes=10, node=20.0, host=100.0, launch=15.0):
    trace, free = Trace(), 0.0
    for s in range(STEPS):
        at = host * s
        trace.step(at, host - 1, s + 1).op("prepare", at, 5).call("cudaGraphLaunch", at + host - launch - 1, launch, 1000 + s)
        start = max(free + 1, at + host)
        for k in range(nodes):
            trace.gpu(start + k * (node + 1), start + k * (node + 1) + node, f"node{k}", correlation=1000 + s)
        free = start + nodes * (node + 1) - 1
    return trace


def test_a_graph_is_one_launch_and_its_nodes():
    assert period_us(of(graphed())) == pytest.approx(210), "10 nodes of 20 and 1 between them: the GPU is the bound"
    assert period_us(of(graphed(node=2.0))) == pytest.approx(100), "the host is"


def test_a_graph_bound_by_its_nodes_gains_nothing_from_another_graph():
    schedule = of(graphed())
    assert every(schedule, AsGraph(10.0, 1.0)) == pytest.approx(210, rel=0.01)


def test_a_graph_behind_a_slow_host_is_bound_by_the_hosts_own_work():
    # Most of the 79 µs between the op and the launch are the program's own, and stay; the call costs 10, not 15.
    assert 79 <= every(of(graphed(node=2.0)), AsGraph(10.0, 1.0)) <= 90


def test_kernels_that_start_before_the_one_ahead_ends_keep_their_overlap():
    # Programmatic dependent launch: each kernel of 50 µs starts 10 µs before the end of the one ahead.
    trace, start = Trace(), 100.0
    for s in range(STEPS):
        trace.step(20.0 * s, 19, s + 1)
        for k in range(2):
            trace.launch(20 * s + 8 * k + 1, start, start + 50, dur=1)
            start += 40
    replay = trace.get(Replay)
    assert (replay.recorded.gap_us[1:] == -10).all()
    # The first op of the window has none before it: its gap is the usual one, not -10, in one of ten kernels.
    assert period_us(replay.recorded) == pytest.approx(80, rel=0.03)


def test_a_backlog_from_warm_up_is_no_part_of_the_step():
    # The GPU works off 500 µs of warm-up before the first step's kernel; a step takes it 80, the host 30.
    trace, free = Trace(), 500.0
    trace.gpu(0, 500, "warm-up")
    for s in range(STEPS):
        trace.step(30.0 * s, 29, s + 1).op("aten::mm", 30 * s, 20)
        trace.launch(30 * s + 10, free + 1, free + 80, dur=4)
        free += 80
    schedule = of(trace)
    assert period_us(schedule) == pytest.approx(80)
    assert every(schedule, CheaperDispatch(0.1)) == pytest.approx(80), "and launching faster gains nothing"


def test_a_launch_that_blocks_on_a_full_queue_is_the_gpus_time():
    # Every second launch returns only when the queue has room again.
    trace, free = Trace(), 0.0
    for s in range(STEPS):
        at = 1000.0 * s
        trace.step(at, 999, s + 1)
        for k in range(20):
            t = at + 50 * k
            free = max(free, t + 5)
            trace.launch(t, free, free + 49, dur=48 if k == 10 else 4)
            free += 50
    schedule = of(trace)
    assert every(schedule, CheaperDispatch(0.1)) == pytest.approx(1000, rel=0.02)


def test_a_wait_at_the_start_of_a_step_is_for_the_step_before():
    # Timing code: synchronize first, then 60 µs of issuing with the launch at 50, 6 to start, 40 of kernel, 2 to return.
    trace = Trace().launch(-10, -4, 36, dur=4)  # the step before, not in the window
    for s in range(STEPS):
        at = 98.0 * s
        trace.step(at, 97, s + 1).call("cudaDeviceSynchronize", at, 38)
        trace.op("aten::mm", at + 38, 60).launch(at + 88, at + 94, at + 134, dur=4)
    schedule = of(trace)
    assert len(waits(schedule)) == STEPS - 1, "the first call of the window waits too"
    assert every(schedule, WithoutWaits(waits(schedule))) == pytest.approx(60, rel=0.01)


# Edits


def test_edits_compose_and_the_gain_of_both_is_neither_their_sum_nor_lost():
    # Launch-bound at 200 with a wait: the wait alone gains 2, half the dispatch a fair half of 150, both together both.
    schedule = of(late_wait())
    wait, cheap = WithoutWaits(waits(schedule)), CheaperDispatch(0.5)
    alone = [period_us(schedule) - every(schedule, edit) for edit in (wait, cheap)]
    both = period_us(schedule) - every(schedule, combine(wait, cheap))
    assert both == pytest.approx(sum(alone), abs=0.1)
    # GPU-bound, neither is worth anything, alone or together.
    schedule = of(queued_wait())
    both = every(schedule, combine(WithoutWaits(np.arange(len(schedule.call_row))), cheap))
    assert both == pytest.approx(100, rel=0.01)


def test_each_of_two_bounds_alone_gains_nothing_and_both_together_do():
    # Host and GPU both need 100 µs: halving one leaves the other.
    trace, free = Trace(), 0.0
    for s in range(STEPS):
        at = 100.0 * s
        free = max(free, at + 96)
        trace.step(at, 99, s + 1).op("aten::mm", at, 98).launch(at + 90, free, free + 99, dur=4)
        free += 100
    schedule = of(trace)
    faster = Fused(np.arange(len(schedule.op_row)), np.empty(0, np.int64), np.full(len(schedule.op_row), 50.0))
    cheap = CheaperDispatch(0.5)
    assert every(schedule, faster) == pytest.approx(100, rel=0.02) and every(schedule, cheap) == pytest.approx(100, rel=0.02)
    assert every(schedule, combine(faster, cheap)) == pytest.approx(51, rel=0.05)


def test_the_saving_is_at_most_the_step_and_scales_to_the_recorded_step():
    replay = late_wait().get(Replay)
    nothing = Fused(np.empty(0, np.int64), np.arange(len(replay.recorded.op_row)), np.empty(0))
    gone = combine(WithoutWaits(waits(replay.recorded)), nothing, WithDispatch(np.zeros(len(replay.recorded.call_row))))
    saving = replay.saving(Edits(gone, gone, gone), "everything")
    assert 0 < saving.low_us <= saving.expected_us <= saving.high_us <= replay.step_us


def test_what_a_replay_does_not_explain_no_fix_shortens():
    replay = late_wait().get(Replay)
    short = replace(replay, error=0.5, true_step=replace(replay.true_step, recorded_us=2 * replay.step_us))
    gone = combine(WithoutWaits(waits(replay.recorded)))
    whole, bound = (r.saving(Edits(gone, gone, gone), "waits") for r in (replay, short))
    assert bound.basis == "bound" and bound.low_us == 0
    assert bound.expected_us == pytest.approx(whole.expected_us, rel=0.01), "twice the step, and no more to gain than the replay sees"


def test_a_change_for_the_worse_saves_nothing():
    replay = late_wait().get(Replay)
    worse = Fused(np.arange(3), np.empty(0, np.int64), np.full(3, 9000.0))
    assert replay.saving(Edits(worse, worse, worse), "").high_us == 0


def test_what_is_expected_is_the_mean_over_what_the_hosts_time_may_be():
    # The GPU needs 60 µs of a step; the host likely 100, so that less work on the GPU gains nothing, but 40 or 250 may be as well.
    trace = Trace()
    for s in range(STEPS):
        trace.step(100.0 * s, 99, s + 1).op("aten::mm", 100 * s, 98).launch(100 * s + 20, 100 * s + 30, 100 * s + 90, "gemm", dur=4)
    replay = trace.get(Replay)
    host = [replay.recorded.edit(host_us=replay.recorded.host_us * of) for of in (1.0, 0.4, 2.5)]
    replay = replace(replay, corrected=host[0], fastest=host[1], slowest=host[2])
    halved = WithDurations(np.arange(len(replay.recorded.op_row)), replay.recorded.dur_us / 2)
    likely, fast, slow = (replay.share(schedule, halved) for schedule in host)
    assert likely == slow == 0.0 and fast > 0.2 and not replay.hidden
    expected = replay.saving(Edits(halved, halved, halved), "").expected_us / replay.step_us
    # 1.35 standard deviations on either side stand for 0.27 each.
    assert expected == pytest.approx(0.274 * fast, rel=0.01)
    # A fix that costs the host 5 µs as well loses where the host is the bound, and that counts.
    dear = combine(halved, WithHostTime(np.arange(len(replay.recorded.op_row)), 5.0))
    loses = [1 - every(schedule, dear) / period_us(schedule) for schedule in host]
    assert loses[0] < 0 < loses[1] and 0 < replay.expected_share(dear) == pytest.approx(0.451 * loses[0] + 0.274 * (loses[1] + loses[2]), abs=0.001)


def test_batching_shares_what_is_shared():
    # 16 requests in a step: per request a sixteenth of the weights' time and of the host's, the attention's time stays.
    trace, free = Trace(), 0.0
    for s in range(STEPS):
        trace.step(20.0 * s, 19, s + 1).op("aten::mm", 20 * s, 8).launch(20 * s + 5, free + 25, free + 105, "gemm", dur=1)
        trace.op("aten::attention", 20 * s + 10, 8).launch(20 * s + 15, free + 105, free + 125, "flash_fwd", dur=1)
        free += 100
    schedule = of(trace)
    weights = np.flatnonzero(schedule.dur_us == 80)
    assert every(schedule, Batched(16, weights)) == pytest.approx(80 / 16 + 20, abs=0.1)


def test_what_is_made_ready_for_each_request_is_not_shared():
    # 2 ms of the program's own work, then 20 launches of 20 µs: of sixteen requests each keeps the 2 ms.
    trace = Trace()
    for s in range(STEPS):
        at = 2400.0 * s
        trace.step(at, 2399, s + 1)
        for k in range(20):
            t = at + 2000 + 20 * k
            trace.op("aten::mm", t, 18).launch(t + 5, t + 10, t + 12, "gemm", dur=5)
    schedule = of(trace)
    assert every(schedule, Batched(16, np.arange(len(schedule.dur_us)))) == pytest.approx(2000 + 400 / 16, rel=0.01)


def test_a_long_window_is_replayed_by_its_middle():
    trace, calls = Trace(), 300
    for s in range(MAX_CALLS // calls + 20):
        at = 3000.0 * s
        trace.step(at, 2999, s + 1)
        for k in range(calls):
            trace.launch(at + 10 * k, at + 10 * k + 5, at + 10 * k + 7)
    replay = trace.get(Replay)
    assert len(replay.recorded.call_row) <= MAX_CALLS and replay.error < 0.01
    assert period_us(replay.recorded) == pytest.approx(3000, rel=0.01)


# Laws of any schedule

times = st.floats(0, 100)


@st.composite
def schedules(draw):
    """A step of up to six calls, each with up to two ops on up to three streams, some of which wait."""
    calls = draw(st.integers(1, 6))
    op_call = np.array(sorted(draw(st.lists(st.integers(0, calls - 1), min_size=1, max_size=8))), np.int64)
    n = len(op_call)

    def floats(size):
        return np.array(draw(st.lists(times, min_size=size, max_size=size)))

    host = floats(calls)
    launched = np.searchsorted(op_call, np.arange(calls), side="right")
    return Schedule(
        call_row=np.arange(calls), host_us=host, dispatch_us=host * draw(st.floats(0, 1)), call_us=floats(calls),
        waits_for=np.array([draw(st.integers(-1, k - 1)) if k else -1 for k in launched], np.int64), tail_us=floats(calls) / 10,
        op_row=np.arange(n), op_call=op_call, stream=np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), np.int64),
        dur_us=floats(n), latency_us=floats(n) / 10, gap_us=floats(n) / 20,
        after=np.array([draw(st.integers(-1, k - 1)) if k else -1 for k in range(n)], np.int64),
        skip_op=np.zeros(n, bool), fused=np.zeros(n, bool), begins=np.zeros(1, np.int64), steps=1, periodic=False,
    )  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(schedules(), st.data())
def test_no_edit_that_takes_time_away_makes_the_step_longer(schedule, data):
    n_calls, n_ops = len(schedule.call_row), len(schedule.op_row)
    some_calls = np.array(sorted(data.draw(st.sets(st.integers(0, n_calls - 1)))), np.int64)
    some_ops = np.array(sorted(data.draw(st.sets(st.integers(0, n_ops - 1)))), np.int64)
    share = data.draw(st.floats(0, 1))
    before = period_us(schedule)
    for edit in (
        WithoutWaits(some_calls), CheaperDispatch(share), WithDispatch(np.full(n_calls, share)),
        FasterCopies(some_ops, np.full(len(some_ops), 100 * share)), Fused(np.empty(0, np.int64), some_ops, np.empty(0)),
        combine(WithoutWaits(some_calls), CheaperDispatch(share)), Batched(1 + 15 * share, np.arange(n_ops)),
    ):  # fmt: skip
        assert period_us(edit.apply(schedule)) <= before + 1e-6
    assert period_us(schedule) == before, "an edit leaves the schedule as it was"


def ended_us(schedule):
    """When a run of it is done, before that is rounded."""
    return run(schedule, 1, 0.0, {})[0][-1]


@settings(max_examples=examples(100), deadline=None)
@given(schedules())
def test_a_step_is_at_least_its_host_time_and_its_busiest_stream(schedule):
    found = ended_us(schedule)
    assert period_us(schedule) == round(found, 4)
    assert found >= float(schedule.host_us.sum() + schedule.call_us.sum()) - 1e-6
    for stream in np.unique(schedule.stream):
        assert found >= float(schedule.dur_us[schedule.stream == stream].sum()) - 1e-6
    # Every µs of every call, op and wait one after the other is the most.
    most = schedule.host_us.sum() + schedule.call_us.sum() + schedule.tail_us.sum()
    most += schedule.dur_us.sum() + schedule.latency_us.sum() + schedule.gap_us.sum()
    assert found <= most + 1e-6


@settings(max_examples=examples(60), deadline=None)
@given(schedules(), st.floats(0.1, 10))
def test_a_step_in_other_units_is_the_same_step(schedule, unit):
    scaled = replace(
        schedule,
        **{f: getattr(schedule, f) * unit for f in ("host_us", "dispatch_us", "call_us", "tail_us", "dur_us", "latency_us", "gap_us")},
    )
    assert ended_us(scaled) == pytest.approx(unit * ended_us(schedule), rel=1e-9, abs=1e-9)


# Waits between streams


def side_stream(after_main, told):
    """Each step of 300 µs: a product of 100, and a sum on stream 13, launched while it runs and begun `after_main` later."""
    trace = Trace()
    for s in range(STEPS):
        at = 300.0 * s
        trace.step(at, 299, s + 1).op("aten::mm", at, 20).launch(at + 5, at + 20, at + 120, dur=4)
        if told:
            trace.call("cudaEventRecord", at + 22, 1).call("cudaStreamWaitEvent", at + 24, 1)
        trace.op("aten::add", at + 26, 20).launch(at + 30, at + 120 + after_main, at + 130 + after_main, dur=4, stream=13)
    return trace


@pytest.mark.parametrize("told", [True, False])
def test_an_op_on_a_side_stream_follows_the_product_that_it_waited_for(told):
    schedule = side_stream(40, told).get(Replay).recorded
    side = np.flatnonzero(schedule.dur_us == 10)
    assert (schedule.after[side] == side - 1).all()
    assert schedule.gap_us[side] == pytest.approx(np.full(len(side), 40.0))


def test_an_op_that_began_long_after_any_other_waited_for_something_unseen():
    schedule = side_stream(150, told=False).get(Replay).recorded
    assert (schedule.after == -1).all()
    assert (side_stream(150, told=True).get(Replay).recorded.after >= 0).any(), "events tell"


def once_a_step(recorder="test"):
    """Four convolutions of 10 ms in FP32 a step, launched long before they run, and a filling of 20 µs on a stream of its own, which begins 4 ms into the third."""
    trace, name = Trace(recorder=recorder), "implicit_convolve_sgemm<float, float>"
    for s in range(STEPS):
        host, gpu = 500.0 * s, 3000 + 40_000.0 * s
        trace.step(host, 499, s + 1)
        for k in range(4):
            trace.op("aten::cudnn_convolution", host + 100 * k, 40, [[64, 256, 56, 56], [256, 256, 3, 3]], ["float"] * 2)
            trace.launch(host + 100 * k + 5, gpu + 10_000 * k, gpu + 10_000 * (k + 1) - 2, name, dur=4)
            if k == 2:
                trace.op("aten::fill_", host + 250, 20).launch(host + 255, gpu + 24_000, gpu + 24_020, "fill", dur=4, stream=20)
    return trace


def without_launches(trace):
    """The same where the host was not recorded, but for marks of the steps where these run."""
    bare = Trace()
    bare.rows["gpu_ops"] = trace.rows["gpu_ops"]
    for s in range(STEPS):
        bare.step(3000 + 40_000.0 * s, 39_999, s + 1)
    return bare


@pytest.mark.parametrize("trace", [once_a_step(), without_launches(once_a_step())], ids=["launches", "no launches"])
def test_a_stream_that_runs_one_op_a_step_holds_up_no_step_that_becomes_shorter(trace):
    schedule = trace.get(Replay).recorded
    side = np.flatnonzero(schedule.dur_us == 20)
    assert len(side) >= STEPS - 1 and schedule.gap_us[side].max() < 105, "what the other stream ran is no pause"
    every_op = np.arange(len(schedule.dur_us))
    assert every(schedule, WithDurations(every_op, schedule.dur_us / 4)) == pytest.approx(period_us(schedule) / 4, rel=0.15)


def test_products_beside_a_stream_that_runs_one_op_a_step_are_found():
    (finding,) = analyze(once_a_step().timeline(), rules=[built_in()["precision"]]).findings
    assert finding.severity == "high" and finding.saving.expected_us > 0.7 * 40_000


def test_what_ran_on_another_stream_is_waited_for_however_long_ago_the_event_told_ended():
    """Two collectives of 1 ms in turn on streams of their own: the second was told to wait for the product that made its input, long done, and began as the first ended."""
    trace = Trace()
    for s in range(STEPS):
        host, gpu = 300.0 * s, 3000 + 2100.0 * s
        trace.step(host, 299, s + 1)
        trace.op("aten::mm", host, 20).launch(host + 5, gpu, gpu + 40, "gemm", dur=4)
        trace.call("cudaEventRecord", host + 30, 1).call("cudaStreamWaitEvent", host + 32, 1)
        trace.launch(host + 40, gpu + 42, gpu + 1042, "nccl", dur=4, stream=20)
        trace.op("aten::mm", host + 100, 20).launch(host + 105, gpu + 43, gpu + 83, "gemm", dur=4)
        trace.call("cudaEventRecord", host + 130, 1).call("cudaStreamWaitEvent", host + 132, 1)
        trace.launch(host + 140, gpu + 1044, gpu + 2044, "nccl", dur=4, stream=21)
    schedule = trace.get(Replay).recorded
    second = np.flatnonzero(schedule.stream == 2)
    assert (schedule.after[second] == second - 2).all() and schedule.gap_us[second].max() <= 3


def test_an_event_that_was_recorded_on_the_waiting_stream_itself_says_nothing():
    trace = Trace()
    for s in range(STEPS):
        at = 100.0 * s
        trace.step(at, 99, s + 1).op("aten::mm", at, 20).launch(at + 5, at + 11, at + 30, dur=4)
        trace.call("cudaEventRecord", at + 40, 1).call("cudaStreamWaitEvent", at + 42, 1)
    assert (of(trace).after == -1).all()


def test_memory_is_freed_when_the_device_is_idle_whether_the_host_came_late_or_not():
    """The copy's wait is over when the call that frees is made: without that wait it would have waited itself."""
    trace = Trace()
    for s in range(STEPS):
        at = 400.0 * s
        trace.step(at, 399, s + 1).launch(at, at + 5, at + 205, "mine(float*)", dur=4)
        trace.copy(at + 5, 208, at + 205, at + 209, kind="DtoH").call("cudaFree", at + 220, 50)
    schedule = of(trace)
    freeing = np.flatnonzero((trace.timeline().api_calls["name"] == "cudaFree")[schedule.call_row])
    assert len(freeing) and (schedule.waits_for[freeing] >= 0).all() and (schedule.tail_us[freeing] == 0).all()
    assert schedule.call_us[freeing] == pytest.approx(50)


@pytest.mark.parametrize(("kernel_us", "asked", "host_us"), [(2900, "cudaMalloc", 0), (1000, "cudaMalloc", 2500), (2900, "cudaMemcpy2D", 2500)])
def test_an_allocator_that_is_refused_memory_waits_before_it_gives_some_back(kernel_us, asked, host_us):
    # The kernel runs until 2,905 µs. Nothing is recorded from the refusal, at 30, to the call that frees, at 2,530.
    trace = Trace()
    for s in range(STEPS):
        at = 3000.0 * s
        trace.step(at, 2999, s + 1).op("aten::mm", at, 10).launch(at, at + 5, at + 5 + kernel_us, "mine(float*)", dur=4)
        trace.op("aten::cat", at + 12, 2900).call(asked, at + 20, 10).call("cudaFree", at + 2530, 380)
    schedule = of(trace)
    freeing = np.flatnonzero((trace.timeline().api_calls["name"] == "cudaFree")[schedule.call_row])
    assert len(freeing) and schedule.host_us[freeing] == pytest.approx(host_us, abs=40)


def test_a_host_that_mostly_waits_in_copies_waits_no_longer_than_these_take():
    # A loop of three calls: a copy of 200 µs from pageable memory, a kernel of 100, and a copy back in whose call the host waits for both.
    trace = Trace()
    for k in range(6):
        at = 320.0 * k
        trace.step(at, 320, k + 1).copy(at, 205, at + 5, at + 205).launch(at + 206, at + 210, at + 310, "alone", dur=2.0)
        trace.copy(at + 208, 110, at + 311, at + 313, kind="DtoH")
    replay, work = trace.get(Replay), trace.get(GpuWork)
    kernels = np.flatnonzero(work.kernel)
    assert replay.share(replay.recorded, WithDurations(kernels, np.full(len(kernels), 20.0))) == pytest.approx(80 / 320, abs=0.01)
