"""What the formats say of two snapshots, in the same words everywhere."""

from __future__ import annotations

from advisor.compare.memory import MemoryComparison, MemoryRow, MemoryTable
from advisor.report.numbers import percent, size
from advisor.reports._clean import clip

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
    return [f"Peak {what}: {size(old)} → {size(new)} ({signed(change)})" for what, old, new, change in pairs if what == "allocated" or shown.reserved_known]


def rows(table: MemoryTable, most: int) -> list[MemoryRow]:
    """The largest rows that changed, one for all others that did, and one for what did not: every column sums to its peak. None if nothing changed."""
    moved = [row for row in table.rows if row.change]
    same = [row for row in table.rows if not row.change]
    shown, rest = (moved, []) if len(moved) <= most + 1 else (moved[:most], moved[most:])
    if not moved:
        return []
    return [*shown, *_together("more", rest), *_together("unchanged", same)]


def _together(what: str, of: list[MemoryRow]) -> list[MemoryRow]:
    """One row for several, none for none."""
    sums = (sum(getattr(row, field) for row in of) for field in ("before", "after", "change"))
    return [MemoryRow(f"({len(of)} {what})", *sums)] if of else []


def findings(shown: MemoryComparison) -> list[str]:
    """How each rule's finding changed."""

    def saving(value: float | None) -> str:
        return "no finding" if value is None else f"saves {percent(value)}"

    return [f"{f.status}: {f.rule} ({saving(f.before_share)} → {saving(f.after_share)})" for f in shown.findings]
