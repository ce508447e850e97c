"""The replay on loops whose period, and what each change gains, can be worked out by hand."""

import pickle

import numpy as np
import pytest

from advisor.views.replay.edits import (
    AsGraph,
    CheaperDispatch,
    Combined,
    Edits,
    FasterCopies,
    Fused,
    OnSideStream,
    WithDurations,
    WithHostTime,
    WithoutHostTime,
    WithoutTime,
    WithoutWaits,
    changes,
    combine,
)
from advisor.views.replay.replay import Replay
from advisor.views.replay.simulate import period_us
from tests.build import Trace
from tests.views.replay.test_simulate import loop

STEPS = 6


def host_bound(kernel=4.0, recorder="test"):
    """Three kernels of 4 µs a step, one issued every 20 µs: the period is 60 µs whatever the GPU does."""
    trace = Trace(recorder=recorder)
    for s in range(STEPS):
        trace.step(60 * s, 59, s + 1)
        for k in range(3):
            at = 60 * s + 20 * k
            trace.op("aten::relu", at, 18).launch(at + 12, at + 18, at + 18 + kernel, dur=4)
    return trace


def gpu_bound():
    """A kernel of 100 µs a step, queued by a host that needs 30."""
    trace, free = Trace(), 0.0
    for s in range(STEPS):
        trace.step(30 * s, 29, s + 1).op("aten::mm", 30 * s, 20)
        start = max(free + 1, 30 * s + 16)
        free = start + 100
        trace.launch(30 * s + 10, start, free, dur=4)
    return trace


def waiting(kernel=100.0, work=50.0):
    """Each step: `work` µs of issuing, a kernel that starts 6 µs after its launch, and a wait for it."""
    trace, at = Trace(), 0.0
    for s in range(STEPS):
        done = at + work + 6 + kernel
        trace.step(at, done + 2 - at, s + 1).op("aten::mm", at, work + 4).launch(at + work, at + work + 6, done, dur=4)
        trace.call("cudaDeviceSynchronize", at + work + 4, done + 2 - (at + work + 4))
        at = done + 2
    return trace


@pytest.mark.parametrize(("trace", "period"), [(host_bound(), 60), (gpu_bound(), 101), (waiting(), 158)])
def test_the_unedited_replay_is_the_recording(trace, period):
    replay = trace.get(Replay)
    assert replay.step_us == pytest.approx(period)
    assert period_us(replay.recorded) == pytest.approx(period, rel=0.01) and replay.error < 0.01


def every_wait(schedule):
    return np.flatnonzero(schedule.waits_for != -1)


def test_without_the_wait_the_host_runs_ahead_until_the_slower_side_bounds():
    # Host: 50 of issuing, 4 for the call and 2 after the wait that stay with it; GPU: 100.
    schedule = waiting(kernel=100, work=50).get(Replay).recorded
    assert period_us(WithoutWaits(every_wait(schedule)).apply(schedule)) == pytest.approx(101, rel=0.02)
    schedule = waiting(kernel=20, work=50).get(Replay).recorded
    assert period_us(WithoutWaits(every_wait(schedule)).apply(schedule)) == pytest.approx(54, rel=0.03)


def test_a_call_that_no_longer_waits_costs_the_host_nothing_and_others_what_they_did():
    schedule = loop(3, waits_for=np.array([-1, 0, 1]))
    after = WithoutWaits(np.array([1])).apply(schedule)
    assert after.waits_for.tolist() == [-1, -1, 1] and after.call_us.tolist() == [2.0, 0.0, 2.0]
    assert schedule.waits_for.tolist() == [-1, 0, 1] and schedule.call_us.tolist() == [2.0, 2.0, 2.0], "the schedule itself stays as it was"


def test_a_wait_in_a_loop_bound_by_launches_is_worth_nothing():
    trace = host_bound()
    for s in range(STEPS):
        trace.call("cudaStreamSynchronize", 60 * s + 45, 0.5)  # the GPU has long been done
    schedule = trace.get(Replay).recorded
    gain = period_us(schedule) - period_us(WithoutWaits(every_wait(schedule)).apply(schedule))
    assert gain == pytest.approx(0, abs=0.6)


