"""The program's annotations of its CUDA graphs' nodes, on the kernels of replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.shares import MOST
from advisor.recordings.captures import GraphAnnotations, NodeAnnotation
from advisor.recordings.columns import Categorical, Table
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.launches import Launches

_TEXTS = ("collective", "collective_dtype", "group", "group_ranks")
_NUMBERS = ("group_size", "in_elements", "out_elements")


class AnnotatedGraphs(msgspec.Struct, frozen=True, eq=False):
    """of: (n_gpu,) positions in `said`, -1 of ops without an annotation. replayed: (n_gpu,) whether a graph ran it. why: the reason why
    nothing fits, "" if something does."""

    said: tuple[NodeAnnotation, ...]
    of: Ints
    replayed: Mask
    why: str

    @classmethod
    def build(cls, annotations: GraphAnnotations, timeline: Timeline, launches: Launches, kernels: Kernels) -> AnnotatedGraphs:
        frame = timeline.gpu_ops
        replayed = launches.replayed
        nodes = np.array(sorted(annotations.nodes), np.int64)
        said = tuple(annotations.nodes[node] for node in nodes.tolist())
        rows = np.flatnonzero(replayed)
        numbered = len(rows) > 0 and bool((frame["graph_node_id"][rows] >= 0).any())
        of, why = _by_number(frame, rows, nodes) if numbered else _by_order(frame, rows, launches.call, nodes, said)
        talks = np.array([*(one.in_elements >= 0 for one in said), False], bool)[of]
        if talks.any() and not kernels.communication[talks].any():
            of, why = np.full(len(frame), -1), "annotated collectives are on kernels that do not communicate"
        return cls(said, of, replayed, why)

    def told(self, frame: Table, rows: Ints) -> Table:
        """These rows of GPU ops with their collective, if only annotations have it."""
        at = np.flatnonzero((self.of[rows] >= 0) & (frame["in_elements"] < 0))
        of = [self.said[one] for one in self.of[rows[at]].tolist()]
        at, of = at[[one.in_elements >= 0 for one in of]] if of else at, [one for one in of if one.in_elements >= 0]
        made: dict[str, Categorical | Ints] = {}
        for name in (*_TEXTS, *_NUMBERS):
            column = frame[name].texts() if name in _TEXTS else frame[name].copy()
            column[at] = [getattr(one, name) for one in of]
            made[name] = Categorical.of_texts(column) if name in _TEXTS else column
        return frame.with_columns(**made)


def _by_number(frame: Table, rows: Ints, nodes: Ints) -> tuple[Ints, str]:
    """By the numbers of nodes: of the graphs that ran, most annotated nodes must be there, or they are graphs of another process."""
    of = np.full(len(frame), -1)
    ran = frame["graph_node_id"][rows]
    at = np.searchsorted(nodes, ran)
    found = np.r_[nodes, -1][at] == ran
    expected = np.isin(_graph(nodes), np.unique(_graph(ran)))
    if not expected.any():
        return of, "the graphs that ran are others, as of another process"
    if len(np.unique(ran[found])) <= MOST * expected.sum():
        return of, "the graphs that ran have few of the annotated nodes"
    of[rows[found]] = at[found]
    return of, ""


def _by_order(frame: Table, rows: Ints, call: Ints, nodes: Ints, said: Sequence[NodeAnnotation]) -> tuple[Ints, str]:
    """By their order, in traces without numbers: the only graph with as many annotated nodes as a replay has ops.

    Its replays must run the same kernels.
    """
    of = np.full(len(frame), -1)
    seen: dict[int, list[int]] = {}
    starts = np.flatnonzero(np.diff(_graph(nodes), prepend=-1))
    graphs = [np.arange(first, last) for first, last in zip(starts, [*starts[1:], len(nodes)], strict=True)]
    copies = frame["kind"] != GpuKind.MEMSET.value
    for replay in _replays(rows, call):
        # torch 2.13 annotates no fills.
        for ops in (replay, replay[copies[replay]]):
            fitting = {tuple(said[node] for node in graph.tolist()): graph for graph in graphs if len(graph) == len(ops)}
            if len(fitting) == 1:
                graph = next(iter(fitting.values()))
                names = frame["name"].codes[ops].tolist()
                if seen.setdefault(int(graph[0]), names) != names:
                    return np.full(len(frame), -1), "without numbers of nodes, and the order of their kernels differs between replays"
                of[ops] = graph
                break
    why = "" if (of >= 0).any() else "the trace has no numbers of nodes, and no replay has as many kernels as a single graph has annotated nodes"
    return of, why


def _graph(nodes: Ints) -> Ints:
    """The number of each node's graph (cudaGraphNodeGetToolsId)."""
    return nodes >> 32


def _replays(rows: Ints, call: Ints) -> Iterator[Ints]:
    order = rows[np.argsort(call[rows], kind="stable")]
    yield from np.split(order, np.flatnonzero(np.diff(call[order])) + 1) if len(order) else ()
