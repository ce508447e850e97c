"""The launch queue of each device: GPU ops that the host has launched and that have not begun."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.shares import MOST
from advisor.recordings.timeline import Timeline
from advisor.report.charts import QueueCurve
from advisor.views.trace.launches import Launches, launched_ops
from advisor.views.trace.steps import Steps

KNOWN = MOST
"""Where the calls of fewer of a device's ops were recorded, the queue holds more than can be seen."""


def curves(timeline: Timeline, launches: Launches, steps: Steps) -> tuple[QueueCurve, ...]:
    """A queue per device with recorded launches. An op that starts before its launch is damaged and in no queue."""
    ops = timeline.gpu_ops
    begin_us, device, asked = ops["start_us"], ops["device"], launched_ops(timeline)
    made = []
    for number in np.unique(device):
        here = asked & (device == number)
        queued = here & (launches.start_us <= begin_us)  # NaN, of a call that is not known, is below nothing
        within = queued & steps.holds(begin_us)
        if within.any() and queued.sum() >= KNOWN * here.sum():
            made.append(_curve(int(number), launches.start_us[queued], begin_us[queued], (begin_us - launches.start_us)[within], steps))
    return tuple(made)


def _curve(device: int, launch_us: Floats, begin_us: Floats, ahead_us: Floats, steps: Steps) -> QueueCurve:
    time_us, at = np.unique(np.r_[launch_us, begin_us], return_inverse=True)
    length = np.cumsum(np.bincount(at, np.r_[np.ones(len(launch_us)), -np.ones(len(begin_us))])).round().astype(np.int64)
    most, median, empty = _over_window(time_us, length, steps)
    return QueueCurve(device, time_us, length, most, median, empty, float(np.median(ahead_us)))


def _over_window(time_us: Floats, length: Ints, steps: Steps) -> tuple[int, int, float]:
    """The most ops in the queue, the number that it holds for half of the time, and the share of the time in which it is empty."""
    inside = (time_us > steps.start_us) & (time_us < steps.end_us)
    before = int(np.searchsorted(time_us, steps.start_us, "right")) - 1
    held = np.r_[length[before] if before >= 0 else 0, length[inside]]
    lasts_us = np.diff(np.r_[steps.start_us, time_us[inside], steps.end_us])
    order = np.argsort(held, kind="stable")
    half = np.searchsorted(np.cumsum(lasts_us[order]), lasts_us.sum() / 2)
    return int(held.max()), int(held[order[min(half, len(order) - 1)]]), float(lasts_us[held == 0].sum() / lasts_us.sum())
