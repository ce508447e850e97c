"""What a report says of memory: the peak by what holds it, the curve over time, the segments."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec
import numpy as np

from advisor.recordings.snapshot import Action, Ints, MemorySnapshot
from advisor.report.charts import PIXELS, ROWS
from advisor.report.memory import HeldRow, Memory, MemoryCurve, MemoryDevice, SegmentRow
from advisor.views.memory.attribution import CATEGORIES, Attribution, Category
from advisor.views.memory.history import DeviceMemory, MemoryHistory
from advisor.views.memory.patterns import Leaks
from advisor.views.memory.replay import MemoryReplay
from advisor.views.memory.steps import MemorySteps

PIECES = 60
"""Blocks of a segment that are drawn."""


class MemorySummary(msgspec.Struct, frozen=True):
    """The report's part about memory."""

    memory: Memory

    @classmethod
    def build(
        cls, history: MemoryHistory, attribution: Attribution, leaks: Leaks, steps: MemorySteps, replay: MemoryReplay, snapshot: MemorySnapshot
    ) -> MemorySummary:
        device = attribution.device
        category = attribution.category.copy()
        category[leaks.rows] = CATEGORIES.index(Category.LEAKED)
        return cls(
            Memory(
                device=device.device,
                peak_allocated_bytes=device.peak_allocated,
                peak_reserved_bytes=device.peak_reserved,
                reserved_at_peak_bytes=int(device.reserved[device.peak]) if len(device.events) else device.reserved_start,
                at_peak=tuple(_held(attribution, category, steps)),
                named_share=attribution.named_share,
                steps=len(steps) if steps.basis != "whole" else 0,
                growth_bytes=leaks.growth(device.allocations.size),
                replay_error=replay.fidelity,
                devices=tuple(_device(one) for one in history.devices),
                curve=_curve(device, category),
                segments=tuple(_segments(device)) if snapshot.tells_reserved else (),
                reserved_known=snapshot.tells_reserved,
            )
        )


def _device(device: DeviceMemory) -> MemoryDevice:
    return MemoryDevice(
        device=device.device,
        peak_allocated_bytes=device.peak_allocated,
        peak_reserved_bytes=device.peak_reserved,
        end_allocated_bytes=int(device.allocated[-1]),
        events=len(device.events),
        out_of_memory=int(np.count_nonzero(device.events.action == Action.OOM)),
    )


def _held(attribution: Attribution, category: Ints, steps: MemorySteps) -> Iterable[HeldRow]:
    """Rows that sum to the peak, most bytes first."""
    a, device = attribution.device.allocations, attribution.device
    held: Counter[tuple[str, str, str, str, str]] = Counter()
    members: dict[tuple[str, str, str, str, str], list[int]] = defaultdict(list)
    for row in np.flatnonzero(device.at_peak).tolist():
        origin = attribution.origin(row)
        key = CATEGORIES[category[row]].value, origin.module, origin.source, origin.op or origin.node, _lifetime(a.born[row], a.freed[row], device, steps)
        held[key] += int(a.size[row])
        members[key].append(row)
    ordered = held.most_common()
    for key, size in ordered[:ROWS]:
        name, module, source, op, lifetime = key
        start, end = _span(device, a.born[members[key]].min(), a.freed[members[key]].max())
        yield HeldRow(category=name, module=module, source=source, bytes=size, op=op, count=len(members[key]), lifetime=lifetime, start_us=start, end_us=end)
    rest: Counter[str] = Counter()
    number: Counter[str] = Counter()
    for key, size in ordered[ROWS:]:
        rest[key[0]] += size
        number[key[0]] += len(members[key])
    for name, size in rest.most_common():
        yield HeldRow(category=name, module="", source="", bytes=size, op="(smaller ones)", count=number[name])


def _span(device: DeviceMemory, born: int, freed: int) -> tuple[float, float]:
    """Times of two events, relative to the first event; the window's outside it."""
    time = device.events.time_us
    if not len(time):
        return 0.0, 0.0
    return float(time[max(born, 0)] - time[0]), float(time[min(freed, len(time) - 1)] - time[0])


def _lifetime(born: int, freed: int, device: DeviceMemory, steps: MemorySteps) -> str:
    n = len(device.events)
    if born < 0 and freed > n:
        return "always"
    if steps.basis == "whole":
        return "to the end" if freed > n else "a part of the window"
    first, last = steps.step_of(np.array([max(born, 0), min(freed, n)])).tolist()
    if last - first > 1:
        return "several steps"
    return "a step" if last > first else "part of a step"


def _curve(device: DeviceMemory, category: Ints) -> MemoryCurve | None:
    """The highest moment of each stretch of events, the peak among them."""
    n = len(device.events)
    if n < 2:
        return None
    edges = np.unique(np.linspace(0, n, PIXELS + 1).astype(int))
    highest = [start + int(np.argmax(device.allocated[start:end])) for start, end in itertools.pairwise(edges.tolist())]
    at = np.unique(np.r_[0, highest, device.peak, n - 1])
    sizes = device.allocations.size
    by_category = {}
    for index, name in enumerate(CATEGORIES):
        of = category == index
        if of.any():
            curve = device.curve(np.where(of, sizes, 0))[at]
            if curve.any():
                by_category[name.value] = tuple(curve.tolist())
    time = device.events.time_us[at] - device.events.time_us[0]
    return MemoryCurve(
        time_us=tuple(time.astype(float).tolist()),
        reserved=tuple(device.reserved[at].tolist()),
        categories=by_category,
        peak=int(np.searchsorted(at, device.peak)),
    )


def _segments(device: DeviceMemory) -> Iterable[SegmentRow]:
    """Segments held at the peak and what of them is in use then, largest first; expandable ones as the window ends."""
    a = device.allocations
    spans = {s.address: (s.size, s.large, s.stream) for s in device.segments_start}
    events = device.events
    for i in np.flatnonzero(np.isin(events.action[: device.peak + 1], (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))).tolist():
        address, size = int(events.address[i]), int(events.size[i])
        if events.action[i] == Action.SEGMENT_ALLOC:
            spans[address] = size, size > 2 << 20, int(events.stream[i])
        else:
            spans.pop(address, None)
    spans |= {s.address: (s.size, s.large, s.stream) for s in device.segments_end if s.expandable}
    held = np.flatnonzero(device.at_peak)
    held = held[np.argsort(a.address[held], kind="stable")]
    addresses = a.address[held]
    for address, (size, large, stream) in sorted(spans.items(), key=lambda item: -item[1][0])[:PIXELS]:
        first, last = np.searchsorted(addresses, [address, address + size])
        inside = held[first:last]
        inside = np.sort(inside[np.argsort(-a.size[inside], kind="stable")][:PIECES])
        used = sorted((int(a.address[row]) - address, int(a.size[row])) for row in inside.tolist())
        yield SegmentRow(bytes=size, large=large, used=tuple(used), stream=stream)
