"""Text for a terminal: what of the peak came and went."""

from __future__ import annotations

from advisor.compare.memory import MemoryComparison
from advisor.report.numbers import cut, size
from advisor.reports._clean import legible
from advisor.reports.memory_comparison import _phrases as words

NAME = "text"
SUFFIX = ".txt"

_ROWS, _WIDTH = 10, 62


def render(comparison: MemoryComparison) -> str:
    """The comparison on a screen."""
    comparison = legible(comparison)
    lines = [f"advisor {comparison.advisor} diff", f"before: {words.name(comparison.before.path)}", f"after:  {words.name(comparison.after.path)}", ""]
    lines += [comparison.summary, *words.peaks(comparison)]
    for table in comparison.tables:
        rows = words.rows(table, _ROWS)
        lines += ["", f"{f'By {table.by}':{_WIDTH + 2}} {'before':>10} {'after':>10} {'change':>11}"] if rows else []
        for row in rows:
            shown = cut(words.name(row.name), _WIDTH)
            lines.append(f"  {shown:{_WIDTH}} {size(row.before):>10} {size(row.after):>10} {words.signed(row.change):>11}")
    told = words.findings(comparison)
    lines += ["", "Findings", *(f"  {line}" for line in told)] if told else []
    return "\n".join(lines) + "\n"
