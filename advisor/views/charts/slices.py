"""A stretch of the trace as slices on lanes, as a viewer shows it: host threads, GPU streams, idle time by cause."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, nest, over_ancestors
from advisor.knowledge import cuda_api
from advisor.knowledge.shares import NEARLY_ALL
from advisor.recordings.columns import Categorical, Table, by_first_row, concatenated, joined
from advisor.recordings.timeline import Timeline
from advisor.report.charts import Cut, Lane
from advisor.views.groups import Groups
from advisor.views.time.device_time import Partition
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.gpu_kernels import FAMILIES, Kernels
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import user_frame

HOST_LANES = 6
"""Threads shown: those that issue GPU work, then those with most of their time recorded."""
_ROLES = {
    cuda_api.ApiRole.LAUNCH: "launch",
    cuda_api.ApiRole.GRAPH_LAUNCH: "launch",
    cuda_api.ApiRole.COPY: "launch",
    cuda_api.ApiRole.MEMSET: "launch",
    cuda_api.ApiRole.SYNC: "sync",
    cuda_api.ApiRole.ALLOCATION: "allocation",
}
_CALL_KINDS = sorted({"call", *_ROLES.values()})
_ROLE_KINDS = np.array([_CALL_KINDS.index(_ROLES.get(role, "call")) for role in cuda_api.ApiRole])
_MODULE = "nn.Module: "
AROUND = NEARLY_ALL
"""Of the frames that are open for this much of a stretch only the innermost is shown: the others say nothing of it."""


class Cutter(msgspec.Struct, frozen=True, dict=True):
    """Cuts any stretch out of a timeline."""

    timeline: Timeline
    launches: Launches
    ops: Ops
    kernels: Kernels
    host: HostActivity
    gaps: Gaps
    partition: Partition

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, ops: Ops, kernels: Kernels, host: HostActivity, gaps: Gaps, partition: Partition) -> Cutter:
        return cls(timeline, launches, ops, kernels, host, gaps, partition)

    def cut(self, start_us: float, end_us: float, most: int) -> Cut:
        """The stretch, with its longest `most` slices."""
        host = concatenated(self._host(start_us, end_us))
        host = _without_outer_frames(self._main_threads(host), start_us, end_us)
        rows = concatenated((host, self._gpu(start_us, end_us), self._idle(start_us, end_us)))
        left_out = max(len(rows) - most, 0)
        if left_out:
            rows = rows[np.argsort(-rows["dur"], kind="stable")[:most]]
        rows = rows[np.lexsort((-rows["dur"], rows["start"], rows["track"], rows["process"], rows["side"]))]
        begins = np.flatnonzero(np.r_[True, np.any([np.diff(rows[name]) != 0 for name in _LANE], axis=0)][: len(rows)])
        lane = np.repeat(np.arange(len(begins)), np.diff(np.r_[begins, len(rows)]))
        start, dur = rows["start"], rows["dur"]
        texts: Any = joined([rows["name"], rows["op"]])
        names, kinds = by_first_row(texts), by_first_row(rows["kind"])
        op = np.where(rows["op"] == "", -1, names[0][len(rows) :])
        return Cut(
            start_us=start_us,
            end_us=end_us,
            lanes=tuple(self._lane(*first) for first in zip(*(rows[name][begins].tolist() for name in _LANE), strict=True)),
            lane=lane,
            depth=_depth(lane, start, start + dur),
            slice_start_us=start,
            slice_dur_us=dur,
            kind=kinds[0],
            kinds=tuple(kinds[1]),
            name=names[0][: len(rows)],
            op=op,
            names=tuple(str(name) for name in names[1]),
            launched_by=_launchers(rows),
            left_out=left_out,
        )

    @cached_property
    def extent(self) -> tuple[float, float]:
        """From the first slice to the end of the last."""
        timeline = self.timeline
        frames = [f for f in (timeline.annotations, timeline.cpu_ops, timeline.api_calls, timeline.gpu_ops) if len(f)]
        ends = [float(f.ends.max()) for f in frames]
        return min((float(f["start_us"].min()) for f in frames), default=0.0), max(ends, default=0.0)

    def count(self, start_us: float, end_us: float) -> int:
        """About how many slices a stretch holds: those that begin in it."""
        return sum(int(np.diff(np.searchsorted(starts, [start_us, end_us]))[0]) for starts in self._starts)

    @cached_property
    def _starts(self) -> list[np.ndarray]:
        timeline = self.timeline
        frames = (timeline.annotations, timeline.cpu_ops, timeline.api_calls, timeline.overheads, timeline.os_calls, timeline.gpu_ops)
        python = timeline.python_calls
        shown = python["start_us"][self._shown_frames[python["name"].codes]]
        return [*(frame["start_us"] for frame in frames), shown, self.gaps.start_us]

    def _lane(self, side: int, process: int, track: int) -> Lane:
        if side == _IDLE:
            return Lane(f"GPU {process} idle", "idle", process, track)
        if side == _GPU:
            return Lane(f"GPU {process} stream {track}", "gpu", process, track)
        name = self._thread_names.get((process, track), "")
        # Kineto names a thread by its number: `thread 427 (python3)`.
        return Lane(name if str(track) in name else f"thread {track} {name}".rstrip(), "host", process, track)

    @cached_property
    def _thread_names(self) -> dict[tuple[int, int], str]:
        frame = self.timeline.threads
        return dict(zip(zip(frame["pid"].tolist(), frame["tid"].tolist(), strict=True), frame["name"], strict=True))

    def _main_threads(self, host: Table) -> Table:
        threads = Groups.by_keys(host["process"], host["track"])
        spent, names = threads.sums(us=host["dur"])["us"], [(int(host["process"][row]), int(host["track"][row])) for row in threads.first]
        best = sorted(range(len(names)), key=lambda thread: (names[thread] not in self.host.threads, -spent[thread], names[thread]))[:HOST_LANES]
        return host[np.isin(threads.of, best)] if len(best) < len(names) else host

    def _host(self, start_us: float, end_us: float) -> list[Table]:
        timeline = self.timeline
        calls = _rows_inside(timeline.api_calls, start_us, end_us)
        python = _rows_inside(timeline.python_calls, start_us, end_us)
        python = python[self._shown_frames[timeline.python_calls["name"].codes[python]]]
        return [
            _slices(timeline.annotations, _rows_inside(timeline.annotations, start_us, end_us), "annotation"),
            _slices(timeline.python_calls, python, "python"),
            _slices(timeline.cpu_ops, _rows_inside(timeline.cpu_ops, start_us, end_us), "op"),
            _slices(timeline.api_calls, calls, Categorical(_ROLE_KINDS[self.launches.roles[calls]], _CALL_KINDS), call=calls),
            _slices(timeline.overheads, _rows_inside(timeline.overheads, start_us, end_us), "profiler"),
            _slices(timeline.os_calls, _rows_inside(timeline.os_calls, start_us, end_us), "call"),
        ]

    @cached_property
    def _shown_frames(self) -> np.ndarray:
        """By name's code: frames of the user's program and modules; the framework's own would bury them."""
        names = self.timeline.python_calls["name"].categories
        return np.array([name.startswith(_MODULE) or user_frame(name) is not None for name in names], bool)

    def _gpu(self, start_us: float, end_us: float) -> Table:
        frame = self.timeline.gpu_ops
        rows = _rows_inside(frame, start_us, end_us)
        families = Categorical(self.kernels.family[rows], [family.value for family in FAMILIES])
        op, names = self.ops.of_gpu[rows], self.ops.categories
        return _frame(
            frame, rows, _GPU, families, "device", "stream",
            launcher=self.launches.call[rows],
            op=Categorical(np.where(op >= 0, self.ops.names[op], len(names)), [*names, ""]) if len(self.ops.names) else "",
        )  # fmt: skip

    def _idle(self, start_us: float, end_us: float) -> Table:
        gaps, main = self.gaps, self.partition.main
        rows = np.flatnonzero((gaps.start_us < end_us) & (gaps.end_us > start_us)) if main else np.empty(0, np.int64)
        cause = Categorical.of_texts(gaps.main_causes(rows))
        return _table(len(rows), _IDLE, main.device if main else 0, 0, gaps.start_us[rows], gaps.dur_us[rows], cause, cause)


