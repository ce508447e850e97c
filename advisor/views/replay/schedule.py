"""A step as data that can be edited and run again: host calls in order, and the GPU ops they launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from advisor.intervals import Floats, Ints, Mask

if TYPE_CHECKING:
    import networkx as nx

EARLIER = -2
"""In `waits_for`: what the repeat before launched, for a call at the start of the window."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """Host calls (n_calls,) in the order they were made, and GPU ops (n_ops,) in the order they were launched.

    Edits replace arrays and set `skip_*`; they never renumber, so that edits compose. All times in µs.

    host_us: host time since the call before. dispatch_us: how much of it is issuing ops (the rest is the program's own).
    call_us: the call itself, without what it waits. waits_for: op that must end before the call returns, -1 none,
    EARLIER for all of the repeat before. tail_us: from that op's end to the call's return.
    call_row: (n_calls,) row in `api_calls`. op_row: (n_ops,) row in `gpu_ops`.
    op_call: position of the launching call. stream: small integer. latency_us: launch to start on an idle stream.
    gap_us: after the op before on the stream, and after that on another stream which must end first (`after`, -1 none).
    skip_op: no longer run. fused: stands for others too, which a fix has fused into it.
    """

    call_row: Ints
    host_us: Floats
    dispatch_us: Floats
    call_us: Floats
    waits_for: Ints
    tail_us: Floats
    op_row: Ints
    op_call: Ints
    stream: Ints
    dur_us: Floats
    latency_us: Floats
    gap_us: Floats
    after: Ints
    skip_op: Mask
    fused: Mask
    steps: int
    periodic: bool

    def edit(self, **arrays: np.ndarray) -> Schedule:
        """The same schedule with some arrays replaced."""
        return replace(self, **arrays)  # type: ignore[arg-type]

    def graph(self, repeats: int = 1) -> nx.DiGraph[str]:
        """The schedule as a networkx graph: see `advisor.views.replay.graph`."""
        from advisor.views.replay.graph import graph

        return graph(self, repeats)
