"""The device's clock, corrected by the host's as far as launches allow. A profiler matches the two once, to some microseconds."""

from __future__ import annotations

import numpy as np

from advisor.intervals import CLOCKS_APART_US, Floats, Ints
from advisor.knowledge.counts import USUAL
from advisor.knowledge.shares import NEGLIGIBLE
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import Timeline

LEAST_LAUNCH_US = 3.0
"""No kernel starts sooner after its launch began. At least 3.3 µs in some 130 recordings of A100, H100, H200, MI210 and MI300, by three profilers."""

FEWEST_LAUNCHES = USUAL
"""With fewer launches no clock is corrected: a record may be damaged."""

AMONG_FASTEST = NEGLIGIBLE
"""Quantile of the times from launch to start that represents the shortest: a single record among thousands has no influence."""


def aligned(timeline: Timeline) -> Timeline:
    """The timeline with each device's times moved later as its fastest launches require. Unchanged if these are slow enough, as in most recordings,
    or if a device is further off than `CLOCKS_APART_US`."""
    took, device = _launch_us(timeline)
    behind = {number: us for number in np.unique(device).tolist() if (us := _clock_lag_us(took[device == number])) > 0}
    if not behind:
        return timeline
    tables = {
        name: frame.with_columns(start_us=frame["start_us"] + _lag_of_devices(frame["device"], behind)).sorted_by("start_us")
        for name in ("gpu_ops", "gpu_annotations")
        if len(frame := getattr(timeline, name))
    }
    return replace(timeline, source=replace(timeline.source, device_clock_us=max(behind.values())), **tables)


def _launch_us(timeline: Timeline) -> tuple[Floats, Ints]:
    """Time of each op from the begin of its launch to its start, and its device; of ops with a known launch, alone with its number."""
    ops, calls = timeline.gpu_ops, timeline.api_calls
    numbers, wanted = calls["correlation"], ops["correlation"]
    order = np.argsort(numbers, kind="stable")
    first, behind = (np.searchsorted(numbers[order], wanted, side=side) for side in ("left", "right"))
    known = (wanted >= 0) & (behind - first == 1)
    launched = calls["start_us"][order[first[known]]]
    return ops["start_us"][known] - launched, ops["device"][known]


def _clock_lag_us(took: Floats) -> float:
    """The least delay of a device's clock; 0 if launches do not show any."""
    if len(took) < FEWEST_LAUNCHES:
        return 0.0
    fastest = float(np.quantile(took, AMONG_FASTEST, method="higher", overwrite_input=True))
    return LEAST_LAUNCH_US - fastest if -CLOCKS_APART_US <= fastest < LEAST_LAUNCH_US else 0.0


def _lag_of_devices(device: Ints, behind: dict[int, float]) -> Floats:
    added = np.zeros(len(device))
    for number, us in behind.items():
        added[device == number] = us
    return added
