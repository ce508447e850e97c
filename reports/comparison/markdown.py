"""Markdown for a pull-request comment, always short enough for one."""

from __future__ import annotations

from advisor.compare.model import Comparison, Row
from advisor.report.numbers import changed_by, duration
from advisor.reports._bars import SMALLEST, Bar, drawn, fenced
from advisor.reports._clean import legible
from advisor.reports.comparison import _phrases as words
from advisor.reports.comparison._picture import waterfall
from advisor.reports.report.markdown import code, escape

NAME = "markdown"
SUFFIX = ".md"

MARKER = "<!-- trace-advisor: diff -->"
"""By which a bot finds the comment to update."""

_ROWS = 12


def render(comparison: Comparison) -> str:
    """A headline, the classes of time, and the rest folded. Under 40,000 characters whatever the names hold."""
    comparison = legible(comparison)
    lines = [
        MARKER,
        f"## {words.whole(comparison)} time: {changed_by(comparison.change_share) or 'no change'} ({escape(comparison.verdict)})",
        "",
        f"**{escape(comparison.summary)}** {escape(words.step(comparison))}. {escape(words.work(comparison))}.",
        "",
        f"Before: {code(words.side(comparison.before))}, after: {code(words.side(comparison.after))}.",
        "",
        *(f"- **{escape(said)}**" for said in words.differences(comparison)),
        "",
        *_picture(comparison),
    ]
    first, *others = words.tables(comparison)
    lines += _table(words.title(first), words.rows(first, _ROWS))
    for heading, told in (("Findings", words.findings(comparison)), ("Predicted and gained", words.applied(comparison))):
        lines += [f"### {heading}", "", *(f"- {escape(said)}" for said in told[:30]), ""] if told else []
    folded = [(words.title(table), words.rows(table, _ROWS)) for table in others]
    folded.append((words.KERNEL_TIME, words.kernel_time(comparison, _ROWS)))
    for title, rows in folded:
        body = _table(title, rows)
        lines += ["<details>", f"<summary>{title}</summary>", "", *body, "</details>", ""] if body else []
    lines.append(f"<sub>advisor {escape(comparison.advisor)} · {words.footnote(comparison)}</sub>")
    return "\n".join(lines) + "\n"


def _picture(comparison: Comparison) -> list[str]:
    """From the step before to the step after, class by class."""
    before, after = comparison.before.step_us, comparison.after.step_us
    changes = [] if comparison.kind == "kernels" else waterfall(comparison)
    if not changes:
        return []
    most = max(before, after)
    bars = [Bar("step before", 0.0, before / most, duration(before))]
    bars += [Bar(bar.name, bar.low, bar.width, words.signed(bar.change_us)) for bar in changes if bar.width >= SMALLEST]
    bars += [Bar("step after", 0.0, after / most, duration(after))]
    return [*fenced(drawn(bars), "text"), ""]


def _table(title: str, rows: list[Row]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {title} | Before | After | Change | |", "|---|--:|--:|--:|---|"]
    for row in rows:
        sure = ["beyond noise"] if row.noise and row.noise.beyond_noise else []
        note = ", ".join([escape(row.relation)] * (row.relation not in ("", "same")) + sure)
        cells = (code(words.name(row)), duration(row.before_us), duration(row.after_us), words.signed(row.change_us), note)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
