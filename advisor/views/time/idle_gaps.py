"""Causes of idle time: every gap of a device's work, split by host activity.

A gap ends with the start of an op. If the host launched that op after the gap began, the device was starved: time before the launch belongs to the host's
activity, the rest to launch latency, which lasts until the call returns. If the op was launched earlier, the device waited for other device work.
Profiler overhead in the host's part counts as `profiler`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import msgspec
import numpy as np

from advisor.intervals import EMPTY, NANOSECOND_US, Floats, Ints, Spans, joined, overlap_with, subtract
from advisor.knowledge.cuda_api import ApiRole
from advisor.knowledge.idle import CAUSES
from advisor.recordings.columns import Table, compact
from advisor.recordings.timeline import MemoryKind, Timeline
from advisor.views.replay.replay import Replay
from advisor.views.time.device_time import Partition
from advisor.views.trace.host_activity import CLOCK_SKEW_US, LONGEST_DISPATCH_US, HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.steps import Steps

STAGED_BYTES = 65536
"""From pageable memory less than this goes along with the call; what is more the host first copies into a buffer of the driver."""

STRETCHED = (["launch", "host", "data_loading"], ["sync", "allocator", "unknown"])
"""Causes that recording lengthens: first those in which the host runs through events, then the rest if these are too short for the overhead."""


class Gaps(msgspec.Struct, frozen=True):
    """Idle gaps of the busiest device in the window.

    start_us, end_us: (n,). next_op: (n,) row of the GPU op that ends each gap, -1 at the window's end. causes: (n, len(CAUSES)) µs; each row sums to its gap.
    by_device: total by cause for every device. run_us: the window without a profiler. recording_us: part of `profiler` due to a slower host. replayed_steps:
    steps of a long window that the replay holds.
    """

    start_us: Floats
    end_us: Floats
    next_op: Ints
    causes: Table
    by_device: dict[int, dict[str, float]]
    run_us: float
    recording_us: float = 0.0
    replayed_steps: int = 1
    most_us: Mapping[str, float] = msgspec.field(default_factory=dict)
    """By cause, all of its gaps with the host as slow as recording leaves open."""
    slowest_us: float = 0.0
    """The window then."""

    @property
    def dur_us(self) -> Floats:
        """(n,) length of each gap."""
        return self.end_us - self.start_us

    def together_us(self, *causes: str) -> Floats:
        """(n,) µs of each gap that some of the causes take together."""
        return _together(self.causes, causes)

    def main_causes(self, rows: Ints | int) -> Any:
        """(n,) the cause that takes most of each of these gaps; of one gap, its."""
        return np.array(CAUSES, object)[np.argmax([self.causes[cause][rows] for cause in CAUSES], axis=0)]

    def share(self, cause: str) -> float:
        """How much of the steps, as they run when nobody records, the device idles for one of the causes."""
        return float(self.causes[cause].sum()) / self.run_us

    def most_share(self, cause: str) -> float:
        """The same share with the host as slow as recording leaves open."""
        return self.most_us.get(cause, 0.0) / self.slowest_us if self.slowest_us else self.share(cause)

    def waited_for_us(self, rows: Ints, steps: Steps) -> float:
        """The device's waits per step for launches of these GPU ops in the replayed steps; if steps repeat, also during the host's pauses before them."""
        lost = self.together_us("launch", "dependency", *(["host"] if steps.repeats and steps.steps > 1 else []))
        return float(lost[np.isin(self.next_op, rows)].sum()) / self.replayed_steps

    def wait_after_us(self, ops: Table) -> float:
        """What the device waits, a step, directly behind these GPU ops of the steps replayed."""
        ends = np.sort(ops.ends)
        after = np.searchsorted(ends, self.start_us + NANOSECOND_US) > np.searchsorted(ends, self.start_us - NANOSECOND_US)
        return float(self.dur_us[after].sum()) / self.replayed_steps

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, partition: Partition, host: HostActivity, steps: Steps, replay: Replay) -> Gaps:
        main = partition.main
        by_device: dict[int, dict[str, float]] = {}
        kept = (np.empty(0), np.empty(0), np.empty(0, np.int64), Table({cause: np.empty(0) for cause in CAUSES}))
        recording_us, most_us = 0.0, dict[str, float]()
        slowest_us = steps.steps * replay.true_step.high_us
        least_us = max(steps.steps * replay.true_step.recorded_us - slowest_us, 0.0)
        for part in partition.devices:
            start, end, next_op, recorded = gaps_of_device(timeline, launches, host, part.device, part.idle)
            if part is main:
                shares, _ = _stretched(recorded, least_us)
                most_us = {cause: float(_true(recorded, cause, shares).sum()) for cause in CAUSES}
            shares, moved_us = _stretched(recorded, replay.true_step.recording_us * steps.steps)
            causes = Table({cause: compact(_true(recorded, cause, shares)) for cause in CAUSES})
            by_device[part.device] = {cause: float(causes[cause].sum()) for cause in CAUSES}
            if part is main:
                kept, recording_us = (start, end, next_op, causes), moved_us
        return cls(*kept, by_device, max(steps.steps * replay.true_step.in_trace_us, 1e-9), recording_us, replay.recorded.steps, most_us, slowest_us)


def gaps_of_device(timeline: Timeline, launches: Launches, host: HostActivity, device: int, idle: Spans) -> tuple[Floats, Floats, Ints, Table]:
    """The gaps of a device: start and end, the GPU op that ends each (row, -1 at the window's end), and causes."""
    start, end = idle
    next_op = _next_ops(timeline, device, end)
    launch = np.where(next_op >= 0, launches.start_us[next_op], np.nan)
    known = ~np.isnan(launch)
    starved = known & ((launch > start - CLOCK_SKEW_US) | (_launched_at(timeline, launches, next_op) > start + CLOCK_SKEW_US))
    # Up to the launch (or all of it, where no launch was recorded or the window ends): what the host did.
    issued = np.where(starved, np.clip(launch, start, end), np.where(known, start, end))
    causes = _of_host(timeline, host, (start, issued))
    # After it: the launch's latency, or for a blocking copy the host's own staging of the data; no latency, if its call loads the kernel.
    loading = np.where(starved, overlap_with(issued, end, host.once), 0.0)
    causes["host"] += loading
    after = np.where(starved, end - issued, 0.0) - loading
    staged = (timeline.gpu_ops["src_kind"] == MemoryKind.PAGEABLE.value) & (timeline.gpu_ops["bytes"] > STAGED_BYTES)
    blocked = (np.isin(launches.call[next_op], host.blocking_copies) | staged[next_op]) & (next_op >= 0)
    prompt = after <= LONGEST_DISPATCH_US
    causes["sync"] += np.where(blocked, after, 0.0)
    causes["launch"] += np.where(~blocked & prompt, after, 0.0)
    causes["host"] += np.where(~blocked & ~prompt, after, 0.0)
    causes["dependency"] += np.where(known & ~starved, end - start, 0.0)
    # Rounding in the interval sums must not break the law that a gap's causes sum to it.
    unknown = causes["unknown"] + (end - start - reduce(np.add, causes.values()))
    causes["unknown"] = np.where(np.abs(unknown) > 1e-6, unknown, np.maximum(unknown, 0.0))
    return start, end, next_op, Table({cause: compact(us) for cause, us in causes.items()})


def _launched_at(timeline: Timeline, launches: Launches, next_op: Ints) -> Floats:
    """(n,) when the call returned that launched the op which ends each gap: an op is not queued before. -inf if that says
    nothing: a copy's call also waits for the transfer, a graph's goes on while the graph runs."""
    calls = timeline.api_calls
    call = np.where(next_op >= 0, launches.call[next_op], -1)
    mine = np.isin(call, launches.calls_with(ApiRole.LAUNCH)) & (call >= 0)
    returned: Floats = np.full(len(next_op), -np.inf)
    returned[mine] = calls.ends[call[mine]]
    return returned


def _next_ops(timeline: Timeline, device: int, gap_end: Floats) -> Ints:
    """(n,) row of the device's GPU op that begins where each gap ends, -1 if none does."""
    ops = timeline.gpu_ops
    rows = np.flatnonzero(ops["device"] == device)
    starts = ops["start_us"][rows]
    position = np.searchsorted(starts, gap_end, side="left")
    found = position < len(rows)
    found[found] &= starts[position[found]] <= gap_end[found] + 1e-6
    return np.where(found, rows[np.minimum(position, len(rows) - 1)], -1)


def _of_host(timeline: Timeline, host: HostActivity, waits: Spans) -> dict[str, Floats]:
    """µs by cause of what the host did in each of n stretches for which the device waited."""
    causes = {cause: np.zeros(len(waits[0])) for cause in CAUSES}
    claimed: Spans = EMPTY
    for cause in ("profiler", "sync", "allocator", "data_loading", "launch"):
        spans: Spans = getattr(host, cause)
        causes[cause] = overlap_with(*waits, subtract(spans, claimed))
        claimed = joined(claimed, spans)
    # One op is not issued for that long: the host was at something else in it.
    own = np.where(causes["launch"] > LONGEST_DISPATCH_US, causes["launch"], 0.0)
    causes["launch"] -= own
    causes["host"] += own
    rest = np.maximum(waits[1] - waits[0] - sum(causes.values()), 0.0)
    causes["host" if len(timeline.cpu_ops) or len(timeline.api_calls) else "unknown"] += rest
    return causes


def _stretched(recorded: Table, recording_us: float) -> tuple[list[float], float]:
    """Shares of the causes in `STRETCHED`, the same of every gap, that recording added, and how much that is."""
    left, shares = recording_us, []
    for names in STRETCHED:
        whole = float(_together(recorded, names).sum())
        shares.append(min(left / whole, 1.0) if whole > 0 else 0.0)
        left -= shares[-1] * whole
    return shares, recording_us - left


def _true(recorded: Table, cause: str, shares: list[float]) -> Floats:
    """(n,) µs of a cause with those shares moved to `profiler`."""
    moved: Floats = recorded[cause]
    for names, share in zip(STRETCHED, shares, strict=True):
        if cause == "profiler":
            moved = moved + share * _together(recorded, names)
        elif cause in names:
            moved = moved * (1 - share)
    return moved


def _together(causes: Table, names: Sequence[str]) -> Floats:
    """(n,) µs of several causes."""
    return reduce(np.add, [causes[name] for name in names])
