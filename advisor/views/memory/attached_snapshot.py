"""What a memory snapshot says of a timeline of the same program: why its allocator asks the driver for memory."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.knowledge.shares import CONSIDERABLE
from advisor.recordings.snapshot import Action, SnapshotBeside
from advisor.report.memory import Memory
from advisor.views.memory.attribution import Attribution
from advisor.views.memory.origins import Phase
from advisor.views.memory.patterns import Growth, returned
from advisor.views.memory.replay import MemoryReplay
from advisor.views.memory.summary import MemorySummary
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.workspace import Workspace

ROUNDS = FEWEST_REPEATS
"""Times that a cache is freed and allocated again, from which it is a habit."""
IN_PIECES = CONSIDERABLE
"""Share of what is reserved that expandable segments would not need: rounding and caching cost healthy programs up to a sixth."""


class _Cause(NamedTuple):
    """why: goes on after a colon; advice: an imperative sentence."""

    why: str
    advice: str


class MemoryBeside(msgspec.Struct, frozen=True):
    """workspace: of the snapshot, for its own rules. memory: contents of the peak, and the curve. why, advice: of driver calls, "" without a cause in the
    snapshot. start_us, end_us: of its events, µs since the epoch; 0 if not recorded. trains: whether it allocates in backward passes or updates, None
    without stacks.
    """

    workspace: Workspace
    memory: Memory
    why: str
    advice: str
    start_us: float
    end_us: float
    trains: bool | None = None

    @classmethod
    def build(cls, beside: SnapshotBeside) -> MemoryBeside:
        workspace = Workspace(beside.snapshot)
        attribution = workspace.get(Attribution)
        time = attribution.device.events.time_us
        start, end = (float(time[0]), float(time[-1])) if len(time) else (0.0, 0.0)
        cause = _cause(attribution, workspace.get(Growth), workspace.get(MemoryReplay))
        return cls(workspace, workspace.get(MemorySummary).memory, cause.why, cause.advice, start, end, _trains(attribution))


def _trains(attribution: Attribution) -> bool | None:
    """Whether the program trains; None if unknown: a backward pass has no stack if only Python frames were recorded."""
    known = [origin for origin in attribution.origins.of if origin.known]
    if any(origin.phase is not Phase.FORWARD for origin in known):
        return True
    return False if known and attribution.origins.native else None


def _cause(attribution: Attribution, growth: Growth, replay: MemoryReplay) -> _Cause:
    device = attribution.device
    events = device.events
    failed = int(np.count_nonzero(events.action == Action.OOM))
    if failed:
        return _Cause(
            f"{failed} request{'s' * (failed > 1)} ran out of memory, and the cache was freed", "Lower the peak: advisor analyze SNAPSHOT says what holds it."
        )
    back = returned(device)
    if back.rounds >= ROUNDS:
        return _Cause(
            f"the cache was freed and allocated again {back.rounds} times{_line_of_events(attribution, back.starts)}",
            "Leave the cache to the allocator: no empty_cache() in the loop.",
        )
    if growth.chains:
        rows = np.concatenate([chain.rows for chain in growth.chains])
        return _Cause(
            f"a buffer is copied to grow, {len(rows)} times{_line_of_events(attribution, np.maximum(device.allocations.born[rows], 0))}",
            "Allocate the longest buffer once and write into it.",
        )
    idle = device.peak_reserved - device.peak_allocated
    if not replay.settings.expandable and idle >= IN_PIECES * device.peak_reserved:
        freed = device.peak_reserved - replay.expandable.reserved
        if freed >= IN_PIECES * device.peak_reserved:
            return _Cause(
                f"sizes do not repeat{_line_of_events(attribution, back.asked)}, and {idle / device.peak_reserved:.0%} of reserved memory is fragmented",
                "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or pad to a few sizes.",
            )
    return _Cause("", "")


def _line_of_events(attribution: Attribution, events: np.ndarray) -> str:
    """The line of the program where most of these events came from, in brackets; "" if none is known."""
    stacks = attribution.device.events.stack[events].tolist()
    lines = Counter(source for stack in stacks if (source := attribution.origins.of[stack].source))
    return f" ({lines.most_common(1)[0][0]})" if lines else ""
