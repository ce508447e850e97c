"""Accesses that take more wavefronts than their bytes need."""

from __future__ import annotations

from typing import NamedTuple

from advisor.report.finding import Fix
from advisor.rules._kernels import Seen
from advisor.views.kernels.counters import WIDEST, wavefronts_a_request
from advisor.views.kernels.limits import L1, Limits, relieved
from advisor.views.kernels.measured import MeasuredKernel


class Crowded(NamedTuple):
    """A kernel whose accesses pass L1's pipe in more pieces than any width of them needs. times: wavefronts for each request."""

    times: float
    excess: float
    limits: Limits

    def seen(self, why: str, fix: Fix) -> Seen:
        """The fault, named only as far as these counters show. Low: excess at any width; high: all but one wavefront per request."""
        told = f"takes {self.times:.0f} wavefronts of L1 for each load or store; the widest needs {WIDEST:.0f}: {why}."
        return Seen(told, relieved(self.limits, {L1: 1 - self.excess}, {L1: 1 / self.times}), 0.65, fix)


def many_wavefronts(kernel: MeasuredKernel, max_excess: float) -> Crowded | None:
    """The text about banks and lines without access counters: none, unless L1's pipe is the busiest."""
    times = wavefronts_a_request(kernel.profile)
    if not times or kernel.limits.limiter != L1:
        return None
    excess = max(1 - WIDEST / times, 0.0)
    return Crowded(times, excess, kernel.limits) if excess >= max_excess else None
