"""A job as a graph: each rank's own work in segments, joined by collectives that begin when the last rank has come.

The hot loop is arrays; `JobGraph.graph()` is the same as a networkx.DiGraph, its oracle and what others export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from advisor.errors import TraceError
from advisor.intervals import Floats, Ints

if TYPE_CHECKING:
    import networkx as nx

REPEATS = 6
"""How often the window is run: the period is settled once every rank has waited for every other."""


class JobGraph(msgspec.Struct, frozen=True):
    """Nodes: dur_us (n,), rank (n,) position of the segment's rank, -1 for a collective; edges go forward within `level`. Edges: source, target, lag_us.
    Carried: edges from one run of the window to the next. begin, begin_us: nodes, and their earliest start in the first run. closing: (ranks,) each rank's
    last node. steps: in the window. host_us: (ranks,) each host's own time per step, a minimum for the step.
    """

    dur_us: Floats
    rank: Ints
    source: Ints
    target: Ints
    lag_us: Floats
    carried_source: Ints
    carried_target: Ints
    carried_lag_us: Floats
    begin: Ints
    begin_us: Floats
    closing: Ints
    host_us: Floats
    steps: int
    level: Ints

    @classmethod
    def create(
        cls,
        dur_us: Floats,
        rank: Ints,
        edges: tuple[Ints, Ints, Floats],
        carried: tuple[Ints, Ints, Floats],
        begin: tuple[Ints, Floats],
        closing: Ints,
        host_us: Floats,
        steps: int,
    ) -> JobGraph:
        """A graph of these parts. Raises TraceError if its edges go in a circle: the ranks' orders then contradict each other."""
        return cls(dur_us, rank, *edges, *carried, *begin, closing, host_us, steps, _levels(len(dur_us), edges[0], edges[1]))

    def starts_us(self, at_least: Floats) -> Floats:
        """(n,) when each node starts if none may before `at_least` (n,): each as early as all before it allow."""
        start = at_least.copy()
        order = np.argsort(self.level[self.target], kind="stable")
        source, target, lag = self.source[order], self.target[order], self.lag_us[order]
        edges = np.flatnonzero(np.diff(self.level[target], prepend=-1, append=-1))
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            came = source[low:high]
            np.maximum.at(start, target[low:high], start[came] + self.dur_us[came] + lag[low:high])
        return start

    def closings_us(self) -> Floats:
        """(REPEATS, ranks) when each rank closes each run of the window."""
        least = np.full(len(self.dur_us), -np.inf)
        np.maximum.at(least, self.begin, self.begin_us)
        least = np.where(np.isfinite(least), least, self.begin_us.min() if len(self.begin_us) else 0.0)
        made = np.empty((REPEATS, len(self.closing)))
        for i in range(REPEATS):
            start = self.starts_us(least)
            made[i] = start[self.closing] + self.dur_us[self.closing]
            least = np.full(len(self.dur_us), start.min())
            came = self.carried_source
            np.maximum.at(least, self.carried_target, start[came] + self.dur_us[came] + self.carried_lag_us)
        return made

    def step_us(self) -> float:
        """The steady step of the job: what the slowest rank needs, and no less than any host."""
        closings = self.closings_us()
        half = len(closings) // 2
        period = float((closings[-1] - closings[half - 1]).max()) / (len(closings) - half) / max(self.steps, 1)
        return max(period, float(self.host_us.max(initial=0.0)))

    def graph(self) -> nx.DiGraph:
        """One run of the window: nodes with `dur_us` and `rank` (-1: a collective), edges with `lag_us`."""
        import networkx as nx

        made: nx.DiGraph = nx.DiGraph(steps=self.steps)
        for node, (dur, rank) in enumerate(zip(self.dur_us.tolist(), self.rank.tolist(), strict=True)):
            made.add_node(node, dur_us=dur, rank=rank)
        for source, target, lag in zip(self.source.tolist(), self.target.tolist(), self.lag_us.tolist(), strict=True):
            known = made.edges.get((source, target))
            made.add_edge(source, target, lag_us=max(lag, known["lag_us"]) if known else lag)
        return made


def _levels(n: int, source: Ints, target: Ints) -> Ints:
    """(n,) length of the longest way to each node, in edges."""
    level = np.zeros(n, np.int64)
    order = np.argsort(source, kind="stable")
    by_source = target[order]
    first = np.searchsorted(source[order], np.arange(n + 1))
    waiting = np.bincount(target, minlength=n)
    ready = np.flatnonzero(waiting == 0)
    done, depth = 0, 0
    while len(ready):
        level[ready] = depth
        done += len(ready)
        count = first[ready + 1] - first[ready]
        rows = np.repeat(first[ready], count) + np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        reached = by_source[rows]
        np.subtract.at(waiting, reached, 1)
        reached = np.unique(reached)
        ready = reached[waiting[reached] == 0]
        depth += 1
    if done < n:
        raise TraceError("the ranks' collectives wait for each other in a circle", "Give traces of the same steps of the same job.")
    return level