_HOST, _IDLE, _GPU = range(3)
"""Sides, in the order in which their lanes are drawn."""
_LANE = ("side", "process", "track")
Texts = Categorical | str
"""A text of each slice, or that of all."""


def _rows_inside(frame: Table, start_us: float, end_us: float) -> Ints:
    """Rows of a table, sorted by start, that overlap the stretch."""
    start = frame["start_us"]
    last = int(np.searchsorted(start, end_us, side="left"))
    return np.flatnonzero(start[:last] + frame["dur_us"][:last] > start_us)


def _slices(frame: Table, rows: Ints, kind: Texts, call: Any = -1) -> Table:
    return _frame(frame, rows, _HOST, kind, "pid", "tid", call=call)


def _frame(frame: Table, rows: Ints, side: int, kind: Texts, process: str, track: str, **more: Any) -> Table:
    return _table(len(rows), side, frame[process][rows], frame[track][rows], frame["start_us"][rows], frame["dur_us"][rows], kind, frame["name"][rows], **more)


def _table(
    n: int, side: int, process: Any, track: Any, start: Floats, dur: Floats, kind: Texts, name: Categorical, op: Texts = "", call: Any = -1, launcher: Any = -1
) -> Table:
    """A row a slice; what is the same for all is given once."""
    numbers = {"side": side, "process": process, "track": track, "call": call, "launcher": launcher}
    texts = {"kind": kind, "name": name, "op": op}
    columns: dict[str, Any] = {of: np.broadcast_to(np.asarray(values, np.int64), n) for of, values in numbers.items()}
    columns |= {of: _column(values, n) for of, values in texts.items()}
    return Table({**columns, "start": start, "dur": dur})


