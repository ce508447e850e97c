"""Kernels that a CUDA graph replays, found again in the trace of its capture: there each has its op, module and shapes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby

import msgspec
import numpy as np

from advisor.intervals import Ints, nest
from advisor.knowledge.cuda_api import BEGINS_CAPTURE, ENDS_CAPTURE, HOST_NODE, ApiRole
from advisor.knowledge.shares import NEARLY_ALL
from advisor.recordings.captures import CaptureTrace, CaptureTraces
from advisor.recordings.columns import Table
from advisor.recordings.timeline import GpuKind, Timeline, stacked
from advisor.views.groups import Groups
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops, thread_ids
from advisor.views.trace.serving import ServedStep, Serving
from advisor.views.trace.table_filters import matches

KERNEL, COPY, FILL = range(3)
_KINDS = {GpuKind.MEMCPY.value: COPY, GpuKind.MEMSET.value: FILL}
_ADDS = {ApiRole.LAUNCH: KERNEL, ApiRole.COPY: COPY, ApiRole.MEMSET: FILL}

# vLLM: capture_32_FULL, capture_32_draft_FULL; SGLang: capture_32_DECODE.
_LABEL = re.compile(r"capture_(\d{1,9})_(\w{1,64})")
_DIM = re.compile(r"\[\[(\d{1,9})[,\]]")


class _Graph(msgspec.Struct, frozen=True, eq=False):
    """kinds: of its nodes; call, op: rows of the capture's tables, op -1 without an op around the call."""

    kinds: Ints
    call: Ints
    op: Ints


class _Captured(msgspec.Struct, frozen=True, eq=False):
    """Graphs of a size, in the order of their capture. of: the number of their trace. rows: -1 if unknown."""

    of: int
    rows: int
    graphs: tuple[_Graph, ...]


class CapturedGraphs(msgspec.Struct, frozen=True, eq=False, dict=True):
    """timeline: the used captures in a row; ops: its ops. call, op: (n_gpu,) rows of its tables for each replayed op, -1 elsewhere. replay: (n_gpu,) the
    launch that replays it, -1 elsewhere. share: found part of the replayed time. why: the reason that the rest was not found, or "". sizes: rows of
    the used captures, if known.
    """

    timeline: Timeline
    ops: Ops
    call: Ints
    op: Ints
    replay: Ints
    share: float
    why: str
    sizes: tuple[int, ...]

    @cached_property
    def shaped(self) -> np.ndarray:
        """(n_gpu,) whether the dims of an op's inputs are known."""
        dims = self.timeline.cpu_ops["dims"]
        return np.r_[dims.matching(lambda text: any(map(str.isdigit, text))), False][self.op]

    @classmethod
    def build(cls, captures: CaptureTraces, timeline: Timeline, launches: Launches, serving: Serving) -> CapturedGraphs:
        frame = timeline.gpu_ops
        replay = np.where(launches.replayed, launches.call, -1)
        read = [_Read.create(trace) for trace in captures.traces]
        sets = [one for at, capture in enumerate(read) for one in capture.sets(at)]
        node, of = np.full(len(frame), -1, np.int64), np.full(len(frame), -1, np.int64)
        op = node.copy()
        left: dict[str, float] = {}
        dur = frame["dur_us"]
        for step, rows in _replays(timeline, launches, replay, serving):
            chosen, why = _chosen(step, [_kinds(frame, of_one) for of_one in rows], sets)
            for of_one, graph in zip(rows, chosen, strict=True):
                if graph is None:
                    left[why] = left.get(why, 0.0) + float(dur[of_one].sum())
                    continue
                node[of_one], op[of_one], of[of_one] = graph[1].call, graph[1].op, graph[0].of
        unlike = _unlike(frame, read, of, op, node, replay)
        node[unlike], op[unlike], of[unlike] = -1, -1, -1
        if unlike.any():
            left["the order of their kernels is another than in the capture"] = float(dur[unlike].sum())
        used = np.unique(of[of >= 0]).tolist() or [0]
        merged, calls_before, ops_before = _concatenated([read[at].timeline for at in used])
        for at in used:
            here = of == at
            node[here] += calls_before[used.index(at)]
            op[here & (op >= 0)] += ops_before[used.index(at)]
        whole = float(dur[replay >= 0].sum())
        sizes = sorted({one.rows for one in sets if one.of in used and one.rows >= 0})
        return cls(
            merged,
            Ops.build(merged, Launches.build(merged)),
            node,
            op,
            replay,
            float(dur[node >= 0].sum()) / whole if whole else 0.0,
            max(left, key=lambda why: left[why]) if left else "" if whole else "the trace holds no op that a graph replays",
            tuple(sizes),
        )


