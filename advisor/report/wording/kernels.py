"""Words for a kernel with recorded hardware counters."""

from __future__ import annotations

from advisor.knowledge.stalls import STALLS, WORTH_SHOWING
from advisor.report.kernels import KernelRow
from advisor.report.numbers import NAMED, percent

SHOWN_STALLS = NAMED  # as many fit a sentence


def occupancy(row: KernelRow) -> str:
    """Warps resident on an SM, as a share of those that fit, and what limits them; "" if that was not collected."""
    found = row.occupancy
    if found is None:
        return ""
    limited = f", limited by {found.limiter}" * bool(found.limiter)
    return f"{percent(found.theoretical)} theoretical{limited}" + ("" if found.achieved is None else f", {percent(found.achieved)} achieved")


def stalls(row: KernelRow) -> str:
    """What its warps stall on most, with the share of their time; "" if that was not collected."""
    most = max(row.stalls.values(), default=0.0)
    first = [(name, part) for name, part in row.stalls.items() if part >= min(WORTH_SHOWING, most)][:SHOWN_STALLS]
    return ", ".join(f"{percent(part)} {name}" + (f" ({STALLS[name]})" if name in STALLS else "") for name, part in first)
