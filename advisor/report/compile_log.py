"""Graph breaks and recompilations of torch.compile, priced in this trace; present if a log of the compilation was given."""

from __future__ import annotations

from typing import Literal

import msgspec

from advisor.report.finding import SourceLine


class CompileCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a source line. count_a_step: how often it happens in a step of the window."""

    kind: Literal["graph-break", "recompilation"]
    source: SourceLine
    function: str
    reason: str
    """As torch.compile logged it."""
    count_a_step: float
    us: float | None
    """CPU time per step. Of a break: from the end of a compiled graph to the start of the next, the median of all. Of a recompilation: the compilation itself.
    None if the trace does not show it."""
    unprofiled_us: float | None = None
    """The same without what recording added; None if that is not known, as of a trace without GPU work."""
    unpriced: str = ""
    """Why the trace does not show it."""
    eager_us: float = 0.0
    """Part of it in ops that ran between the graphs."""
    lookup_us: float = 0.0
    """Part of it in which Dynamo looked for the next compiled code."""
    kernels: int = 0
    """GPU kernels launched between the graphs, in the window: those which a single graph could fuse."""
    instead: str = ""
    """What to change."""


class CompileCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The most expensive line first. `seconds`: of all compilations in the log, start-up among them."""

    rows: tuple[CompileCost, ...] = ()
    functions: int = 0
    compilations: int = 0
    seconds: float = 0.0
