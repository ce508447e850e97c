"""What recording is taken to cost: by who recorded, and with which options."""

from dataclasses import replace

import pytest

from advisor.knowledge.recording_cost import ProfilerCost
from advisor.timeline import Source
from advisor.views.replay.build import Replay
from advisor.views.replay.simulate import period_us
from tests.build import Trace

BARE = Source("t", "kineto", 0, 0, shapes=False, stacks=False)


@pytest.mark.parametrize("option", ["shapes", "memory", "stacks"])
def test_each_option_makes_each_op_dearer_and_nothing_else(option):
    bare, more = ProfilerCost.of(BARE), ProfilerCost.of(replace(BARE, **{option: True}))
    assert more.op_us > bare.op_us and replace(more, op_us=bare.op_us) == bare


def test_nsys_records_no_ops_of_the_framework():
    assert ProfilerCost.of(replace(BARE, format="nsys")).op_us == 0
    assert ProfilerCost.of(replace(BARE, format="unheard of")) == ProfilerCost.of(BARE)


def test_a_launch_costs_more_to_record_than_another_call():
    for name in ("kineto", "nsys"):
        cost = ProfilerCost.of(replace(BARE, format=name))
        assert cost.launch_us > cost.api_call_us > 0


def test_the_corrected_step_is_shorter_by_the_cost_of_what_was_recorded():
    # Ten ops a step, 100 µs apart, each with a launch of 5 µs: far more than recording costs, so all of it is taken off.
    trace = Trace()
    for s in range(4):
        trace.step(1000.0 * s, 999, s + 1)
        for k in range(10):
            at = 1000.0 * s + 100 * k
            trace.op("aten::add", at, 99).launch(at + 60, at + 66, at + 67, dur=30)
    replay, cost = trace.get(Replay), ProfilerCost.of(trace.timeline().source)
    saved = period_us(replay.recorded) - period_us(replay.corrected)
    assert saved == pytest.approx(10 * (cost.op_us + cost.launch_us), rel=0.05)
