"""What the formats say of a comparison, in the same words everywhere."""

from __future__ import annotations

from collections import Counter

from advisor.compare.model import Comparison, Difference, FindingChange, Row, Side, Table
from advisor.report.numbers import changed_by, counted, duration, percent, three
from advisor.report.wording import amount, likely
from advisor.reports._clean import clip, shortened
from advisor.reports._names import short

_NAME = 160
_TITLES = {"class": "By class of time", "module and op": "By module and op", "family": "By kernel family", "kernel": "By kernel"}
KERNEL_TIME = "Kernel time on all devices, overlaps counted"


def title(table: Table) -> str:
    """What a table divides the change by."""
    return _TITLES[table.by]


def tables(comparison: Comparison) -> list[Table]:
    """Those that say something: measured kernels belong to no op and no class of time."""
    return [t for t in comparison.tables if comparison.kind != "kernels" or t.by in ("family", "kernel")]


def rows(table: Table, most: int) -> list[Row]:
    """The largest rows that changed and one for all others, so that what is shown still sums to the change."""
    moved = [row for row in table.rows if row.change_us]
    shown, rest = (moved, []) if len(moved) == most + 1 else (moved[:most], moved[most:])
    if not rest:
        return shown
    before, after = sum(r.before_us for r in rest), sum(r.after_us for r in rest)
    return [*shown, Row(f"({len(rest)} more)", before, after, sum(r.change_us for r in rest))]


def kernel_time(comparison: Comparison, most: int) -> list[Row]:
    """Kernels by name that changed; of measured ones the table by kernel says it already."""
    return [] if comparison.kind == "kernels" else [r for r in comparison.kernel_time if r.change_us][:most]


def whole(comparison: Comparison) -> str:
    """What the change is of."""
    return "Kernel" if comparison.kind == "kernels" else "Step"


def footnote(comparison: Comparison) -> str:
    """What the times are."""
    if comparison.kind == "kernels":
        return "times under the profiler, which may lock clocks and empties caches; each table sums to the change"
    return "times per step; each table but the last sums to the change"


def name(row: Row) -> str:
    """A row's name, fit to show."""
    return clip(row.name, _NAME)


def said(row: Row) -> str:
    """A kernel's name as people say it, other names as they are."""
    whole = name(row)
    return short(whole) if "(" in whole and "→" not in whole and " " not in whole.partition("<")[0].removeprefix("void ") else whole


def relations(table: Table) -> str:
    """How many kernels are new, gone, and do the work of others: `3 new, 5 gone, 2 fused`."""
    counts = Counter(row.relation for row in table.rows if row.relation not in ("", "same") and not row.name.startswith("idle:"))
    return ", ".join(f"{number} {relation}" for relation, number in counts.most_common()) or "the same kernels"


def fate_title(found: FindingChange) -> str:
    """A finding's title, fit to show."""
    return shortened(found.title, _NAME)


def signed(us: float) -> str:
    """A change: `+1.20 ms`, `−35.0 µs`."""
    return f"{'+' if us > 0 else '−' if us < 0 else ''}{duration(abs(us))}"


def step(comparison: Comparison) -> str:
    """The step before, after, and the change with its noise, if that is known; if it is not, the summary says so."""
    before, after = comparison.before.step_us, comparison.after.step_us
    change = f"{signed(comparison.change_us)}, {changed_by(comparison.change_share)}"
    if comparison.kind == "kernels":
        return f"Measured kernels {duration(before)} → {duration(after)} ({change})"
    noise = comparison.noise
    sure = f"; 95% of resampled means: {signed(noise.low_us)} to {signed(noise.high_us)}" if noise else ""
    return f"Step {duration(before)} → {duration(after)} ({change}{sure})"


def work(comparison: Comparison) -> str:
    """How many kernels a step runs and how long, overlaps counted twice."""
    before, after = comparison.before, comparison.after
    counts = f"{before.kernels:,.0f} → {after.kernels:,.0f}"
    if comparison.kind == "kernels":
        return f"Launches {counts}"
    told = f"Kernels {counts} a step, {duration(before.kernel_us)} → {duration(after.kernel_us)} on all devices"
    if before.samples_per_s and after.samples_per_s:
        told += f"; throughput {three(before.samples_per_s)} → {three(after.samples_per_s)} samples/s"
    return told


def side(shown: Side) -> str:
    """The captures of one side."""
    first = clip(shown.paths[0], _NAME)
    return first if len(shown.paths) == 1 else f"{first} and {counted(len(shown.paths) - 1, 'more capture')}"


def differences(comparison: Comparison) -> list[str]:
    """What makes the sides hard to compare, a sentence each."""

    def sides(d: Difference) -> str:
        return f"{d.before} on both sides" if d.before == d.after else f"{d.before} before, {d.after} after"

    return [
        f"{'NOT COMPARABLE' if d.serious else 'differs' if d.before != d.after else 'note'}: {d.what}: {sides(d)}. {d.advice}" for d in comparison.differences
    ]


def findings(comparison: Comparison) -> list[str]:
    """How each rule's finding changed."""

    def saving(value: float | None) -> str:
        return "no finding" if value is None else f"saves {percent(value)}"

    return [f"{f.status}: {f.rule} ({saving(f.before_share)} → {saving(f.after_share)})" for f in comparison.findings]


def applied(comparison: Comparison) -> list[str]:
    """What the fixes of findings that are gone were predicted to gain, and what was gained."""
    told = []
    for item in comparison.applied:
        p = item.predicted
        told.append(f"{item.rule}: predicted {amount(p, p.expected)} {'of it' if comparison.kind == 'kernels' else 'a step'} ({likely(p)})")
    if not told:
        return []
    gained = -comparison.change_us
    if comparison.kind == "kernels":
        return [*told, f"all measured kernels together: {changed_by(comparison.change_share)}"]
    of = "it" if len(told) == 1 else "both fixes" if len(told) == 2 else f"all {counted(len(told), 'fix', 'fixes')} together"
    return [*told, f"gained with {of}: {signed(gained) if gained < 0 else duration(gained)} a step"]