class _Read(msgspec.Struct, frozen=True, eq=False):
    """The trace of captures, with the ops and places of its calls."""

    trace: CaptureTrace
    launches: Launches
    ops: Ops

    @property
    def timeline(self) -> Timeline:
        return self.trace.timeline

    @classmethod
    def create(cls, trace: CaptureTrace) -> _Read:
        launches = Launches.build(trace.timeline)
        return cls(trace, launches, Ops.build(trace.timeline, launches))

    def sets(self, at: int) -> Iterator[_Captured]:
        """Captures by size: the pieces of a piecewise graph follow each other."""
        named = [(self._size(graph), graph) for graph in self._graphs()]
        for (rows, _), several in groupby(named, key=lambda pair: pair[0]):
            yield _Captured(at, rows, tuple(graph for _, graph in several))

    def _graphs(self) -> Iterator[_Graph]:
        calls = self.timeline.api_calls
        begins, ends, host = (matches(calls, pattern) for pattern in (BEGINS_CAPTURE, ENDS_CAPTURE, HOST_NODE))
        start = calls["start_us"]
        kind = np.full(len(calls), -1)
        for role, number in _ADDS.items():
            kind[self.launches.calls_with(role)] = number
        # What ran was not captured; a driver's call inside of a runtime's is the same launch.
        kind[host] = -1
        kind[np.unique(self.launches.call[self.launches.call >= 0])] = -1
        adding = np.flatnonzero(kind >= 0)
        inside = nest(thread_ids(calls[adding]), start[adding], start[adding] + calls["dur_us"][adding])
        adding = adding[inside < 0]
        closing = np.flatnonzero(ends)
        for opened in np.flatnonzero(begins).tolist():
            closed = closing[closing > opened]
            if len(closed):
                at = adding[(adding > opened) & (adding < closed[0])]
                yield _Graph(kind[at], at, self.ops.of_call[at])

    def _size(self, graph: _Graph) -> tuple[int, str]:
        """Rows of a captured graph, and the rest of its label: by the range around it, the file's name, or the first dimension of most of its ops."""
        if not len(graph.call):
            return self.trace.rows, ""
        notes, at = self.timeline.annotations, self.timeline.api_calls["start_us"][graph.call[0]]
        around = notes[((notes["start_us"] <= at) & (notes["start_us"] + notes["dur_us"] > at))]
        for name in around["name"].tolist():
            if match := _LABEL.fullmatch(name):
                return int(match[1]), match[2]
        if self.trace.rows >= 0:
            return self.trace.rows, ""
        dims = [self.timeline.cpu_ops["dims"][op] for op in graph.op[graph.op >= 0].tolist()]
        first = Counter(int(match[1]) for text in dims if (match := _DIM.match(text)))
        return (max(first, key=lambda rows: first[rows]), "") if first else (-1, "")


def _kinds(frame: Table, rows: Ints) -> Ints:
    kind = frame["kind"]
    of_name = np.array([_KINDS.get(str(name), KERNEL) for name in kind.categories])
    return of_name[kind.codes[rows]]


def _replays(timeline: Timeline, launches: Launches, replay: Ints, serving: Serving) -> Iterator[tuple[ServedStep | None, list[Ints]]]:
    """The GPU ops of each launch of a graph, in the order of its nodes, by the step that launches it; those outside of all steps together."""
    frame = timeline.gpu_ops
    rows = np.flatnonzero(replay >= 0)
    nodes = frame["graph_node_id"][rows]
    order = rows[np.lexsort((rows, np.where((nodes >= 0).all(), nodes, 0), replay[rows]))]
    each = np.split(order, np.flatnonzero(np.diff(replay[order])) + 1) if len(order) else []
    begun = timeline.api_calls["start_us"]
    starts, ends = (np.array([getattr(step, side) for step in serving.steps]) for side in ("start_us", "end_us"))
    of_step: dict[int, list[Ints]] = {}
    for one in sorted(each, key=lambda one: float(begun[replay[one[0]]])):
        at = int(np.searchsorted(starts, begun[replay[one[0]]], side="right")) - 1
        of_step.setdefault(at if at >= 0 and begun[replay[one[0]]] < ends[at] else -1, []).append(one)
    for at, several in of_step.items():
        yield serving.steps[at] if at >= 0 else None, several


_Found = list[tuple[_Captured, _Graph] | None]


