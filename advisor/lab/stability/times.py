"""Changes of times that do not concern the program: another draw of the same run."""

from __future__ import annotations

import re
from random import Random

import numpy as np

from advisor.intervals import CLOCKS_APART_US
from advisor.knowledge.shares import NO_DIFFERENCE
from advisor.lab.export import METADATA_KEY
from advisor.lab.stability.events import CALLS, ON_DEVICE, ON_HOST, Event, Recorded, arguments, begins, ends, moved_event, on_device, spans

NOISE = NO_DIFFERENCE
"""Kernels differ by about this much from run to run, as steps do."""
CLOCKS_NS = round(1000 * CLOCKS_APART_US)
"""The profiler sets the device's clock by the host's: traces were seen to be off by some microseconds."""
STEP = re.compile(r"^ProfilerStep\s*#?\s*\d+$")


def doubled(trace: Recorded, rng: Random) -> Recorded | None:
    """The same program on machines half as fast: everything takes twice as long on host and device. Known properties of machines scale too: rates,
    overhead of the profiler and of compiled calls, the shortest kernel and pause that count."""
    first = min((begins(e) for e in trace.events if "ts" in e), default=0)

    def slower(event: Event) -> Event:
        if "ts" not in event:
            return event
        start = first + 2 * (begins(event) - first)
        rate = arguments(event).get("memory bandwidth (GB/s)")
        event = {**event, "args": {**event["args"], "memory bandwidth (GB/s)": rate / 2}} if isinstance(rate, (int, float)) else event
        return moved_event(event, start, start + 2 * (ends(event) - begins(event)) if "dur" in event else None)

    measured = trace.head.get(METADATA_KEY)
    head = trace.head
    if isinstance(measured, dict) and isinstance(times := measured.get("unprofiled_step_us"), list):
        head = {**head, METADATA_KEY: {**measured, "unprofiled_step_us": [2 * us for us in times]}}
    return Recorded(head, trace.map_events(slower).events)


def uneven(trace: Recorded, rng: Random) -> Recorded | None:
    """Each kernel, and each piece of host work for which the device idles, takes up to 2 % more or less. All clocks agree on that, so everything
    keeps its order."""
    device = sorted((begins(e), ends(e)) for e in spans(trace, ON_DEVICE))
    host = [time for e in spans(trace, ON_HOST) for time in (begins(e), ends(e))]
    if not device and not host:
        return None
    starts, stops = (np.array(column, np.int64) for column in zip(*device, strict=True)) if device else (np.empty(0, np.int64),) * 2
    edges = np.unique(np.r_[starts, stops, _idle_times(np.array(host, np.int64), starts, stops)])
    lasts = np.diff(edges) * np.array([1 + rng.uniform(-NOISE, NOISE) for _ in edges[1:]])
    moved = np.r_[0.0, np.cumsum(lasts)]

    timed = [e for e in trace.events if "ts" in e]
    before = np.array([begins(e) for e in timed] + [ends(e) for e in timed], np.int64)
    # Before the first edge and behind the last nothing is stretched.
    within = np.clip(before, edges[0], edges[-1])
    after = (np.rint(np.interp(within - edges[0], edges - edges[0], moved)).astype(np.int64) + edges[0] + (before - within)).tolist()
    at_new_time = {id(e): times for e, *times in zip(timed, after[: len(timed)], after[len(timed) :], strict=True)}

    def drawn(event: Event) -> Event:
        if id(event) not in at_new_time:
            return event
        start, end = at_new_time[id(event)]
        return moved_event(event, start, end if "dur" in event else None)

    return trace.map_events(drawn)


def _idle_times(times: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Those of the times at which nothing runs on a device. starts: sorted, with the stops of the same spans."""
    if not len(starts):
        return times
    before = np.searchsorted(starts, times, side="right")
    reached = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(stops)]
    return times[reached[before] <= times]


def device_later(trace: Recorded, rng: Random) -> Recorded | None:
    """The device's clock is 5 µs ahead."""
    return _set_off(trace, CLOCKS_NS)


def device_earlier(trace: Recorded, rng: Random) -> Recorded | None:
    """The device's clock is 5 µs behind."""
    return _set_off(trace, -CLOCKS_NS)


def _set_off(trace: Recorded, by_ns: int) -> Recorded:
    return trace.map_events(lambda event: moved_event(event, begins(event) + by_ns) if on_device(event) and "ts" in event else event)


def one_step_fewer(trace: Recorded, rng: Random) -> Recorded | None:
    """The recording ended a step earlier: without the last step's calls and their work. At least two of its marks are left."""
    marks = [begins(e) for e in trace.events if e.get("ph") == "X" and e.get("cat") not in ON_DEVICE and STEP.match(str(e.get("name", "")))]
    if len(marks) < 3:
        return None
    cut = max(marks)
    launched = {arguments(e).get("correlation"): begins(e) for e in spans(trace, CALLS)}
    device = [(launched.get(arguments(e).get("correlation"), -1), begins(e)) for e in spans(trace, ON_DEVICE)]
    device_cut = min((start for by, start in device if by >= cut), default=max((start for _, start in device), default=cut) + 1)

    def kept(event: Event) -> Event | None:
        if "ts" not in event or event.get("ph") == "M":
            return event
        start = begins(event)
        if on_device(event):
            number = event.get("id") if event.get("cat") == "ac2g" else arguments(event).get("correlation")
            return event if (launched[number] < cut if number in launched else start < device_cut) else None
        if start >= cut:
            return None
        return moved_event(event, start, min(ends(event), cut)) if "dur" in event else event

    return trace.map_events(kept)
