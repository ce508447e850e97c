"""Graph breaks and recompilations of torch.compile, in words."""

from __future__ import annotations

from advisor.report.compile_log import CompileCost, CompileCosts
from advisor.report.numbers import counted, duration

_KINDS = {"graph-break": "graph break", "recompilation": "recompilation"}


def compile_costs_listed(costs: CompileCosts) -> str:
    """The heading of the list."""
    if not costs.rows:
        return f"torch.compile logged {counted(costs.compilations, 'compilation')}, no graph break and no recompilation"
    known = all(row.us is None or row.unprofiled_us is not None for row in costs.rows)
    total = duration(sum((row.unprofiled_us if known else row.us) or 0.0 for row in costs.rows))
    basis = "without the profiler" if known else "as recorded, what the profiler adds included"
    unpriced = sum(row.us is None for row in costs.rows)
    left = f"; not priced: {unpriced}" if unpriced else ""
    return f"Graph breaks and recompilations of torch.compile: {total} of CPU time per step {basis}, most expensive first{left}"


def compile_cost_line(row: CompileCost) -> str:
    """`train.py:25 in forward`."""
    return f"{row.source.file}:{row.source.line}" + (f" in {row.function}" if row.function else "")


def compile_cost_kind(row: CompileCost) -> str:
    """`graph break, once per step`."""
    often = f"{row.count_a_step:,.3g} per step" if row.us is not None else f"not priced: {row.unpriced or 'not in the trace'}"
    return f"{_KINDS[row.kind]}, {often}"


def compile_cost_price(row: CompileCost) -> str:
    """Its time in a step, without the profiler if that is known; a dash if the trace does not show it."""
    price = row.us if row.unprofiled_us is None else row.unprofiled_us
    return "-" if price is None else duration(price)


def compile_cost_parts(row: CompileCost) -> str:
    """The work between two graphs, "" if nothing is known."""
    parts = [
        f"{duration(row.eager_us)} in ops outside graphs" if row.eager_us else "",
        f"{duration(row.lookup_us)} in Dynamo's cache lookup" if row.lookup_us else "",
        f"{counted(row.kernels, 'kernel')} between the graphs" if row.kernels else "",
    ]
    return ", ".join(filter(None, parts))
