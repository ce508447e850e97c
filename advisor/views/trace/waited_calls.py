"""The cause of each call that waits for the GPU: the surrounding ops, copy and Python frames, and so its fix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.counts import EXAMINED
from advisor.knowledge.host_waits import HostWait, Waited, Way, host_wait
from advisor.knowledge.op_tokens import TORCH, names_of
from advisor.recordings.columns import Table
from advisor.recordings.timeline import CopyKind, MemoryKind, Timeline
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops, thread_ids
from advisor.views.trace.source_lines import OF_C, Sources
from advisor.views.trace.table_filters import matches

NEIGHBOURS = 3
"""Ops right before and behind a call that are looked at."""

LOOKED_AT = EXAMINED
"""Calls of a kind, or members of a row of evidence, with a line that is looked up."""

_TENSOR_OP = names_of("namespaced_op")
_OPTIMIZER_STEP = names_of("optimizer_step")
_OF_PYTHON = re.compile(r"\(\d{1,9}\): ")
_READS = re.compile(r"^(?:cuda|cu|hip)(StreamSynchronize|Memcpy\w*)$")
"""The calls by which an op of PyTorch waits for a value."""


class WaitedCalls(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Answers what a runtime call that waits, or makes a copy that is waited for, is of."""

    timeline: Timeline
    ops: Ops
    launches: Launches
    sources: Sources

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops, launches: Launches, sources: Sources) -> WaitedCalls:
        return cls(timeline, ops, launches, sources)

    def rows_of(self, calls: Ints, kinds: Sequence[str]) -> list[HostWait | None]:
        """For each call (rows of `api_calls`) its row of the table, None if unknown. kinds: distinguishes calls. Of many calls of a kind a sample is examined,
        and the others take the result of their predecessor.
        """
        found: list[HostWait | None] = [None] * len(calls)
        names = np.asarray(kinds, object)
        for kind in dict.fromkeys(kinds):
            members = np.flatnonzero(names == kind)
            step = -(-len(members) // LOOKED_AT)
            for first in range(0, len(members), step):
                row = self.row_of(int(calls[members[first]]))
                for member in members[first : first + step].tolist():
                    found[member] = row
        return found

    def row_of(self, call: int) -> HostWait | None:
        """The row of the table that a call belongs to."""
        return host_wait(self.waited(call))

    def outermost(self, call: int) -> str:
        """The outermost tensor op around a call; the call itself if there is none."""
        root = self._root(int(self.ops.of_call[call]))
        return self.ops.name(root) if root >= 0 else self.timeline.api_calls["name"][call]

    def waited(self, call: int) -> Waited:
        """What the trace shows of a call."""
        name = self.timeline.api_calls["name"][call]
        op = int(self.ops.of_call[call])
        way, memory, size = self._copy(call, op)
        frames = self.sources.frames_of_call(call) if self.sources.rows else ()
        direct = library = None
        if frames and self.sources.tells_c:
            direct = not frames[0].startswith(OF_C)
        if frames:
            library = any(_OF_PYTHON.search(frame) for frame in frames[:-1])
        root = self._root(op)
        if root < 0:
            unseen = not len(self.ops.parent) and _READS.match(name)
            return Waited(name, ((f"{TORCH}to" if way == "to-device" else f"{TORCH}item"),) if unseen else (), copy=way, memory=memory, bytes=size)
        around = tuple(reversed([one for one in self.ops.chain(op) if _TENSOR_OP.match(one)]))
        parent = self.ops.name(int(self.ops.parent[root]))
        before, then, optimizer = self._previous_ops(root), self._next_ops(root), self._optimizer(call)
        return Waited(name, around, parent, before, then, frames, direct, library, way, memory, size, optimizer)

    def _optimizer(self, call: int) -> str:
        """Name of the range of an optimizer's step that the call is made in, "" if there is none."""
        calls, steps = self.timeline.api_calls, self._optimizer_steps
        start = calls["start_us"][call]
        around = np.flatnonzero((steps["tid"] == calls["tid"][call]) & (steps["start_us"] <= start) & (steps.ends >= start))
        return str(steps["name"][around[0]]) if len(around) else ""

    @cached_property
    def _optimizer_steps(self) -> Table:
        notes = self.timeline.annotations
        return notes[matches(notes, _OPTIMIZER_STEP)]

    def _root(self, op: int) -> int:
        """The outermost tensor op around an op, -1 if there is none."""
        root = -1
        while op >= 0:
            if _TENSOR_OP.match(self.ops.name(op)):
                root = op
            op = int(self.ops.parent[op])
        return root

    def _next_ops(self, op: int) -> tuple[str, ...]:
        """The next ops of its thread that stand next to it, in order."""
        order, _, starts, end, edges = self._threads
        last = edges[self._thread[op] + 1]
        found: list[str] = []
        at = op
        while len(found) < NEIGHBOURS:
            first = edges[self._thread[op]]
            place = first + int(np.searchsorted(starts[first:last], end[at]))
            if place >= last or self.ops.parent[order[place]] != self.ops.parent[op]:
                break
            at = int(order[place])
            found.append(self.ops.name(at))
        return tuple(found)

    def _previous_ops(self, op: int) -> tuple[str, ...]:
        """The ops of its thread before it that stand next to it, in order."""
        order, place, _, _, edges = self._threads
        found: list[str] = []
        at = op
        while len(found) < NEIGHBOURS and place[at] > edges[self._thread[op]]:
            at = int(order[place[at] - 1])
            while at >= 0 and self.ops.parent[at] != self.ops.parent[op]:
                at = int(self.ops.parent[at])
            if at < 0:
                break
            found.append(self.ops.name(at))
        return tuple(reversed(found))

    def _copy(self, call: int, op: int) -> tuple[Way, str, float]:
        """Which way the call, or another of the op that makes it, copies; of what memory on the host, and how many bytes at most."""
        gpu, rows = self.timeline.gpu_ops, self._copies.get(op if op >= 0 else -1 - call, [])
        if not rows:
            return "to-host", "", -1.0
        kinds = {str(gpu["copy_kind"][row]) for row in rows}
        way: Way = "to-device" if CopyKind.DTOH.value not in kinds else "to-host"
        memory = {str(gpu["src_kind" if way == "to-device" else "dst_kind"][row]) for row in rows}
        return way, MemoryKind.PINNED.value if memory == {MemoryKind.PINNED.value} else "", float(gpu["bytes"][rows].max())

    @cached_property
    def _copies(self) -> dict[int, list[int]]:
        """Copies between host and device by the innermost op around their call; by -1 - call if there is none."""
        kind = self.timeline.gpu_ops["copy_kind"].isin((CopyKind.HTOD.value, CopyKind.DTOH.value))
        rows = np.flatnonzero(kind & (self.launches.call >= 0))
        call = self.launches.call[rows]
        op = self.ops.of_call[call]
        found: dict[int, list[int]] = {}
        for key, row in zip(np.where(op >= 0, op, -1 - call).tolist(), rows.tolist(), strict=True):
            found.setdefault(key, []).append(row)
        return found

    @cached_property
    def _thread(self) -> Ints:
        """(n_cpu,) the thread of each op, 0 and up."""
        return np.unique(thread_ids(self.timeline.cpu_ops), return_inverse=True)[1].astype(np.int64)

    @cached_property
    def _threads(self) -> tuple[Ints, Ints, Floats, Floats, Ints]:
        """Ops by thread and start, the outer first; the place of each in that order; their starts in it; their ends; where each thread begins."""
        start, dur = (self.timeline.cpu_ops[column] for column in ("start_us", "dur_us"))
        order = np.lexsort((-dur, start, self._thread))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        edges = np.r_[0, np.cumsum(np.bincount(self._thread))]
        return order, place, start[order], start + dur, edges