def test_cheaper_dispatch_gains_only_where_the_host_is_the_bound():
    schedule = host_bound().get(Replay).recorded
    assert period_us(CheaperDispatch(0.5).apply(schedule)) == pytest.approx(30, rel=0.05)
    schedule = gpu_bound().get(Replay).recorded
    assert period_us(CheaperDispatch(0.5).apply(schedule)) == pytest.approx(101, rel=0.01)


def test_a_launch_between_two_waits_stays_as_it_is_in_a_graph():
    def waiting(kernels):
        trace = Trace()
        for s in range(STEPS):
            trace.step(60 * s, 59, s + 1)
            for k in range(kernels):
                trace.launch(60 * s + 10 * k, 60 * s + 10 * k + 6, 60 * s + 10 * k + 10, dur=4)
            trace.call("cudaStreamSynchronize", 60 * s + 10 * kernels, 5)
        return trace.get(Replay).recorded

    alone, several = waiting(1), waiting(3)
    assert period_us(AsGraph(10.0, 1.0).apply(alone)) == pytest.approx(period_us(alone))
    assert period_us(AsGraph(10.0, 1.0).apply(several)) < 0.8 * period_us(several)


def test_as_one_graph_the_step_is_its_kernels_or_its_launch():
    schedule = host_bound(kernel=4).get(Replay).recorded
    assert period_us(AsGraph(10.0, 1.0).apply(schedule)) == pytest.approx(15, rel=0.15)  # three kernels of 4 and their gaps, or the launch
    schedule = host_bound(kernel=10).get(Replay).recorded
    assert period_us(AsGraph(10.0, 1.0).apply(schedule)) == pytest.approx(33, rel=0.05)


def test_each_step_launches_a_graph_of_its_own():
    schedule = host_bound().get(Replay).recorded
    once, twice = (period_us(AsGraph(us, 1.0).apply(schedule)) for us in (100.0, 200.0))
    assert twice - once == pytest.approx(100), "each step launches one, not all of them together"


def test_fused_kernels_go_with_the_time_that_issued_them():
    schedule = host_bound().get(Replay).recorded
    first = np.arange(0, len(schedule.op_row), 3)
    gone = np.setdiff1d(np.arange(len(schedule.op_row)), first)
    edited = Fused(first, gone, np.full(len(first), 5.0)).apply(schedule)
    assert period_us(edited) == pytest.approx(20, rel=0.1)


def pageable(copy=200.0, kernel=100.0):
    """A blocking copy, then a kernel on the same stream that the host does not wait for."""
    trace, at = Trace(), 0.0
    for s in range(STEPS):
        trace.step(at, copy + 30, s + 1).op("aten::copy_", at, copy + 10).copy(at + 5, copy + 2, at + 10, at + 10 + copy, size=5_000_000)
        trace.op("aten::mm", at + copy + 12, 10).launch(at + copy + 15, at + copy + 20, at + copy + 20 + kernel, dur=4)
        at += copy + 20 + kernel - 5
    return trace


def test_copies_at_the_pinned_rate_and_ahead():
    schedule = pageable().get(Replay).recorded
    assert period_us(schedule) == pytest.approx(315, rel=0.02)
    copies = np.flatnonzero(schedule.dur_us == 200)
    faster = combine(WithoutWaits(schedule.op_call[copies]), FasterCopies(copies, np.full(len(copies), 90.0)))
    assert period_us(faster.apply(schedule)) == pytest.approx(190, rel=0.05), "copy and kernel share a stream: 90 + 100"
    ahead = combine(faster, OnSideStream(copies))
    assert period_us(ahead.apply(schedule)) == pytest.approx(118, rel=0.2), "the host, or 100 of kernel, is what is left"


def test_an_op_that_waits_for_another_stream_follows_it_in_the_replay():
    trace = Trace()
    for s in range(STEPS):
        at = 200.0 * s
        trace.step(at, 199, s + 1).op("aten::copy_", at, 5).copy(at + 1, 1, at + 8, at + 108, memory="Pinned", stream=9)
        trace.op("aten::mm", at + 10, 5).launch(at + 11, at + 116, at + 190, dur=1)
    schedule = trace.get(Replay).recorded
    copies = np.flatnonzero(schedule.dur_us == 100)
    kernels = np.setdiff1d(np.arange(len(schedule.op_row)), copies)
    assert schedule.after[kernels].tolist() == copies.tolist() and (schedule.after[copies] == -1).all()


