"""What is asked of a snapshot before any advice."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.knowledge.shares import CONSIDERABLE, MOST, NEGLIGIBLE, NO_DIFFERENCE
from advisor.recordings.snapshot import Action, MemorySnapshot
from advisor.report.numbers import counted, percent, threshold
from advisor.report.recording import Health
from advisor.report.wording.checks import tolerated
from advisor.views.memory.attribution import Attribution, Category
from advisor.views.memory.history import DeviceMemory
from advisor.views.memory.replay import MemoryReplay

HISTORY = "torch.cuda.memory._record_memory_history(max_entries=1_000_000) before the model is made"
STACKS = "torch.cuda.memory._record_memory_history(context='all', stacks='all')"
OLDER_SHARE = CONSIDERABLE
"""Of the bytes at the peak: where more is older than the history, what holds the peak is largely a guess."""
UNBALANCED = NEGLIGIBLE
"""Of the bytes held at the end: less changes no figure that is told."""
FAITHFUL = NO_DIFFERENCE
"""How far the replay may be from the recorded peak of reserved bytes."""


class MemoryHealth(msgspec.Struct, frozen=True):
    """The checks, in order."""

    results: tuple[Health, ...]

    @classmethod
    def build(cls, snapshot: MemorySnapshot, attribution: Attribution, replay: MemoryReplay) -> MemoryHealth:
        device = attribution.device
        known = (_history(snapshot, attribution), _stacks(device))
        # Without events nothing can be held against what was found at the end.
        return cls((*known, _balance(device), _replayed(replay), _out_of_memory(snapshot)) if len(device.events) else known)


def _check(name: str, problem: str, good: str, record_with: str = "") -> Health:
    return Health(
        check=name,
        status="degraded" if problem else "ok",
        detail=problem or good,
        touches=("memory",),
        record_with=record_with if problem else "",
        reason="not-recorded" if problem else "absent",
    )


def _history(snapshot: MemorySnapshot, attribution: Attribution) -> Health:
    if not snapshot.events:
        return _check("memory-history", "the snapshot holds no events, only the memory held now", "", HISTORY)
    device = attribution.device
    a, whole = device.allocations, max(device.peak_allocated, 1)
    before = (a.born < 0) & device.at_peak
    older = int(a.size[before].sum())
    share, told = older / whole, (older - int(a.size[before & attribution.in_categories(Category.OLDER)].sum())) / whole
    # The rest of it is the category of that name.
    known = f" ({told:.0%} of a kind known from stacks or sizes)" if round(100 * told) else ""
    cut = ", and blocks with stacks but no event say that its start was overwritten or that recording was restarted" * device.truncated
    problem = (
        f"{percent(share, OLDER_SHARE)} of the peak is older than the history{known}{cut}; an earlier peak may have been higher" if share > OLDER_SHARE else ""
    )
    return _check(
        "memory-history",
        problem,
        f"{percent(share, OLDER_SHARE)} of the peak is older than the history of {len(device.events):,} events ({tolerated(OLDER_SHARE)})",
        HISTORY,
    )


def _stacks(device: DeviceMemory) -> Health:
    a = device.allocations
    known = int(a.size[device.at_peak & ((a.stack >= 0) | (a.born < 0))].sum())
    share = known / device.peak_allocated if device.peak_allocated else 1.0
    problem = "" if share > MOST else f"only {percent(share, MOST)} of the bytes at the peak have a stack"
    return _check("memory-stacks", problem, f"{percent(share, MOST)} of the bytes at the peak have a stack or are older ({threshold(MOST)} is enough)", STACKS)


def _balance(device: DeviceMemory) -> Health:
    end = device.allocated[-1] if len(device.events) else device.peak_allocated
    held = sum(block.size for segment in device.segments_end for block in segment.blocks if block.allocated)
    off = abs(int(end) - held)
    problem = f"events and blocks differ by {off:,} bytes at the end: events are missing" if off > UNBALANCED * max(held, 1) else ""
    return _check("memory-balance", problem, f"at the end the events and the blocks of the snapshot differ by {off:,} bytes ({tolerated(UNBALANCED)})", HISTORY)


def _replayed(replay: MemoryReplay) -> Health:
    problem = f"the simulated allocator is {percent(replay.fidelity)} off the recorded peak of reserved bytes" if replay.fidelity > FAITHFUL else ""
    return _check(
        "memory-replay",
        problem,
        f"the simulated allocator is {percent(replay.fidelity, FAITHFUL)} off the recorded peak of reserved bytes ({tolerated(FAITHFUL)})",
    )


def _out_of_memory(snapshot: MemorySnapshot) -> Health:
    failed = sum(int(np.count_nonzero(device.events.action == Action.OOM)) for device in snapshot.devices)
    return _check("memory-exhausted", f"{counted(failed, 'request')} ran out of memory" if failed else "", "no request ran out of memory")
