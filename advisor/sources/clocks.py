"""The device's clock, set by the host's as far as launches tell: a recorder matches the two once, to some microseconds."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import Timeline

LEAST_LAUNCH_US = 3.0
"""No kernel starts sooner after its launch began: 3.3 µs at the least in some 130 recordings of A100, H100, H200, MI210 and MI300, by three recorders."""

ADRIFT_US = 5.0
"""Ops that seem to start this much before their launch are no matter of a clock that was matched by sampling: the check of clocks speaks of it."""

FEWEST_LAUNCHES = 10
"""Fewer tell no clock: one of them may be damaged."""

AMONG_FASTEST = 0.001
"""Quantile of the times from launch to start that represents the shortest: one record among thousands decides nothing."""


def aligned(timeline: Timeline) -> Timeline:
    """The timeline with each device's times as much later as its fastest launches need. Unchanged if they are slow enough, as in most recordings;
    and where a device is further off than `ADRIFT_US`."""
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
    """How long each op started after its launch began, and on which device; of ops whose launch is known, and the only one of its number."""
    ops, calls = timeline.gpu_ops, timeline.api_calls
    numbers, wanted = calls["correlation"], ops["correlation"]
    order = np.argsort(numbers, kind="stable")
    first, behind = (np.searchsorted(numbers[order], wanted, side=side) for side in ("left", "right"))
    known = (wanted >= 0) & (behind - first == 1)
    launched = calls["start_us"][order[first[known]]]
    return ops["start_us"][known] - launched, ops["device"][known].astype(np.int64)


def _clock_lag_us(took: Floats) -> float:
    """By how much a device's clock is behind, at the least; 0 where launches do not tell."""
    if len(took) < FEWEST_LAUNCHES:
        return 0.0
    fastest = float(np.quantile(took, AMONG_FASTEST, method="higher"))
    return LEAST_LAUNCH_US - fastest if -ADRIFT_US <= fastest < LEAST_LAUNCH_US else 0.0


def _lag_of_devices(device: Ints, behind: dict[int, float]) -> Floats:
    added = np.zeros(len(device))
    for number, us in behind.items():
        added[device == number] = us
    return added
