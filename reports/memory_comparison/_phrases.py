"""What the formats say of two snapshots, in the same words everywhere."""

from __future__ import annotations

from advisor.compare.memory import MemoryComparison, MemoryRow, MemoryTable
from advisor.reports._clean import clip
from advisor.reports._numbers import percent, size

_NAME = 120


def signed(count: int) -> str:
    """A change: `+1.20 GB`, `−35.0 MB`."""
    return f"{'+' if count > 0 else '−' if count < 0 else ''}{size(abs(count))}"


def name(text: str) -> str:
    """A name or a path, fit to show."""
    return clip(text, _NAME)


def peaks(shown: MemoryComparison) -> list[str]:
    """Both peaks before and after."""
    pairs = (
        ("allocated", shown.before.peak_allocated_bytes, shown.after.peak_allocated_bytes, shown.allocated_change),
        ("reserved", shown.before.peak_reserved_bytes, shown.after.peak_reserved_bytes, shown.reserved_change),
    )
    return [f"Peak {what}: {size(old)} → {size(new)} ({signed(change)})" for what, old, new, change in pairs]


def rows(table: MemoryTable, most: int) -> list[MemoryRow]:
    """The largest rows that changed, one for all others that did, and so the change of the peak."""
    moved = [row for row in table.rows if row.change]
    shown, rest = (moved, []) if len(moved) <= most + 1 else (moved[:most], moved[most:])
    if not rest:
        return shown
    return [*shown, MemoryRow(f"({len(rest)} more)", *(sum(getattr(row, field) for row in rest) for field in ("before", "after", "change")))]


def findings(shown: MemoryComparison) -> list[str]:
    """How each rule's finding changed."""

    def saving(value: float | None) -> str:
        return "no finding" if value is None else f"saves {percent(value)}"

    return [f"{f.status}: {f.rule} ({saving(f.before_share)} → {saving(f.after_share)})" for f in shown.findings]
