"""A schedule as a networkx graph: an independent statement of what `simulate` computes, to look at, export and check it with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from advisor.views.replay.schedule import EARLIER, Schedule

if TYPE_CHECKING:
    import networkx as nx

START = "start"


def graph(schedule: Schedule, repeats: int = 1) -> nx.DiGraph[str]:
    """The schedule run back to back, as moments and what must pass between them.

    Nodes: `start`; of repeat R, `R:issue:I` and `R:return:I`, when call I begins and returns, `R:op:K`, when op K ends,
    `R:idle`, when all that was launched by then has ended, and `R:done`, when the host has too. Each node's `row` is the call's or op's row in the
    timeline. Edges carry `us` and `link`, as the critical path names them: a node's time is the latest, over its
    predecessors, of theirs plus `us`. A time before all others has no edge.
    """
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


def times_us(made: nx.DiGraph[str]) -> dict[str, float]:
    """When each node of a graph is reached, in µs from the start."""
    import networkx as nx

    at = {START: 0.0}
    for node in nx.topological_sort(made):
        if node != START:
            at[node] = max(at[before] + edge["us"] for before, _, edge in made.in_edges(node, data=True))
    return at
