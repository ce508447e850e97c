"""The step as it runs when nobody records, worked out by hand."""

import math

import numpy as np
import pytest

from advisor.knowledge import recording_cost
from advisor.knowledge.structs import replace
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.recording_cost import _became_shorter
from advisor.views.replay.replay import Replay
from advisor.views.replay.simulate import period_us
from advisor.views.replay.true_step import Calibration, TrueStep
from advisor.views.workspace import Workspace
from tests.build import Trace

STEPS, LAUNCHES = 5, 4
STEPS_REPLAYED = STEPS - 1


def recorded(step_us=400.0, gpu_us=4.0, python=0, recorder="kineto", pause_us=0.0):
    """Steps of four ops with a launch each, evenly over the step; `python` calls that do nothing, half a µs each with the time
    to the next; a pause without events at the end."""
    trace, free = Trace(recorder=recorder), 0.0
    for s in range(STEPS):
        begin, each = step_us * s, (step_us - pause_us) / LAUNCHES
        trace.step(begin, step_us - 1, s + 1)
        for k in range(LAUNCHES):
            at = begin + each * k
            trace.op("aten::mm", at, each - 1)
            for i in range(python):
                trace.python("<built-in function isinstance>", at + 1 + 0.5 * i, 0.25)
            if python:
                trace.python("train.py(3): step", at + 1 + 0.5 * python, 0.25)
            launch = at + each / 2
            start = max(launch + 8, free)
            trace.launch(launch, start, start + gpu_us / LAUNCHES, dur=5)
            free = start + gpu_us / LAUNCHES
    return trace


def step_of(trace) -> TrueStep:
    return trace.get(Replay).true_step


def test_both_estimates_by_hand():
    # 160 µs in all, four ops and four launches: 0.85 of it less 8 × 1.2 µs is 126; a host needs 4 × 3.5 + 4 × 3.3 = 27 for as many.
    step = step_of(recorded(160.0))
    added, needed = step.alone_us
    assert added == pytest.approx(0.85 * 160 - 8 * 1.2, rel=0.03)
    assert needed == pytest.approx(4 * 3.5 + 4 * 3.3, rel=0.02)
    assert min(needed, added) < step.expected_us < max(needed, added)
    assert step.low_us <= needed and step.expected_us < step.high_us <= 160 * 1.1
    assert step.recording_us == pytest.approx(160 - step.expected_us)


def test_python_calls_cost_what_those_that_do_nothing_take():
    slow = step_of(recorded(160.0, python=20))
    # 84 calls a step, 2 × (0.5 - 0.05) µs each.
    assert slow.alone_us[0] == pytest.approx(0.85 * (160 - 84 * 0.9) - 8 * 1.2, rel=0.05)


def nested_ranges(gpu_us):
    """Steps of 400 µs under nsys: four products, each with two views inside that take 10 µs with the time before them."""
    trace = Trace(recorder="nsys")
    for s in range(STEPS):
        trace.note(f"step {s}", 400.0 * s, 399)
        for k in range(LAUNCHES):
            at = 400.0 * s + 100 * k
            trace.op("aten::matmul", at, 99)
            for view in range(2):
                trace.op("aten::view", at + 10 * view + 6, 4)
            trace.launch(at + 40, at + 50, at + 50 + gpu_us / LAUNCHES, dur=5)
    return trace


def test_ranges_around_every_op_slow_the_host_that_writes_them():
    # Each of 12 ranges adds 10 - 0.5 µs, each of 4 calls 8, of 400 µs.
    assert step_of(nested_ranges(20.0)).alone_us[0] == pytest.approx(400 - 12 * 9.5 - 4 * 8, rel=0.05)
    # A GPU that was recorded idle for a quarter of the step is its bound.
    assert step_of(nested_ranges(300.0)).expected_us == pytest.approx(300, rel=0.03)


def test_a_step_that_the_gpu_fills_is_known_to_what_the_gpu_varies():
    step = step_of(recorded(400.0, gpu_us=398.0))
    assert step.expected_us == pytest.approx(400, rel=0.01)
    assert (step.high_us - step.low_us) / step.expected_us < 0.15


