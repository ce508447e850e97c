"""Device memory over a timeline's window: the totals that a producer wrote with its events, else the events summed."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Timeline
from advisor.report.charts import PIXELS, MemoryCurve
from advisor.report.memory import TracedMemory
from advisor.views.trace.steps import Steps

_HOST = 0
"""The `device_type` of host memory."""


def curves(timeline: Timeline, steps: Steps) -> tuple[MemoryCurve, ...]:
    """The most of each stretch of the window, a curve for each device that has events in it."""
    frame = timeline.memory
    frame = frame[(frame["device"] >= 0) & (frame["device_type"] != _HOST)]
    made = []
    for device in np.unique(frame["device"]).tolist():
        rows = frame[frame["device"] == device]
        summed = not (rows["allocated_bytes"] > 0).any()
        if summed:
            rows = rows.with_columns(allocated_bytes=_running(rows["bytes"]), reserved_bytes=np.zeros(len(rows), np.int64))
        else:
            rows = rows[rows["allocated_bytes"] >= 0]
        within = rows[steps.holds(rows["start_us"])]
        if len(within):
            made.append(_curve(device, within, steps, summed))
    return tuple(made)


class TracedPeaks(msgspec.Struct, frozen=True):
    """The peaks of the curves, for whoever does not draw."""

    devices: tuple[TracedMemory, ...]

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps) -> TracedPeaks:
        return cls(tuple(_peaks(curve) for curve in curves(timeline, steps)))


def _peaks(curve: MemoryCurve) -> TracedMemory:
    """Sums memory requested from the driver."""
    if curve.summed:
        return TracedMemory(curve.device, peak_reserved_bytes=curve.peak_bytes)
    return TracedMemory(curve.device, curve.peak_bytes, int(curve.reserved_bytes.max(initial=0)) or None)


def _running(changes: Ints) -> Ints:
    """Bytes held after each event. What is given back and was never asked for was held before: the total is nowhere below 0."""
    total = np.cumsum(changes)
    return total - min(int(total.min()), 0)


def _curve(device: int, rows: Table, steps: Steps, summed: bool) -> MemoryCurve:
    stretch = ((rows["start_us"] - steps.start_us) / (steps.end_us - steps.start_us) * PIXELS).astype(np.int64)
    begins = np.flatnonzero(np.r_[True, np.diff(stretch) > 0])
    used, held = (np.maximum.reduceat(rows[name], begins) for name in ("allocated_bytes", "reserved_bytes"))
    return MemoryCurve(device, rows["start_us"][begins], used, held, peak_bytes=int(rows["allocated_bytes"].max()), summed=summed)
