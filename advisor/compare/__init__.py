"""Compares two sides of a program, each a capture or several: changes, their places, and whether they exceed noise."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TypeAlias

from advisor.compare.differences import basis_of, differences_between, unknown_because
from advisor.compare.findings import applied, finding_changes
from advisor.compare.model import Comparison, Interval, Row, Side, Table, Verdict
from advisor.engine.analysis import Analysis, report_in
from advisor.errors import UsageError
from advisor.knowledge.release import release
from advisor.knowledge.shares import NO_DIFFERENCE
from advisor.report.model import Kind, Report
from advisor.report.numbers import duration, percent, three

_Captures: TypeAlias = "Report | Analysis | Sequence[Report | Analysis]"
"""A side: one capture or several."""


def compare(before: _Captures, after: _Captures) -> Comparison:
    """Changes from one side to the other, per step, without profiler overhead. A side is a report, or several captures, which are averaged.

    Raises UsageError if a side is empty or has no reports, if kinds differ or have no step, or if a report lacks the breakdown (saved by an earlier version).
    """
    # Here, since a history needs neither these nor numpy.
    from advisor.compare.matching import match
    from advisor.compare.tables import Draws, Sampled, class_of, kernel_time, kernels_table, module_and_op, table

    before, after = _captures(before), _captures(after)
    kinds = sorted({report.kind for report in (*before, *after)})
    if len(kinds) > 1:
        raise UsageError(f"recordings of kind {' and '.join(kinds)} cannot be compared", "Give recordings of the same kind.")
    if kinds == ["memory"]:
        raise UsageError(
            "a snapshot of memory has no step to compare",
            "Hold its peak against the budgets peak_bytes and reserved_bytes, without --baseline; or compare two snapshots: advisor diff BEFORE AFTER",
        )
    for side, name in ((before, "before"), (after, "after")):
        if not side:
            raise UsageError(f"there is no capture {name}", "Give a trace or saved report for each side.")
        for report in side:
            if not report.breakdown:
                raise UsageError(f"{report.source.path} was saved without a breakdown of its step", "Analyse the trace again.")
    left, right = Sampled(before), Sampled(after)
    draws = Draws.create(len(before), len(after))
    noise = draws.interval(left.steps_us, right.steps_us)
    change = float(right.steps_us.mean() - left.steps_us.mean())
    doubt = unknown_because(before, after)
    matches = match(left.parts, right.parts)
    # Of a job's ranks no kernels are kept: its step is divided by what the mean rank does.
    tables = (
        (table("class", left, right, draws, class_of),)
        if before[0].kind == "job"
        else (
            table("class", left, right, draws, class_of),
            table("module and op", left, right, draws, module_and_op),
            table("family", left, right, draws, lambda p: class_of(p) if p.kind == "idle" else p.family),
            kernels_table(left, right, draws, matches),
        )
    )
    # Of steps it is known within how much they repeat, of kernels that were measured one by one it is not.
    repeats_us = 0.0 if before[0].kind == "kernels" else NO_DIFFERENCE * float(left.steps_us.mean())
    verdict: Verdict = "unknown" if doubt else _verdict(change, repeats_us, noise)
    # Findings are of one capture: the one whose step is nearest to the side's mean.
    typical = before[left.typical], after[right.typical]
    return Comparison(
        kind=before[0].kind,
        advisor=release(),
        before=_side(before),
        after=_side(after),
        change_us=change,
        noise=noise,
        verdict=verdict,
        summary=doubt or _summary(before[0].kind, verdict, float(left.steps_us.mean()), change, noise is None, tables[0]),
        differences=tuple(differences_between(before, after)),
        tables=tables,
        kernel_time=kernel_time(before, after, draws),
        findings=tuple(finding_changes(*typical)),
        applied=() if doubt else tuple(applied(*typical)),
    )


def _captures(side: _Captures) -> Sequence[Report]:
    """The captures of a side; a single capture may be given without a list."""
    several = side if isinstance(side, Sequence) else (side,)
    reports = [report_in(one) for one in several]
    if all(isinstance(report, Report) for report in reports):
        return reports
    raise UsageError(
        "a side to compare is no report, nor a list of reports", "Give the result of advisor.analyze for each trace, or of Report.from_json for a saved report."
    )


def _side(reports: Sequence[Report]) -> Side:
    import numpy as np

    steps = tuple(sum(p.us for p in r.breakdown) for r in reports)
    return Side(
        paths=tuple(r.source.path for r in reports),
        step_us=float(np.mean(steps)),
        steps_us=steps,
        basis=basis_of(reports[0]),
        kernels=float(np.mean([r.work.kernels for r in reports])),
        kernel_us=float(np.mean([r.work.kernel_us for r in reports])),
        samples_per_s=float(np.mean([r.work.samples / us * 1e6 if us > 0 else 0.0 for r, us in zip(reports, steps, strict=True)])),
    )


def _verdict(change_us: float, repeats_us: float, noise: Interval | None) -> Verdict:
    if not change_us:
        return "unchanged"
    # Where captures do not tell the noise, what unprofiled steps are known to repeat within is the least of it.
    if abs(change_us) < repeats_us if noise is None else not noise.beyond_noise:
        return "within noise"
    return "slower" if change_us > 0 else "faster"


def _summary(kind: Kind, verdict: Verdict, before_us: float, change_us: float, one_capture: bool, classes: Table) -> str:
    if verdict == "unchanged":
        return f"The {'measured kernels take' if kind == 'kernels' else 'step takes'} exactly as long as before."
    by = _change_in_words(before_us, change_us)
    if kind == "kernels":
        return f"The measured kernels together take {by} under the profiler."
    # The class that moved most in the direction of the step.
    most = next((r for r in classes.rows if r.change_us * change_us > 0), None)
    mostly = f", mostly {_moved(most)}" if most else ""
    unknown = "; the noise is not known: that takes three captures a side" if one_capture else ""
    if verdict == "within noise":
        if one_capture:
            return f"No change that can be told: the step takes {by}, and unprofiled steps repeat within about {NO_DIFFERENCE:.0%}{unknown}."
        return f"No change beyond the noise: the mean step takes {by}."
    return f"The step takes {by}{mostly}{unknown}."


def _moved(row: Row) -> str:
    """`computing (−1.20 ms a step)`, `idle time (waiting for a batch: −3.40 ms a step)`."""
    idle, _, cause = row.name.partition(": ")
    changed = f"{_signed(row.change_us)} a step"
    return f"{idle} time ({cause}: {changed})" if cause else f"{row.name} ({changed})"


def _change_in_words(before_us: float, change_us: float) -> str:
    """`12% less time`, `3.20× the time`: a share of more than all would say little."""
    if before_us <= 0:
        return "some time, where it took none"
    ratio = 1 + change_us / before_us
    return f"{three(ratio)}× the time" if ratio > 2 else f"{percent(abs(change_us) / before_us)} {'more' if change_us > 0 else 'less'} time"


def _signed(us: float) -> str:
    return ("−" if us < 0 else "+") + duration(abs(us))


class _Callable(ModuleType):
    """`advisor.compare` is the function until something imports this package, which has the same name: then this is called."""

    def __call__(self, before: _Captures, after: _Captures) -> Comparison:
        return compare(before, after)


sys.modules[__name__].__class__ = _Callable