def test_a_step_that_only_recording_made_the_hosts_is_the_gpus():
    # The trace shows a GPU that idles for three quarters of 160 µs; of those the 100 Python calls took 90.
    step = step_of(recorded(160.0, gpu_us=36.0, python=25))
    assert step.expected_us < 80


def test_a_pause_without_events_is_the_programs_own():
    step = step_of(recorded(1000.0, pause_us=900.0))
    assert step.low_us > 600


def test_a_pause_that_comes_once_at_a_place_passed_often_is_not_the_programs():
    # Half a millisecond before the third step's second op, in a loop that otherwise comes there without a pause.
    trace, late = Trace(recorder="kineto"), 0.0
    for s in range(STEPS):
        trace.step(160.0 * s + late, 159 + (500 if s == 2 else 0), s + 1)
        for k in range(LAUNCHES):
            late += 500 if (s, k) == (2, 1) else 0
            at = 160.0 * s + 40 * k + late
            trace.op("aten::mm", at, 39)
            trace.launch(at + 20, at + 28, at + 29, dur=5)
    step = step_of(trace)
    assert step.recorded_us == pytest.approx(160 + 500 / (STEPS - 1))
    assert step.expected_us < 120 < step.high_us, "it may come again"


def test_few_events_do_not_explain_much_time():
    # Eight events a step cannot have added more than 40 µs each to 400.
    cost = recorded(400.0).get(Replay).cost
    assert cost.needed_us / STEPS_REPLAYED == pytest.approx(400 - 8 * 40, rel=0.05), "not the 27 that a host needs for them"


def test_no_step_is_longer_than_it_was_recorded_but_for_the_gpus_clock():
    hosts, gpus = step_of(recorded(160.0)), step_of(recorded(400.0, gpu_us=398.0))
    assert hosts.high_us <= 160 and 400 < gpus.high_us <= 440


def test_no_step_is_shorter_than_what_its_device_works():
    # Two streams whose kernels the recording shows one after the other; a replay runs them side by side, 60 µs each.
    trace = Trace(recorder="kineto")
    for s in range(STEPS):
        trace.step(160.0 * s, 159, s + 1)
        for k in range(2):
            trace.op("aten::mm", 160.0 * s + 80 * k, 79)
            trace.launch(160.0 * s + 80 * k + 8, 160.0 * s + 80 * k + 15, 160.0 * s + 80 * k + 75, stream=7 + k, dur=5)
    step = step_of(trace)
    assert step.expected_us >= 120 and step.low_us >= 120 / recording_cost.spread().gpu_faster - 0.1


def test_a_recorder_whose_cost_is_unknown_is_taken_at_its_word():
    step = step_of(recorded(recorder="unheard of"))
    assert step.basis == "recorded" and step.expected_us == pytest.approx(400) and step.recording_us == 0


def measured(trace, *steps_us):
    return Workspace(trace.timeline(), Calibration(steps_us)).get(Replay)


def test_a_measured_step_is_taken_as_it_is_and_the_replay_takes_as_long():
    replay = measured(recorded(400.0), 208.0, 200.0, 201.0)
    step = replay.true_step
    assert (step.basis, step.expected_us) == ("measured", 201.0) and 200 <= step.low_us <= step.high_us <= 208
    assert period_us(replay.corrected) == pytest.approx(201, rel=0.03)
    # The host is the bound: there is one time of it that fits.
    assert period_us(replay.fastest) == pytest.approx(period_us(replay.slowest), rel=0.05)


def test_a_measured_step_that_the_gpu_fills_leaves_the_hosts_time_open():
    replay = measured(recorded(400.0, gpu_us=396.0), 400.0)
    assert period_us(replay.fastest) == pytest.approx(period_us(replay.slowest), rel=0.03)
    assert replay.fastest.host_us.sum() < 0.8 * replay.slowest.host_us.sum()


@pytest.mark.parametrize(("timed_us", "used"), [(0.1, False), (350.0, False), (380.0, True), (430.0, True), (450.0, False)])
def test_a_time_that_the_step_cannot_take_is_not_used(timed_us, used):
    # Recorded at 400 µs, of which kernels run for 4 × 99: a tenth below that or above the recorded step is no step of this trace.
    trace = recorded(400.0, gpu_us=396.0)
    step = measured(trace, timed_us).true_step
    assert (step.basis, step.unused_us) == (("measured", 0.0) if used else ("estimated", timed_us))
    assert step.expected_us == (timed_us if used else step_of(trace).expected_us)