def _chosen(step: ServedStep | None, replays: Sequence[Ints], sets: Sequence[_Captured]) -> tuple[_Found, str]:
    """The capture of each replay of a step, None if nothing fits, and why."""
    found = [(_fitting(replays, one), one) for one in sets]
    covered = [sum(len(kinds) for kinds, graph in zip(replays, graphs, strict=True) if graph is not None) for graphs, _ in found]
    best = max(covered, default=0)
    if not best:
        return [None] * len(replays), "no capture has as many kernels and copies" if sets else "no graph was captured in the traces given"
    fitting = [(graphs, one) for (graphs, one), many in zip(found, covered, strict=True) if many == best]
    graphs, one = _of_size(step, fitting) or (None, None)
    if graphs is None or one is None:
        return [None] * len(replays), "which of the captured sizes they are is not known"
    return [(one, graph) if graph is not None else None for graph in graphs], "no capture has as many kernels and copies"


def _fitting(replays: Sequence[Ints], one: _Captured) -> list[_Graph | None]:
    """Each replay's graph: that in its turn, else the first that has the same nodes."""
    turns = len(replays) % len(one.graphs) == 0
    found: list[_Graph | None] = []
    for at, kinds in enumerate(replays):
        mine = one.graphs[at % len(one.graphs)]
        others = [graph for graph in one.graphs if _fits(kinds, graph)]
        found.append(mine if turns and _fits(kinds, mine) else others[0] if others else None)
    return found


def _fits(kinds: Ints, graph: _Graph) -> bool:
    """Whether a replay runs the nodes of a graph: some drivers copy and fill by kernels."""
    return len(kinds) == len(graph.kinds) and bool(((kinds == graph.kinds) | (kinds == KERNEL)).all())


def _of_size(step: ServedStep | None, fitting: Sequence[tuple[list[_Graph | None], _Captured]]) -> tuple[list[_Graph | None], _Captured] | None:
    """The capture that a step of so many rows replays: of its padded size, else the smallest with room for it."""
    if len({one.rows for _, one in fitting}) == 1:
        return fitting[0]
    if step is None:
        return None
    if exact := [pair for pair in fitting if pair[1].rows == step.padded_to > 0]:
        return exact[0]
    least = step.mark.query_tokens if step.mark.query_tokens > 0 else step.mark.requests
    return min((pair for pair in fitting if pair[1].rows >= least > 0), key=lambda pair: pair[1].rows, default=None)


def _unlike(frame: Table, read: Sequence[_Read], of: Ints, op: Ints, node: Ints, replay: Ints) -> np.ndarray:
    """(n_gpu,) ops of captures with several kernels for an op on the same shapes: these ran in another order than in the capture."""
    found = np.zeros(len(frame), bool)
    name = frame["name"].codes
    for at in np.unique(of[of >= 0]).tolist():
        rows = np.flatnonzero((of == at) & (op >= 0))
        host = read[at].timeline.cpu_ops
        # Which of an op's nodes it is.
        order = rows[np.lexsort((node[rows], op[rows], replay[rows]))]
        starts = np.r_[True, (np.diff(op[order]) != 0) | (np.diff(replay[order]) != 0)][: len(order)]
        turn = np.arange(len(order)) - np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
        us = frame["dur_us"][order]
        places = Groups.by_keys(host["name"].codes[op[order]], host["dims"].codes[op[order]], turn)
        same = Groups.by_keys(places.of, name[order])
        usual = np.zeros(len(places.first))
        np.maximum.at(usual, places.of[same.first], same.sums(us=us)["us"])
        if usual.sum() < NEARLY_ALL * us.sum():
            found[of == at] = True
    return found


def _concatenated(timelines: Sequence[Timeline]) -> tuple[Timeline, list[int], list[int]]:
    """The host's side of captures as one timeline, and how many calls and ops are before those of each."""
    if len(timelines) == 1:
        return timelines[0], [0], [0]
    names = ("api_calls", "cpu_ops", "python_calls", "annotations")
    frames: dict[str, list[Table]] = {name: [] for name in names}
    shift, before = 0.0, ([0], [0])
    for one in timelines:
        ends = [float(frame.ends.max()) for name in names if len(frame := getattr(one, name))]
        for name in names:
            frames[name].append(getattr(one, name).with_columns(start_us=getattr(one, name)["start_us"] + shift))
        shift += max(ends, default=0.0) + 1.0
        before[0].append(before[0][-1] + len(one.api_calls))
        before[1].append(before[1][-1] + len(one.cpu_ops))
    return Timeline.build(timelines[0].source, (), 0, **{name: stacked(name, frames[name]) for name in names}), *before
