"""Two snapshots of memory held against each other: what of the peak came and went. Rows of each table sum to its change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from advisor.compare.findings import finding_changes
from advisor.compare.model import SCHEMA, FindingChange
from advisor.errors import UsageError
from advisor.knowledge.release import release
from advisor.report.encoded import as_json
from advisor.report.memory import HeldRow, Memory, MemoryCurve
from advisor.report.model import Report
from advisor.report.numbers import percent

By = Literal["category", "source line", "module and op"]


class MemoryRow(msgspec.Struct, frozen=True):
    """One part of the peak, in bytes."""

    name: str
    before: int
    after: int
    change: int


class MemoryTable(msgspec.Struct, frozen=True):
    """One way to divide the change of the allocated peak: the rows' changes sum to it. Largest first."""

    by: By
    rows: tuple[MemoryRow, ...]


class MemorySide(msgspec.Struct, frozen=True):
    """One snapshot."""

    path: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    curve: MemoryCurve | None


class MemoryComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a comparison of two snapshots says."""

    schema: int = SCHEMA
    kind: Literal["memory"] = "memory"
    advisor: str = ""
    before: MemorySide
    after: MemorySide
    allocated_change: int
    reserved_change: int
    reserved_known: bool = True
    """Whether both snapshots say what was held from the driver."""
    summary: str
    tables: tuple[MemoryTable, ...]
    findings: tuple[FindingChange, ...]

    def to_json(self) -> bytes:
        """The comparison as JSON."""
        return as_json(self)


_KEYS: dict[By, Callable[[HeldRow], str]] = {
    "category": lambda row: row.category,
    "source line": lambda row: row.source or f"({row.category}, no line known)",
    "module and op": lambda row: " in ".join(text for text in (row.op, row.module) if text) or f"({row.category}, no op known)",
}


def compare_memory(before: Sequence[Report], after: Sequence[Report]) -> MemoryComparison:
    """Changes of the peak between two snapshots. Raises UsageError if a side is not a single snapshot."""
    old, new = _single_snapshot(before), _single_snapshot(after)
    allocated = _memory(new).peak_allocated_bytes - _memory(old).peak_allocated_bytes
    reserved = _memory(new).peak_reserved_bytes - _memory(old).peak_reserved_bytes
    known = _memory(old).reserved_known and _memory(new).reserved_known
    tables = tuple(MemoryTable(by, _rows(_memory(old), _memory(new), key)) for by, key in _KEYS.items())
    return MemoryComparison(
        advisor=release(),
        before=_side(old),
        after=_side(new),
        allocated_change=allocated,
        reserved_change=reserved if known else 0,
        reserved_known=known,
        summary=_summary(_memory(old), allocated, reserved if known else None, tables[0]),
        tables=tables,
        findings=tuple(finding_changes(old, new)),
    )


def _single_snapshot(side: Sequence[Report]) -> Report:
    if len(side) != 1 or side[0].memory is None:
        raise UsageError("a memory snapshot is compared with a single other snapshot", "Give a snapshot (or its saved report) per side: their peaks are exact.")
    return side[0]


def _memory(report: Report) -> Memory:
    assert report.memory is not None
    return report.memory


def _side(report: Report) -> MemorySide:
    memory = _memory(report)
    return MemorySide(report.source.path, memory.peak_allocated_bytes, memory.peak_reserved_bytes, memory.curve)


def _rows(before: Memory, after: Memory, key: Callable[[HeldRow], str]) -> tuple[MemoryRow, ...]:
    sides: list[Counter[str]] = []
    for memory in (before, after):
        held: Counter[str] = Counter()
        for row in memory.at_peak:
            held[key(row)] += row.bytes
        sides.append(held)
    old, new = sides
    made = [MemoryRow(name, old[name], new[name], new[name] - old[name]) for name in dict.fromkeys((*old, *new))]
    return tuple(sorted(made, key=lambda row: (-abs(row.change), row.name)))


def _summary(before: Memory, allocated: int, reserved: int | None, categories: MemoryTable) -> str:
    if not allocated and not reserved:
        return "Both peaks are as they were." if reserved is not None else "The peak allocated is as it was."

    def told(change: int, whole: int, what: str) -> str:
        share = abs(change) / whole if whole else 0.0
        return f"the peak {what} is {percent(share)} {'higher' if change > 0 else 'lower'}" if change else f"the peak {what} is the same"

    parts = told(allocated, before.peak_allocated_bytes, "allocated")
    parts += f", {told(reserved, before.peak_reserved_bytes, 'reserved')}" if reserved is not None else ""
    most = next((row for row in categories.rows if row.change * allocated > 0), None)
    return f"{parts[0].upper()}{parts[1:]}{f'; mostly {most.name}' if most else ''}."
