"""Judging a snapshot of memory: savings are bytes of its peak."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.engine.grade import Weight
from advisor.engine.outcome import Outcomes
from advisor.engine.rule import Found, Judged
from advisor.knowledge.release import release
from advisor.knowledge.shares import LITTLE, MOST
from advisor.recordings.recording import Recording
from advisor.recordings.snapshot import Action, MemorySnapshot
from advisor.report.finding import LOUD, SEVERITIES, AnySaving, BytesSaved, Finding, severity_of
from advisor.report.memory import Memory
from advisor.report.model import Headline, Report
from advisor.report.numbers import counted, size, three
from advisor.report.recording import DeviceInfo, Health, Recorded, SourceInfo
from advisor.views.memory.attribution import Category
from advisor.views.memory.health import MemoryHealth
from advisor.views.memory.history import DeviceMemory, MemoryHistory
from advisor.views.memory.steps import MemorySteps
from advisor.views.memory.summary import MemorySummary
from advisor.views.workspace import Workspace


def health(workspace: Workspace) -> tuple[Health, ...]:
    """The checks of the snapshot."""
    return workspace.get(MemoryHealth).results


def weigh(workspace: Workspace, found: Found) -> Weight:
    """Bytes of the peak that they are of; time, of the steps."""
    if found.saving is None:
        raise TypeError("a finding about memory says what it saves")
    return Weight(found.saving, _whole(workspace, found.saving))


def _whole(workspace: Workspace, saving: AnySaving) -> float:
    device = workspace.get(MemoryHistory).main
    if isinstance(saving, BytesSaved):
        return device.peak_allocated if saving.of == "allocated" else device.peak_reserved
    return workspace.get(MemorySteps).span_us


def settle(workspace: Workspace, found: list[Judged]) -> list[Judged]:
    """Most severe first, then what saves most of its whole."""

    def order(judged: Judged) -> tuple[int, float, str]:
        whole = _whole(workspace, judged.finding.saving)
        share = judged.finding.saving.expected / whole if whole else 0.0
        return SEVERITIES.index(judged.finding.severity), -share, judged.finding.rule

    ordered = sorted(found, key=order)
    return [_of_rank(judged) for judged in ordered] if workspace.get(MemorySnapshot).ranks else ordered


def _of_rank(found: Judged) -> Judged:
    """The finding of a job's rank, by which its snapshot numbers the device: it is said to be the rank's, and no device."""
    finding = found.finding
    ranks = tuple(sorted({item.device for item in finding.evidence if item.device is not None}))
    evidence = tuple(
        msgspec.structs.replace(item, label=f"{item.label}, rank {item.device}", device=None) if item.device is not None else item for item in finding.evidence
    )
    return found._replace(finding=msgspec.structs.replace(finding, evidence=evidence, ranks=ranks))


def report(workspace: Workspace, recording: Recording, outcomes: Outcomes) -> Report:
    """The report of a snapshot."""
    snapshot, memory = workspace.get(MemorySnapshot), workspace.get(MemorySummary).memory
    checks, skipped = health(workspace), outcomes.skipped
    if snapshot.format == "jax-memory":  # it never has a history, and how to record PyTorch's is no help
        checks = tuple(msgspec.structs.replace(check, record_with="") for check in checks)
        skipped = [msgspec.structs.replace(item, record_with="") for item in skipped]
    return Report(
        kind="memory",
        source=SourceInfo(
            path=snapshot.path,
            format=snapshot.format,
            bytes=snapshot.bytes,
            events=snapshot.events,
            recorded=Recorded(shapes=False, stacks=bool(snapshot.stacks), steps=memory.steps, memory=True),
        ),
        devices=tuple(DeviceInfo(id=device.device, name=f"{'rank' if snapshot.ranks else 'GPU'} {device.device}", sm_count=0) for device in snapshot.devices),
        window=None,
        time=None,
        health=checks,
        headline=_headline(memory, outcomes.found, snapshot, workspace.get(MemoryHistory)),
        findings=tuple(f.finding for f in outcomes.found),
        clear=tuple(outcomes.clear),
        skipped=tuple(skipped),
        failed=tuple(outcomes.failed),
        memory=memory,
        advisor=release(),
    )


_BOTTLENECKS = {
    "memory-activations": "activations",
    "memory-leak": "leaking",
    "memory-optimizer-state": "optimizer",
    "memory-fragmentation": "fragmented",
    "memory-growth": "growing by copies",
    "memory-transient": "a momentary peak",
    "memory-gradients": "gradients kept",
    "memory-churn": "cache given away",
}


_UNTOLD = ", of unknown kind"

MOSTLY_OLDER = MOST
"""Of the peak: where more of it than this is of no known kind, that nothing found is no verdict on the program."""


BESIDE = LITTLE
"""Of the peak of the GPU with the highest peak, which the rules look at. Another GPU with a similar peak may have problems of its own."""


def _headline(memory: Memory, found: list[Judged], snapshot: MemorySnapshot, history: MemoryHistory) -> Headline:
    loud = [f.finding for f in found if f.finding.loud and not f.finding.allowed]
    parts: dict[str, int] = {}
    for row in memory.at_peak:
        parts[row.category] = parts.get(row.category, 0) + row.bytes
    most = max(parts, key=parts.__getitem__, default="nothing")
    share = parts.get(most, 0) / memory.peak_allocated_bytes if memory.peak_allocated_bytes else 0.0
    # Without events what is held now is all that is known: an earlier peak may have been higher.
    peak = "The peak is" if len(history.main.events) else "Held when the snapshot was written:"
    reserved = f", {size(memory.peak_reserved_bytes)} reserved" if memory.reserved_known else ""
    summary = f"{peak} {size(memory.peak_allocated_bytes)} allocated{reserved}; {share:.0%} of it is {most}{_UNTOLD * (most == Category.OLDER.value)}."
    if snapshot.ranks and len(memory.devices) > 1:
        summary = f"{_of_ranks(memory)} {summary}"
    others = sorted(d.peak_allocated_bytes for d in memory.devices if d.device != memory.device and d.peak_allocated_bytes)
    beside = not snapshot.ranks and bool(others) and others[-1] >= BESIDE * memory.peak_allocated_bytes
    most_of = "as much as any" if beside and others[-1] == memory.peak_allocated_bytes else "most"
    if beside:
        summary = f"GPU {memory.device} holds {most_of} of {len(others) + 1}. {summary}"
    failed = next((text for text in map(_failed, history.devices) if text), "")
    summary = f"{failed} {summary}" if failed else summary
    if loud and isinstance(loud[0].saving, BytesSaved):
        saving = loud[0].saving
        summary += f" {loud[0].fix.title}: {size(saving.expected)} less {saving.of}."
    allocated = failed or any(bool((device.events.action == Action.ALLOC).any()) for device in history.devices)
    why = "" if snapshot.stacks and allocated else "the snapshot has no history of allocations" if snapshot.stacks else "no stacks were recorded"
    older = parts.get(Category.OLDER.value, 0) / max(memory.peak_allocated_bytes, 1)
    if not why and not loud and not failed and older > MOSTLY_OLDER:
        why = f"{older:.0%} of the peak is older than the recorded history, so its kind is unknown"
    priced = [] if loud else [f.finding for f in found if not f.finding.allowed and _priced(f.finding, memory)]
    if priced:
        summary += f" {priced[0].fix.title}: {size(priced[0].saving.expected)} less, which hardly pays."
    stands_out = _BOTTLENECKS.get(loud[0].rule, "memory") if loud else "no fault found" if priced else "nothing found"
    if not why and beside:
        why = f"only GPU {memory.device} was looked at, which holds {most_of}; {counted(len(others), 'other')} not"
    return Headline(
        bottleneck="out of memory" if failed else stands_out,
        summary=summary,
        judged="partly" if why else "yes",
        judged_why=why,
    )


def _priced(finding: Finding, memory: Memory) -> bool:
    """Whether a finding would free enough memory to need action, but is capped at low for its cost, such as recomputation."""
    saving = finding.saving
    return isinstance(saving, BytesSaved) and not finding.loud and severity_of(saving, memory.peak(saving.of)) in LOUD


def _of_ranks(memory: Memory) -> str:
    """Which rank of a job is judged, and how full those are that are not: they may have faults of their own."""
    peaks = sorted(device.peak_allocated_bytes for device in memory.devices)
    times = three(memory.peak_allocated_bytes / max(float(np.median(peaks)), 1))
    others = sorted(device.peak_allocated_bytes for device in memory.devices if device.device != memory.device)
    low, high = size(others[0]), size(others[-1])
    held = (
        f"the other's peak is {low}" if len(others) == 1 else f"each of the others' peaks is {low}" if low == high else f"the others' peaks are {low} to {high}"
    )
    most = "as much as any" if others[-1] == memory.peak_allocated_bytes else "most"
    return f"Rank {memory.device} of {len(peaks)} holds {most}, {times} times the median. Only this rank was looked at; {held}."


def _failed(device: DeviceMemory) -> str:
    """Failed allocations, and the memory that was allocated at that time; "" if all succeeded."""
    at = np.flatnonzero(device.events.action == Action.OOM)
    if not len(at):
        return ""
    largest = int(at[np.argmax(device.events.size[at])])
    asked = size(int(device.events.size[largest]))
    told = f"An allocation of {asked} ran out of memory" if len(at) == 1 else f"{len(at)} allocations ran out of memory, the largest of {asked}"
    return f"{told}, when {size(int(device.allocated[largest]))} were allocated and {size(int(device.reserved[largest]))} reserved."
