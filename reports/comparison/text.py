"""Text for a terminal: what changed, and where."""

from __future__ import annotations

from textwrap import fill

from advisor.compare.model import Comparison, Row
from advisor.report.numbers import cut, duration
from advisor.reports._clean import legible
from advisor.reports.comparison import _phrases as words

NAME = "text"
SUFFIX = ".txt"

_ROWS = {"class": 12, "module and op": 8, "family": 8, "kernel": 8}
_WIDTH = 62
_NUMBERS = 36
"""Columns next to a name: the sides, the change, and what is between them."""
_SHORTEST = 30
"""Columns that tell names apart; if there are fewer, a name has a line of its own."""


def render(comparison: Comparison, *, width: int | None = None) -> str:
    """The comparison in about a screen and a half. width: of the terminal that it goes to; None if it goes to none."""
    comparison = legible(comparison)
    said = [f"advisor {comparison.advisor} diff", f"before: {words.side(comparison.before)}", f"after:  {words.side(comparison.after)}", ""]
    said += [f"{comparison.verdict.upper()}: {comparison.summary}", words.step(comparison), words.work(comparison)]
    lines = _fitted([*said, *words.differences(comparison)], width)
    for table in words.tables(comparison):
        lines += _table(words.title(table), words.rows(table, _ROWS[table.by]), width)
    lines += _table(words.KERNEL_TIME, words.kernel_time(comparison, 5), width)
    for title, told in (("Findings", words.findings(comparison)), ("Predicted and gained", words.applied(comparison))):
        lines += ["", title, *_fitted([f"  {line}" for line in told], width)] if told else []
    return "\n".join(lines) + "\n"


def _fitted(lines: list[str], width: int | None) -> list[str]:
    """Sentences on lines of a terminal, each going on below its beginning."""
    return lines if width is None else [fill(line, max(width, 40), subsequent_indent="    ") for line in lines]


def _table(title: str, rows: list[Row], width: int | None) -> list[str]:
    if not rows:
        return []
    marks = [
        (f"  {row.relation}" if row.relation not in ("", "same") else "") + ("  beyond noise" if row.noise and row.noise.beyond_noise else "") for row in rows
    ]
    names = _WIDTH if width is None else min(_WIDTH, width - _NUMBERS - max(map(len, marks)))
    own_line = names < _SHORTEST
    names = 0 if own_line else names
    heads = ["", cut(title, width or _WIDTH)] if own_line else [""]
    lines = [*heads, f"{'' if own_line else title:{names + 2}} {'before':>10} {'after':>10} {'change':>11}"]
    for row, mark in zip(rows, marks, strict=True):
        name = words.name(row)
        lines += [f"  {cut(name, max((width or _WIDTH) - 2, _SHORTEST))}"] if own_line else []
        shown = "" if own_line else cut(name, names)
        lines.append(f"  {shown:{names}} {duration(row.before_us):>10} {duration(row.after_us):>10} {words.signed(row.change_us):>11}{mark}")
    return lines
