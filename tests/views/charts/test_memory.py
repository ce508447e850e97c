"""Memory over the window: totals as written, or events summed."""

from __future__ import annotations

from advisor.report.memory import TracedMemory
from advisor.views.charts.memory import TracedPeaks, curves
from advisor.views.trace.steps import Steps
from tests.build import Trace


def trace(*events: dict[str, int]) -> Trace:
    """Three steps of 100 µs, and memory events that say nothing of totals unless given."""
    made = Trace()
    for at in (0.0, 100.0, 200.0):
        made.step(at, 100.0).launch(at + 1, at + 10, at + 90, "k")
    made.rows["memory"] = [{"pid": 1, "tid": 1, "device": 0, "device_type": 1, **event} for event in events]
    return made


def test_events_without_totals_are_summed_from_what_must_have_been_held() -> None:
    """Of 170 given back 70 were never asked for here: held before, they count from the start."""
    made = trace(
        {"start_us": 11, "bytes": 100}, {"start_us": 60, "bytes": -170}, {"start_us": 110, "bytes": 100}, {"start_us": 150, "bytes": 50},
        {"start_us": 150, "bytes": 1 << 40, "device_type": 0},
    )  # fmt: skip
    (curve,) = curves(made.timeline(), made.get(Steps))
    assert curve.summed and curve.allocated_bytes.tolist() == [170, 0, 100, 150] and curve.peak_bytes == 170
    assert not curve.reserved_bytes.any()


def test_totals_that_were_written_stand() -> None:
    made = trace(
        {"start_us": 11, "bytes": 5, "allocated_bytes": 500, "reserved_bytes": 900},
        {"start_us": 110, "bytes": -5, "allocated_bytes": 495, "reserved_bytes": 900},
    )
    (curve,) = curves(made.timeline(), made.get(Steps))
    assert not curve.summed and curve.peak_bytes == 500 and curve.reserved_bytes.tolist() == [900, 900]


def test_no_events_give_no_curve() -> None:
    made = trace()
    del made.rows["memory"]
    assert curves(made.timeline(), made.get(Steps)) == ()


def test_peaks_stand_in_the_report_and_sums_are_of_the_driver() -> None:
    written = trace({"start_us": 11, "bytes": 5, "allocated_bytes": 500, "reserved_bytes": 900})
    assert written.get(TracedPeaks).devices == (TracedMemory(0, 500, 900),)
    summed = trace({"start_us": 11, "bytes": 100}, {"start_us": 110, "bytes": 50})
    assert summed.get(TracedPeaks).devices == (TracedMemory(0, None, 150),)
