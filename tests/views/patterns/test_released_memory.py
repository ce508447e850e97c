"""What giving back the memory of a pageable copy takes belongs to the copy."""

import pytest

from advisor.views.patterns.released_memory import ReleasedMemory
from tests.build import Trace
from tests.rules.test_rules import run

STEPS = 4


def sending(memory="Pageable", pause=1500.0, c=True, between=()):
    """A step that sends a batch for 2 ms, pauses in its own frame, and computes for 3 ms."""
    trace, length = Trace(), 5_100 + pause
    for step in range(STEPS):
        at = length * step
        trace.step(at, length - 1, step + 1).python("train.py(7): step", at + 1, length - 10)
        if c:
            trace.python("<built-in method cuda of Tensor object at 0x7f>", at + 98, 2004)
        trace.op("aten::to", at + 100, 2000).op("aten::copy_", at + 110, 1980).copy(at + 120, 1900, at + 150, at + 2010, memory, 16 << 20)
        trace.call("cudaStreamSynchronize", at + 2030, 10)
        for name, start in between:
            trace.python(name, at + start, 200)
        trace.python(f"{'<built-in function' if c else 'torch/nn/functional.py(3):'} linear>", at + 2100 + pause, 30)
        trace.op("aten::mm", at + 2105 + pause, 20).launch(at + 2110 + pause, at + 2120 + pause, at + 5000 + pause, dur=5)
        trace.call("cudaDeviceSynchronize", at + 2140 + pause, 2870)
    return trace


def test_a_pause_right_behind_a_pageable_copy_is_its_memory_given_back():
    view = sending().get(ReleasedMemory)
    assert view.us == pytest.approx(1500, rel=0.05) and "back takes the host" in view.told(6_600)


@pytest.mark.parametrize(
    "other",
    [sending(memory="Pinned"), sending(c=False), sending(pause=40.0), sending(between=[("<built-in function sorted>", 2110.0)])],
    ids=["pinned memory is kept", "functions of C were not recorded", "a pause between two ops", "the program works in it"],
)
def test_other_pauses_are_not(other):
    assert other.get(ReleasedMemory).us == 0


def test_no_more_than_the_copy_took_is_given_back():
    assert sending(pause=2500.0).get(ReleasedMemory).us == pytest.approx(2000, rel=0.05)


def test_one_cause_is_told_once():
    memcpy, own = run("memcpy", sending()).findings, run("host-bound", sending())
    assert not own.findings and "1.50 ms" in memcpy[0].summary
    without = run("memcpy", sending(c=False)).findings[0]
    assert memcpy[0].saving.expected_us - without.saving.expected_us == pytest.approx(1500, rel=0.1)