@pytest.mark.parametrize(("timed_us", "in_trace_us"), [(430.0, 400.0), (380.0, 396.0), (398.0, 398.0)])
def test_a_step_that_is_timed_a_little_off_makes_no_other_shares(timed_us, in_trace_us):
    # Recorded times are parts of the recorded step, of which kernels take 396 µs: shares of 430 or 380 would contradict the window's own.
    trace = recorded(400.0, gpu_us=396.0)
    workspace = Workspace(trace.timeline(), Calibration((timed_us,)))
    assert workspace.get(GpuWork).step_us == pytest.approx(in_trace_us)
    assert workspace.get(Replay).true_step.expected_us == timed_us


def test_a_time_that_cannot_be_is_not_used_where_recording_has_no_known_cost():
    for timed_us, basis in ((100.0, "measured"), (1000.0, "recorded")):
        assert measured(recorded(recorder="unheard of"), timed_us).true_step.basis == basis


def test_what_the_recorder_wrote_into_the_trace_is_used():
    timeline = recorded(400.0).timeline()
    timeline = replace(timeline, source=replace(timeline.source, unprofiled_step_us=(250.0, 251.0, 249.0)))
    assert Workspace(timeline).get(Replay).true_step.expected_us == 250.0


def test_the_more_is_taken_off_the_less_weight_has_what_is_left():
    few, many = (recorded(160.0, python=n).get(Replay).cost for n in (0, 30))
    for cost, nearer in ((few, 0), (many, 1)):
        apart = [abs(math.log(cost.expected_us / us)) for us in cost.estimates_us]
        assert apart.index(min(apart)) == nearer
        assert cost.low_us <= min(cost.estimates_us) and cost.high_us <= cost.recorded_us
    spread = recording_cost.spread()
    assert many.high_us / many.expected_us <= math.exp(spread.deviations * spread.needed)


@pytest.mark.parametrize(
    ("periods", "shorter"),
    [
        ((130.0, 120.0, 110.0), True),
        ((100.0, 400.0, 90.0, 410.0, 80.0), False),
        ((100.0,), False),
        ((100.0, 100.0), False),
        ((200.0, 120.0, 125.0, 110.0), True),
    ],
)
def test_steps_settle_where_most_later_ones_are_shorter(periods, shorter):
    # Of the fourth case's ten pairs six are shorter: long and short steps in turn, of which the last happens to be short.
    assert _became_shorter(np.array(periods)) is shorter


def copying(memory):
    """Steps of 1,200 µs: a copy of 1,000 µs that holds the host, then a kernel of 100 µs."""
    trace = Trace(recorder="kineto")
    for s in range(STEPS):
        t = 1200.0 * s
        trace.step(t, 1199, s + 1).op("aten::copy_", t, 1020)
        trace.copy(t + 5, 1010, t + 12, t + 1012, memory=memory, size=8 << 20)
        trace.op("aten::mm", t + 1030, 30).launch(t + 1050, t + 1060, t + 1160, dur=5)
    return trace


@pytest.mark.parametrize(("memory", "reached_us"), [("Pageable", 900), ("Pinned", 1100)])
def test_copies_that_the_host_moves_itself_are_as_much_faster_as_a_measured_step_needs(memory, reached_us):
    replay = Workspace(copying(memory).timeline(), Calibration((900.0,))).get(Replay)
    assert replay.true_step.expected_us == 900
    # The GPU's part alone is 1,100 µs: only what the host stages can have taken less without the recorder.
    assert period_us(replay.corrected) == pytest.approx(reached_us, rel=0.04)


