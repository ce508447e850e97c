"""Steps that keep an outside clock's pace, and those that only pause."""

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.views.replay.external_pace import OutsideClock
from tests.build import Trace


def shown(pauses_to: float | None) -> Trace:
    """20 steps: a kernel of 3 to 7 ms that the host waits for. Then it pauses until the next multiple of `pauses_to` µs, or for 30 ms."""
    trace, at = Trace(recorder="nsys"), 0.0
    for step in range(20):
        work = 3_000.0 + 1_000.0 * (step * 7 % 5)
        trace.launch(at, at + 10, at + 10 + work, "draw(float*)", dur=5).call("cudaDeviceSynchronize", at + 20, work - 10)
        trace.launch(at + work + 30, at + work + 40, at + work + 60, "next(float*)", dur=5)
        at = pauses_to * (step + 1) if pauses_to else at + work + 30_000
    return trace


@pytest.mark.parametrize(("pauses_to", "paces"), [(40_000.0, True), (None, False)])
def test_a_pause_that_makes_up_for_shorter_work_keeps_a_clocks_pace(pauses_to, paces):
    trace = shown(pauses_to)
    assert trace.get(OutsideClock).paces == paces
    loud = [f.rule for f in run(trace.timeline(), built_in().values()).findings if f.severity in ("high", "medium") and f.shortens]
    assert bool(loud) != paces
