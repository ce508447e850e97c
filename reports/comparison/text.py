"""Text for a terminal: what changed, and where."""

from __future__ import annotations

from advisor.compare.model import Comparison, Row
from advisor.report.numbers import cut, duration
from advisor.reports._clean import legible
from advisor.reports.comparison import _phrases as words

NAME = "text"
SUFFIX = ".txt"

_ROWS = {"class": 12, "module and op": 8, "family": 8, "kernel": 8}
_WIDTH = 62


def render(comparison: Comparison) -> str:
    """The comparison in about a screen and a half."""
    comparison = legible(comparison)
    lines = [f"advisor {comparison.advisor} diff", f"before: {words.side(comparison.before)}", f"after:  {words.side(comparison.after)}", ""]
    lines += [f"{comparison.verdict.upper()}: {comparison.summary}", words.step(comparison), words.work(comparison)]
    lines += words.differences(comparison)
    for table in words.tables(comparison):
        lines += _table(words.title(table), words.rows(table, _ROWS[table.by]))
    lines += _table(words.KERNEL_TIME, words.kernel_time(comparison, 5))
    for title, told in (("Findings", words.findings(comparison)), ("Predicted and gained", words.applied(comparison))):
        lines += ["", title, *(f"  {line}" for line in told)] if told else []
    return "\n".join(lines) + "\n"


def _table(title: str, rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = ["", f"{title:{_WIDTH + 2}} {'before':>10} {'after':>10} {'change':>11}"]
    for row in rows:
        name = cut(words.name(row), _WIDTH)
        mark = f"  {row.relation}" if row.relation not in ("", "same") else ""
        sure = "  beyond noise" if row.noise and row.noise.beyond_noise else ""
        lines.append(f"  {name:{_WIDTH}} {duration(row.before_us):>10} {duration(row.after_us):>10} {words.signed(row.change_us):>11}{mark}{sure}")
    return lines
