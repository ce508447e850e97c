"""Markdown for a pull-request comment, always short enough for one."""

from __future__ import annotations

from advisor.compare.memory import MemoryComparison
from advisor.report.numbers import size
from advisor.reports._clean import legible
from advisor.reports.comparison.markdown import MARKER
from advisor.reports.memory_comparison import _phrases as words
from advisor.reports.report.markdown import code, escape

NAME = "markdown"
SUFFIX = ".md"

_ROWS = 12


def render(comparison: MemoryComparison) -> str:
    """Both peaks, and what of the allocated one came and went."""
    comparison = legible(comparison)
    lines = [MARKER, f"## Peak of memory: {words.signed(comparison.allocated_change)}", "", f"**{escape(comparison.summary)}**", ""]
    lines += [*(f"- {escape(said)}" for said in words.peaks(comparison)), ""]
    lines += [f"Before: {code(words.name(comparison.before.path))}, after: {code(words.name(comparison.after.path))}.", ""]
    for table in comparison.tables:
        rows = words.rows(table, _ROWS)
        if rows:
            lines += [f"| By {table.by} | Before | After | Change |", "|---|--:|--:|--:|"]
            lines += [f"| {code(words.name(row.name))} | {size(row.before)} | {size(row.after)} | {words.signed(row.change)} |" for row in rows]
            lines.append("")
    told = words.findings(comparison)
    lines += ["### Findings", "", *(f"- {escape(said)}" for said in told[:30]), ""] if told else []
    lines.append(f"<sub>advisor {escape(comparison.advisor)} · each table sums to the change of the allocated peak</sub>")
    return "\n".join(lines) + "\n"
