"""Text for a terminal: step time by commit, and since when a rule finds something."""

from __future__ import annotations

from advisor.compare.history import Entry, Trend
from advisor.compare.measured_fixes import MeasuredFix
from advisor.report.numbers import changed_by, counted, duration, percent
from advisor.reports._clean import visible

NAME = "text"
SUFFIX = ".txt"

_BARS = "▁▂▃▄▅▆▇█"


def render(trend: Trend) -> str:
    """A line a commit, a line a rule."""
    entries = trend.entries
    steps = [e.report.step_us for e in entries[trend.stretch_start :]]
    ends = " → ".join(duration(step) for step in (steps[0], steps[-1])[: len(steps)])
    over = f"Step time {bars(steps)}  {ends} over {stretch(trend)}"
    lines = [f"advisor {visible(entries[-1].report.advisor)} history", over, ""]
    lines.append(f"{'date':10}  {'commit':12}  {'step':>9}  {'change':>7}  bottleneck and findings")
    lines += [_line(entry, moved) for entry, moved in zip(entries, changes(trend), strict=True)]
    lines += ["", *told] if (told := breaks(trend)) else []
    lines += ["", "Findings (share of the step that the fix gains, · none)"] if trend.rules else []
    for rule in trend.rules:
        lines.append(f"  {visible(rule):24} {'  '.join(_cell(gain(e, rule)) for e in entries)}")
    lines += ["", MEASURED_TITLE] if trend.measured else []
    lines += [f"  {visible(fix.name):24} {'  '.join(cells(fix))}" for fix in trend.measured]
    return "\n".join(lines) + "\n"


MEASURED_TITLE = "Measured gains (share of the step)"


def cells(fix: MeasuredFix) -> tuple[str, str, str, str]:
    """The prediction of a fix, the measurement, whether it is in the range, and date and device."""
    ends = "" if fix.measured_low is None or fix.measured_high is None else f" ({percent(fix.measured_low)} to {percent(fix.measured_high)})"
    return (
        f"predicted {percent(fix.expected)} ({percent(fix.low)} to {percent(fix.high)})",
        f"measured {percent(fix.measured)}{ends}",
        "in the range" if fix.in_interval else "outside the range",
        visible(", ".join(filter(None, (fix.date, fix.device)))),
    )


def gain(entry: Entry, rule: str) -> float | None:
    """What the rule's fix gains of the step, None if it found nothing."""
    found = [entry.report.share(f) for f in entry.report.findings if f.rule == rule]
    return max(found, default=None)


def changes(trend: Trend) -> list[str]:
    """Each step against the commit before; of what cannot be held against it, that it is a break."""
    steps = [entry.report.step_us for entry in trend.entries]
    pairs = zip((0.0, *steps), steps, trend.breaks, strict=False)
    return ["break" if found else changed_by(new / old - 1) if old else "" for old, new, found in pairs]


def breaks(trend: Trend) -> list[str]:
    """What each break is, a line each."""
    found = ((entry.commit[:12], why) for entry, why in zip(trend.entries, trend.breaks, strict=True) if why)
    return [visible(f"Break at {commit}: {why.what} is {why.before} before and {why.after} after. {why.advice}") for commit, why in found]


def stretch(trend: Trend) -> str:
    """`3 commits`, of those since the last break."""
    commits = counted(len(trend.entries) - trend.stretch_start, "commit")
    return f"{commits} since the break at {visible(trend.entries[trend.stretch_start].commit[:12])}" if trend.stretch_start else commits


def bars(values: list[float]) -> str:
    """A bar a value, from the smallest to the largest."""
    low, high = min(values), max(values)
    return "".join(_BARS[round((v - low) / (high - low) * (len(_BARS) - 1))] if high > low else _BARS[3] for v in values)


def _line(entry: Entry, moved: str) -> str:
    found = ", ".join(visible(f.rule) for f in entry.report.findings[:4]) or "nothing found"
    return f"{entry.time:%Y-%m-%d}  {visible(entry.commit[:12]):12}  {duration(entry.report.step_us):>9}  {moved:>7}  {verdict(entry)}: {found}"


def verdict(entry: Entry) -> str:
    """What holds the step up, and whether the trace could tell: "nothing found" alone would pass for good news."""
    head = entry.report.headline
    return visible(head.bottleneck) + {"yes": "", "partly": " (judged in part)", "no": " (could not be judged)"}[head.judged]


def _cell(value: float | None) -> str:
    return f"{'·' if value is None else percent(value):>5}"
