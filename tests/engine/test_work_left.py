"""No range promises a step that is shorter than the work that its fixes leave alone."""

import numpy as np
import pytest

from advisor.engine.evaluate import _outcomes
from advisor.engine.headline import headline
from advisor.engine.kinds import judge
from advisor.engine.outcome import counted
from advisor.engine.rule import built_in
from advisor.sources import read
from advisor.views.device_rates import DeviceRates
from advisor.views.replay.edits import AsGraph, CheaperDispatch, Edits, Fused, combine, least_us
from advisor.views.replay.replay import Replay
from advisor.views.replay.simulate import period_us
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.engine.test_laws import overlapping
from tests.paths import EACH, ROOT, sampled
from tests.rules.test_rules import repeat, small_kernels

NEAR_US = 1e-3


def uncertain_host():
    """Kernels that take 40 of 400 µs, launched by ops of which much may be recording."""

    def body(trace, at):
        for k in range(20):
            trace.op("aten::add", at + 20 * k, 18).op("aten::to", at + 20 * k + 1, 8).launch(at + 20 * k + 10, at + 20 * k + 15, at + 20 * k + 17, "k", dur=4)

    return repeat(400, body).timeline()


def kernels_us(replay, edit):
    """What each step's kernels that an edit neither removes nor shortens take, on the stream where that is most."""
    before, after = replay.recorded, edit.apply(replay.recorded)
    left = ~after.skip_op & (after.dur_us == before.dur_us)
    # Where recorded kernels of a stream overlap, the later one's gap is negative.
    us = before.dur_us + np.minimum(after.gap_us, 0.0)
    return max((us[left & (after.stream == s)].sum() for s in np.unique(after.stream)), default=0.0) / before.steps


def shortest_steps(workspace):
    """(shortest step that is promised, what fixes leave of kernels) of all fixes together and of each that stands."""
    found = _outcomes(workspace, judge("trace"), list(built_in().values()), {rule.id: rule.settled({}) for rule in built_in().values()}, {})
    replay = workspace.get(Replay)
    step_us = replay.true_step.expected_us
    fixes = [f for f in counted(found.found) if f.edits]
    # Replayed steps that outlast the recorded ones were still at work that was queued before them.
    scale = min(1.0, step_us / max(period_us(replay.corrected), NEAR_US))
    every = kernels_us(replay, Edits.combined([f.edits for f in fixes]).high)
    yield headline(workspace, found).predicted_step_us.low, scale * every
    for fix in fixes:
        yield step_us - fix.finding.saving.high, scale * kernels_us(replay, fix.edits.high)


@pytest.mark.parametrize("timeline", [overlapping, uncertain_host, lambda: repeat(100, small_kernels).timeline()], ids=["overlapping", "uncertain", "small"])
def test_by_hand_no_step_is_shorter_than_the_kernels_that_stay(timeline):
    for shortest_us, left_us in shortest_steps(Workspace(timeline(), DeviceRates(()))):
        assert shortest_us >= left_us - NEAR_US


@pytest.mark.parametrize("path", sampled(sorted((ROOT / "samples").glob("*/*slow.*")), EACH // 4 or 1))
def test_of_samples_no_step_is_shorter_than_the_kernels_that_stay(path):
    recording = read(path)
    if recording.kind != "trace":
        pytest.skip("it holds no timeline")
    for shortest_us, left_us in shortest_steps(Workspace(*recording.parts, DeviceRates(()))):
        assert shortest_us >= left_us - NEAR_US


def test_what_stays_is_whole_and_what_shrinks_is_halved():
    trace = Trace()
    for s in range(4):
        trace.step(100.0 * s, 99, s + 1)
        for k in range(4):
            trace.op("aten::mm", 100 * s + 20 * k, 18).launch(100 * s + 20 * k + 4, 100 * s + 20 * k + 8, 100 * s + 20 * k + 18, "k", dur=2)
    replay = trace.get(Replay)
    schedule = replay.recorded
    ops = np.arange(len(schedule.op_row))[::2]
    nothing = combine()
    assert least_us(schedule, nothing) == pytest.approx(float((schedule.host_us + schedule.call_us).sum()) / schedule.steps), "the host issues all of the step"
    graph = AsGraph(0.0, 0.0)
    assert least_us(schedule, graph) == pytest.approx(40), "a graph leaves four kernels of 10 µs"
    half = combine(graph, Fused(ops, ops[:0], np.full(len(ops), 5.0)))
    assert least_us(schedule, half) == pytest.approx(2 * 10 + 2 * 5 / 2)
    cheap = CheaperDispatch(0.0)
    assert replay.removable_share(Edits(nothing, nothing, cheap)) == pytest.approx(1 - least_us(replay.fastest, cheap) / period_us(replay.corrected), abs=1e-6)