def test_savings_are_ordered_and_never_exceed_the_step():
    replay = host_bound().get(Replay)
    saving = replay.saving(Edits(CheaperDispatch(0.9), CheaperDispatch(0.5), AsGraph(10, 1)), "launches")
    assert 0 < saving.low_us < saving.expected_us < saving.high_us < replay.step_us
    assert saving.basis == "simulated"


def test_edits_compose_and_the_original_stays():
    schedule = host_bound().get(Replay).recorded
    before = period_us(schedule)
    both = combine(CheaperDispatch(0.5), CheaperDispatch(0.5))
    assert period_us(both.apply(schedule)) == pytest.approx(15, rel=0.2) and period_us(schedule) == before


def test_an_op_that_others_were_fused_into_keeps_its_time_and_any_other_change_does_not_protect_it():
    schedule = host_bound().get(Replay).recorded
    first, second, third = (np.arange(k, len(schedule.op_row), 3) for k in range(3))
    fused = Fused(first, second, np.full(len(first), 5.0)).apply(schedule)
    assert WithoutTime(np.r_[first, third]).apply(fused).dur_us.sum() == 5 * len(first) + 4 * len(second)
    faster = WithDurations(first, np.full(len(first), 3.0)).apply(schedule)
    assert WithoutTime(first).apply(faster).dur_us[first].sum() == 0


def test_what_a_fix_does_to_a_step_is_told_part_by_part():
    schedule = waiting(kernel=100, work=50).get(Replay).recorded
    kernels = np.arange(len(schedule.op_row))
    fix = combine(WithoutWaits(every_wait(schedule)), combine(WithDurations(kernels, np.full(len(kernels), 40.0)), CheaperDispatch(1.0)))
    waits, faster = changes(schedule, fix)
    assert (waits.edit, waits.waits_removed, waits.gpu_us, waits.ops_changed) == ("without-waits", 1.0, 0.0, 0.0)
    assert (faster.edit, faster.gpu_us, faster.ops_changed, faster.host_us) == ("with-durations", 60.0, 1.0, 0.0)
    assert [c.edit for c in changes(schedule, fix)] == ["without-waits", "with-durations"], "what changes nothing is not told"


def test_edits_travel_to_another_process():
    schedule = host_bound().get(Replay).recorded
    fix = combine(Fused(np.array([0]), np.array([1, 2]), np.array([5.0])), AsGraph(10.0, 1.0))
    sent, to = pickle.loads(pickle.dumps((fix, schedule)))
    assert period_us(sent.apply(to)) == period_us(fix.apply(schedule))


def test_a_chain_may_leave_more_than_one_kernel():
    fused = Fused.chains([np.array([0, 1, 2]), np.array([3, 4])], np.array([6.0, 2.0]), [2, 1])
    assert fused.kept.tolist() == [0, 1, 3]
    assert fused.gone.tolist() == [2, 4]
    assert fused.dur_us.tolist() == [3.0, 3.0, 2.0]


def test_what_a_fix_adds_is_no_part_of_what_another_takes_a_share_of():
    """A compiled function's own cost on the host stands, whichever fix is named first: half of what the host does now is gone, not half of that cost."""
    schedule = host_bound().get(Replay).recorded
    half = np.full(len(schedule.host_us), 0.5)
    added, gone = WithHostTime(np.array([0]), 100.0), WithoutHostTime(half, half)
    either = [combine(*edits).apply(schedule).host_us for edits in ((added, gone), (combine(combine(added), gone), Combined()), (gone, added))]
    assert all(np.array_equal(host_us, either[0]) for host_us in either)
    assert either[0].sum() == pytest.approx(schedule.host_us.sum() / 2 + 100)
    assert [part.name for part in combine(added, CheaperDispatch(0.5), gone).parts] == ["with-host-time", "cheaper-dispatch", "without-host-time"]