def waiting(kernel):
    """Steps of 1,000 µs: a kernel of 50 µs, then one of 900 µs for which the host waits."""
    trace = Trace(recorder="kineto")
    for s in range(STEPS):
        t = 1000.0 * s
        trace.step(t, 999, s + 1)
        trace.op("aten::mm", t + 1, 20).launch(t + 5, t + 15, t + 65, dur=5)
        trace.op("c10d::allreduce_", t + 25, 20).launch(t + 30, t + 70, t + 970, dur=5, name=kernel)
        trace.call("cudaDeviceSynchronize", t + 50, 925)
    return trace


@pytest.mark.parametrize(("kernel", "fits"), [("ncclDevKernel_AllReduce_Sum_f32_RING_LL", True), ("ampere_sgemm_128x64_tn", False)])
def test_a_rank_may_wait_for_less_without_the_profiler_than_it_did(kernel, fits):
    replay = Workspace(waiting(kernel).timeline(), Calibration((500.0,))).get(Replay)
    # The rank that it waits for is recorded too, and its host no longer slowed: the wait may be shorter, work may not.
    assert (replay.true_step.timed.error < 0.1) is fits
    assert period_us(replay.corrected) == pytest.approx(500 if fits else 1000, rel=0.1)


def test_a_step_of_staged_copies_may_be_shorter_than_recorded():
    pageable, pinned = (step_of(copying(memory)) for memory in ("Pageable", "Pinned"))
    assert pageable.low_us == pytest.approx(pinned.low_us - 1000 * (1 / 1.03 - 1 / 1.25), rel=0.02)
    assert pageable.expected_us == pinned.expected_us and pageable.high_us == pinned.high_us


def test_of_jax_the_trace_alone_tells_and_a_share_of_the_hosts_time_is_its_own():
    step = step_of(recorded(160.0, recorder="jax"))
    assert step.alone_us == (pytest.approx(0.68 * 160 - 4 * 2.0, rel=0.03),)
    assert step.low_us < step.expected_us < step.high_us <= 160 * 1.1


def in_jax(launch_us, nodes=20, read=False):
    """Steps of one command buffer whose launch takes that long, and begins its kernels when it returns; of each the host may read a value for 100 µs after it."""
    trace, step_us = Trace(recorder="jax"), launch_us + 60.0 + 100 * read
    for s in range(STEPS):
        at = step_us * s
        trace.step(at, step_us - 1, s + 1).op("PjitFunction(f)", at + 1, launch_us + 40)
        trace.call("cuGraphLaunch", at + 20, launch_us, s)
        begin = at + 20 + launch_us + 2
        for k in range(nodes):
            trace.gpu(begin + k, begin + k + 0.8, correlation=s, graph_id=3)
        if read:
            trace.call("jax.Array.__float__", at + launch_us + 50, 100)
            for k in range(40):  # JAX's own ranges and frames in the wait
                trace.note("range", at + launch_us + 51 + 2 * k, 1)
    return trace


def test_recording_each_kernel_of_a_command_buffer_costs_its_launch():
    # 160 µs, all of them the host's, of which a launch of 100 records 20 kernels; without that the call would count for 50 at the most.
    step = step_of(in_jax(100.0))
    assert step.expected_us == pytest.approx(0.68 * 160 - 2.0 - 20 * 2.0, rel=0.05)


def test_what_jax_does_in_a_wait_is_slowed_by_recording_too():
    reads, alone = step_of(in_jax(100.0, read=True)), step_of(in_jax(100.0))
    assert reads.expected_us - alone.expected_us == pytest.approx(0.68 * 100, rel=0.15)


def test_a_graph_begins_when_its_launch_returns_and_not_after_a_pause_of_its_stream():
    # Kernels of the launch before still ran when this one began: its own first kernel waited for the call, not for the stream.
    trace = Trace()
    for s in range(40):
        at = 12.0 * s
        if s % 8 == 0:
            trace.step(at, 95, s // 8 + 1)
        trace.call("cuGraphLaunch", at, 11, s).gpu(at + 13, at + 14, correlation=s, graph_id=1).gpu(at + 14, at + 15, correlation=s, graph_id=1)
    replay = trace.get(Replay)
    host = replay.recorded.edit(host_us=0 * replay.recorded.host_us, call_us=0 * replay.recorded.call_us)
    assert period_us(host) == pytest.approx(8 * 2, rel=0.3), "with a host that takes no time the kernels follow each other"
