"""Device memory over a timeline's window: the totals that a producer wrote with its events, else the events summed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from advisor.recordings.timeline import Timeline
from advisor.report.charts import MemoryCurve
from advisor.report.memory import TracedMemory
from advisor.views.trace.steps import Steps

POINTS = 600
"""Of a curve: a chart is about this many pixels wide."""
_HOST = 0
"""The `device_type` of host memory."""


def curves(timeline: Timeline, steps: Steps) -> tuple[MemoryCurve, ...]:
    """The most of each stretch of the window, a curve for each device that has events in it."""
    frame = timeline.memory
    frame = frame[(frame["device"] >= 0) & (frame["device_type"] != _HOST)]
    made = []
    for device, rows in frame.groupby("device"):
        summed = not (rows["allocated_bytes"] > 0).any()
        rows = rows.assign(allocated_bytes=_running(rows), reserved_bytes=0) if summed else rows[rows["allocated_bytes"] >= 0]
        within = rows[steps.holds(rows["start_us"].to_numpy())]
        if len(within):
            made.append(_curve(int(str(device)), within, steps, summed))
    return tuple(made)


@dataclass(frozen=True)
class TracedPeaks:
    """The peaks of the curves, for whoever does not draw."""

    devices: tuple[TracedMemory, ...]

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps) -> TracedPeaks:
        return cls(tuple(_peaks(curve) for curve in curves(timeline, steps)))


def _peaks(curve: MemoryCurve) -> TracedMemory:
    """What is summed is what was asked of the driver."""
    if curve.summed:
        return TracedMemory(curve.device, peak_reserved_bytes=curve.peak_bytes)
    return TracedMemory(curve.device, curve.peak_bytes, int(curve.reserved_bytes.max(initial=0)) or None)


def _running(rows: pd.DataFrame) -> pd.Series[int]:
    """Bytes held after each event. What is given back and was never asked for was held before: the total is nowhere below 0."""
    total = rows["bytes"].cumsum()
    return total - min(int(total.min()), 0)


def _curve(device: int, rows: pd.DataFrame, steps: Steps, summed: bool) -> MemoryCurve:
    stretch = ((rows["start_us"].to_numpy() - steps.start_us) / (steps.end_us - steps.start_us) * POINTS).astype(np.int64)
    most = rows.groupby(stretch).agg(start=("start_us", "first"), used=("allocated_bytes", "max"), held=("reserved_bytes", "max"))
    columns = (most["start"].to_numpy(), most["used"].to_numpy(np.int64), most["held"].to_numpy(np.int64))
    return MemoryCurve(device, *columns, peak_bytes=int(rows["allocated_bytes"].max()), summed=summed)