def _column(values: Texts, n: int) -> Categorical:
    if isinstance(values, str):
        return Categorical(np.zeros(n, np.int8), [values])
    return values.without_unused() if n < len(values.categories) else values  # tables are joined by each text


def _without_outer_frames(host: Table, start_us: float, end_us: float) -> Table:
    """The slices less those Python frames that only lead to another one that is open for nearly all of their time."""
    shown = np.minimum(host["start"] + host["dur"], end_us) - np.maximum(host["start"], start_us)
    around = np.flatnonzero((host["kind"] == "python") & (shown >= AROUND * (end_us - start_us)))
    around = around[np.argsort(host["dur"][around], kind="stable")]
    innermost_of_thread = around[Groups.by_keys(host["process"][around], host["track"][around]).first]
    kept = np.ones(len(host), bool)
    kept[around] = False
    kept[innermost_of_thread] = True
    return host[kept]


def _depth(lane: Ints, start: np.ndarray, end: np.ndarray) -> Ints:
    """(n,) how many slices of its lane lie around each."""
    parents = nest(lane, start, end)
    return over_ancestors(parents, (parents >= 0).astype(np.int64), 0, np.add)


def _launchers(rows: Table) -> Ints:
    """(n,) position of the call that launched each slice, by the calls' rows in the trace."""
    call, launcher = rows["call"], rows["launcher"]
    at = np.flatnonzero(call >= 0)
    found = np.full(len(rows), -1, np.int64)
    if len(at):
        at = at[np.argsort(call[at], kind="stable")]
        place = np.minimum(np.searchsorted(call[at], launcher), len(at) - 1)
        known = (launcher >= 0) & (call[at[place]] == launcher)
        found[known] = at[place[known]]
    return found
