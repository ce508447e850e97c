"""What a TPU did, in words: its HLO ops by category."""

from __future__ import annotations

from advisor.report.model import Report
from advisor.report.numbers import count, duration, percent, rate
from advisor.report.step import CategoryRow
from advisor.report.wording import step_noun

_LINES = 10
LEAST = 0.001
"""Shares of the step below this are left out if a page has to be short."""


def shown(report: Report) -> list[CategoryRow]:
    """Categories that take time, or that run beside what does."""
    step_us = report.step_us or 1.0
    return [row for row in report.categories if row.share >= LEAST or row.beside_us / step_us >= LEAST]


def lines(report: Report) -> list[str]:
    """A line a category for a terminal."""
    rows = shown(report)
    if not rows:
        return []
    made = [f"{f'in one {step_noun(report)} of a core':<34}{'time':>10}{'share':>8}{'runs':>8}{'TFLOP/s':>9}{'beside it':>11}"]
    for row in rows[:_LINES]:
        beside = duration(row.beside_us) if row.beside_us > 0 else ""
        runs = count(round(row.calls)) if row.calls else ""
        made.append(
            f"{row.name[:33]:<34}{duration(row.us):>10}{percent(row.share):>8}{runs:>8}{rate(row.tflops) if row.tflops > 0 else '':>9}{beside:>11}".rstrip()
        )
    return made


def used(report: Report) -> str:
    """How much of the TPU's peak the known FLOPs are; "" where either is not known."""
    if report.rates is None or report.rates.flops_step is None or report.kind != "tpu":
        return ""
    known = report.rates.known
    of_all = "" if known >= 0.995 else f"; FLOPs are known of {percent(known)} of the computing time, and the others count as none"
    return f"Over the step its ops reach {percent(report.rates.flops_step)} of the peak FLOP/s that the profile names{of_all}."
