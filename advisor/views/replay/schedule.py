"""A step as data that can be edited and run again: host calls in order, and the GPU ops they launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.structs import replace

if TYPE_CHECKING:
    import networkx as nx

START = "start"
"""The node before all others of a graph."""

EARLIER = -2
"""In `waits_for`: what the repeat before launched, for a call at the start of the window."""


class Schedule(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Host calls (n_calls,) in the order they were made, and GPU ops (n_ops,) in the order they were launched.

    Edits replace arrays and set `skip_*`; they never renumber, so that edits compose. All times in µs.

    host_us: host time since the call before. dispatch_us: how much of it is issuing ops (the rest is the program's own). call_us: the call itself, without what
    it waits. waits_for: op that must end before the call returns, -1 none, EARLIER for all of the repeat before. tail_us: from that op's end to the call's
    return. begins: (n_steps,) the call with which the host begins each step of the window; steps without one have none. call_row: (n_calls,) row in
    `api_calls`. op_row: (n_ops,) row in `gpu_ops`. op_call: position of the launching call. stream: small integer. latency_us: launch to start on an idle
    stream. gap_us: after the op before on the stream, and after that on another stream which must end first (`after`, -1 none). skip_op: no longer run. fused:
    represents others too, which a fix has fused into it.
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
    begins: Ints
    steps: int
    periodic: bool

    def edit(self, **arrays: np.ndarray) -> Schedule:
        """The same schedule with some arrays replaced."""
        return replace(self, **arrays)

    def graph(self, repeats: int = 1) -> nx.DiGraph[str]:
        """The schedule run back to back as a networkx graph: an independent statement of what `simulate` computes, to look at, export and check it with.

        Nodes are moments: `start`; of repeat R, `R:issue:I` and `R:return:I`, when call I begins and returns, `R:op:K`, when op K ends, `R:idle`, when all that
        was launched by then has ended, and `R:done`, when the host has too. Each node's `row` is the call's or op's row in the timeline. Edges are what must
        pass between them: they carry `us` and `link`, as the critical path names them. A node's time is the latest, over its predecessors, of theirs plus `us`.
        A time before all others has no edge.
        """
        return _graph(self, repeats)


def _graph(schedule: Schedule, repeats: int) -> nx.DiGraph[str]:
    import networkx as nx

    made: nx.DiGraph[str] = nx.DiGraph()
    made.add_node(START)
    last_on: dict[int, str] = {}
    launched = START
    host, dispatch, call, tail, waits = (
        column.tolist() for column in (schedule.host_us, schedule.dispatch_us, schedule.call_us, schedule.tail_us, schedule.waits_for)
    )
    after, stream, dur, latency, gap, skip = (
        column.tolist() for column in (schedule.after, schedule.stream, schedule.dur_us, schedule.latency_us, schedule.gap_us, schedule.skip_op)
    )
    first_op = np.searchsorted(schedule.op_call, np.arange(len(host) + 1)).tolist()

    def add(before: str, node: str, us: float, link: str) -> None:
        # Two edges between the same nodes say the same as the longer one.
        if before and (not made.has_edge(before, node) or made.edges[before, node]["us"] < us):
            made.add_edge(before, node, us=float(us), link=link)

    came_from = START
    # The node at whose time each op ended last: a skipped one ends with the op before it on its stream.
    ended = [""] * len(skip)
    for r in range(repeats):
        for i in range(len(host)):
            issue, back = f"{r}:issue:{i}", f"{r}:return:{i}"
            made.add_node(issue, row=int(schedule.call_row[i]))
            made.add_node(back, row=int(schedule.call_row[i]))
            add(came_from, issue, host[i], "dispatch" if 2 * dispatch[i] > host[i] else "host")
            for k in range(first_op[i], first_op[i + 1]):
                before = last_on.get(stream[k], "")
                if skip[k]:
                    ended[k] = before
                    continue
                op = f"{r}:op:{k}"
                made.add_node(op, row=int(schedule.op_row[k]))
                add(issue, op, latency[k] + dur[k], "launch-delay")
                add(before, op, gap[k] + dur[k], "kernel")
                add(ended[after[k]] if after[k] >= 0 else "", op, gap[k] + dur[k], "kernel")
                last_on[stream[k]] = ended[k] = op
            add(issue, back, call[i], "host")
            if waits[i] != -1:
                add(launched if waits[i] == EARLIER else ended[waits[i]], back, tail[i], "return")
            came_from = back
        idle, finished = f"{r}:idle", f"{r}:done"
        for node in (launched, *last_on.values()):
            add(node, idle, 0.0, "done")
        for node in (came_from, idle):
            add(node, finished, 0.0, "done")
        launched = idle
    return made
