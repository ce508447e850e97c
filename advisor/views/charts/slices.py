"""A stretch of the trace as slices on lanes, as a viewer shows it: host threads, GPU streams, idle time by cause."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from advisor.intervals import Ints, nest, over_ancestors
from advisor.knowledge import cuda_api
from advisor.knowledge.idle import CAUSES
from advisor.recordings.timeline import Timeline
from advisor.report.charts import Cut, Lane
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
_MODULE = "nn.Module: "
AROUND = 0.85
"""Of the frames that are open for this much of a stretch only the innermost is shown: the others say nothing of it."""


@dataclass(frozen=True)
class Cutter:
    """Cuts any stretch out of a timeline."""

    timeline: Timeline
    launches: Launches
    ops: Ops
    kernels: Kernels
    host: HostActivity
    gaps: Gaps
    partition: Partition

    @classmethod
    def build(
        cls,
        timeline: Timeline,
        launches: Launches,
        ops: Ops,
        kernels: Kernels,
        host: HostActivity,
        gaps: Gaps,
        partition: Partition,
    ) -> Cutter:
        return cls(timeline, launches, ops, kernels, host, gaps, partition)

    def cut(self, start_us: float, end_us: float, most: int) -> Cut:
        """The stretch, with its longest `most` slices."""
        host = pd.concat([part for part in self._host(start_us, end_us) if len(part)] or [_EMPTY], ignore_index=True)
        host = _without_outer_frames(self._main_threads(host), start_us, end_us)
        parts = [part for part in (host, self._gpu(start_us, end_us), self._idle(start_us, end_us)) if len(part)]
        rows = pd.concat(parts or [_EMPTY], ignore_index=True)
        left_out = max(len(rows) - most, 0)
        if left_out:
            rows = rows.nlargest(most, "dur", keep="first")
        side = rows["side"].map({"host": 0, "idle": 1, "gpu": 2}).to_numpy(np.int64)
        lanes = rows[["side", "process", "track"]].assign(order=side)
        lane = lanes.groupby(["order", "process", "track"], sort=True).ngroup().to_numpy()
        rows = rows.assign(lane=lane).sort_values(["lane", "start", "dur"], ascending=[True, True, False], kind="stable")
        rows = rows.reset_index(drop=True)
        firsts = rows.drop_duplicates("lane")
        start, dur = rows["start"].to_numpy(float), rows["dur"].to_numpy(float)
        names, kinds = pd.factorize(np.r_[rows["name"].to_numpy(object), rows["op"].to_numpy(object)]), pd.factorize(rows["kind"])
        op = np.where((rows["op"] == "").to_numpy(), -1, names[0][len(rows) :])
        return Cut(
            start_us=start_us,
            end_us=end_us,
            lanes=tuple(self._lane(*lane) for lane in zip(firsts["side"], firsts["process"], firsts["track"], strict=True)),
            lane=rows["lane"].to_numpy(np.int64),
            depth=_depth(rows["lane"].to_numpy(np.int64), start, start + dur),
            slice_start_us=start,
            slice_dur_us=dur,
            kind=kinds[0].astype(np.int64),
            kinds=tuple(kinds[1]),
            name=names[0][: len(rows)].astype(np.int64),
            op=op.astype(np.int64),
            names=tuple(str(name) for name in names[1]),
            launched_by=_launchers(rows),
            left_out=left_out,
        )

    @cached_property
    def extent(self) -> tuple[float, float]:
        """From the first slice to the end of the last."""
        timeline = self.timeline
        frames = [f for f in (timeline.annotations, timeline.cpu_ops, timeline.api_calls, timeline.gpu_ops) if len(f)]
        ends = [float((f["start_us"] + f["dur_us"]).max()) for f in frames]
        return min((float(f["start_us"].min()) for f in frames), default=0.0), max(ends, default=0.0)

    def count(self, start_us: float, end_us: float) -> int:
        """About how many slices a stretch holds: those that begin in it."""
        return sum(int(np.diff(np.searchsorted(starts, [start_us, end_us]))[0]) for starts in self._starts)

    @cached_property
    def _starts(self) -> list[np.ndarray]:
        timeline = self.timeline
        frames = (
            timeline.annotations,
            timeline.cpu_ops,
            timeline.api_calls,
            timeline.overheads,
            timeline.os_calls,
            timeline.gpu_ops,
        )
        python = timeline.python_calls
        shown = python["start_us"].to_numpy()[self._shown_frames[python["name"].cat.codes.to_numpy()]]
        return [*(frame["start_us"].to_numpy() for frame in frames), shown, self.gaps.start_us]

    def _lane(self, side: Any, process: int, track: int) -> Lane:
        if side == "idle":
            return Lane(f"GPU {process} idle", "idle", process, track)
        if side == "gpu":
            return Lane(f"GPU {process} stream {track}", "gpu", process, track)
        name = self._thread_names.get((process, track), "")
        # Kineto names a thread by its number: `thread 427 (python3)`.
        return Lane(name if str(track) in name else f"thread {track} {name}".rstrip(), "host", process, track)

    @cached_property
    def _thread_names(self) -> dict[tuple[int, int], str]:
        frame = self.timeline.threads
        return dict(zip(zip(frame["pid"].tolist(), frame["tid"].tolist(), strict=True), frame["name"].astype(str), strict=True))

    def _main_threads(self, host: pd.DataFrame) -> pd.DataFrame:
        spent = host.groupby(["process", "track"])["dur"].sum()
        best = sorted(spent.index, key=lambda thread: (thread not in self.host.threads, -spent[thread]))[:HOST_LANES]
        kept: pd.DataFrame = host[pd.MultiIndex.from_frame(host[["process", "track"]]).isin(best)] if len(best) < len(spent) else host
        return kept

    def _host(self, start_us: float, end_us: float) -> list[pd.DataFrame]:
        timeline = self.timeline
        roles = np.array([_ROLES.get(role, "call") for role in cuda_api.ApiRole], object)
        calls = _rows_inside(timeline.api_calls, start_us, end_us)
        python = _rows_inside(timeline.python_calls, start_us, end_us)
        python = python[self._shown_frames[timeline.python_calls["name"].cat.codes.to_numpy()[python]]]
        return [
            _slices(timeline.annotations, _rows_inside(timeline.annotations, start_us, end_us), "annotation"),
            _slices(timeline.python_calls, python, "python"),
            _slices(timeline.cpu_ops, _rows_inside(timeline.cpu_ops, start_us, end_us), "op"),
            _slices(timeline.api_calls, calls, roles[self.launches.roles[calls]], call=calls),
            _slices(timeline.overheads, _rows_inside(timeline.overheads, start_us, end_us), "profiler"),
            _slices(timeline.os_calls, _rows_inside(timeline.os_calls, start_us, end_us), "call"),
        ]

    @cached_property
    def _shown_frames(self) -> np.ndarray:
        """By name's code: frames of the user's program and modules; the framework's own would bury them."""
        names = self.timeline.python_calls["name"].cat.categories
        return np.array([name.startswith(_MODULE) or user_frame(name) is not None for name in names], bool)

    def _gpu(self, start_us: float, end_us: float) -> pd.DataFrame:
        frame = self.timeline.gpu_ops
        rows = _rows_inside(frame, start_us, end_us)
        families = np.array([family.value for family in FAMILIES], object)
        op = self.ops.of_gpu[rows]
        names = np.array([*self.ops.categories, ""], object)
        return _frame(
            frame, rows, "gpu", families[self.kernels.family[rows]], "device", "stream",
            launcher=self.launches.call[rows],
            op=names[np.where(op >= 0, self.ops.names[op], -1)] if len(self.ops.names) else "",
        )  # fmt: skip

    def _idle(self, start_us: float, end_us: float) -> pd.DataFrame:
        gaps, main = self.gaps, self.partition.main
        rows = np.flatnonzero((gaps.start_us < end_us) & (gaps.end_us > start_us))
        if main is None or not len(rows):
            return _EMPTY
        cause = np.array(CAUSES, object)[gaps.causes.to_numpy()[rows].argmax(axis=1)]
        data = {"side": "idle", "process": main.device, "track": 0, "start": gaps.start_us[rows], "dur": gaps.dur_us[rows]}
        return pd.DataFrame({**data, "kind": cause, "name": cause, "op": "", "call": -1, "launcher": -1})


_EMPTY = pd.DataFrame(columns=["side", "process", "track", "start", "dur", "kind", "name", "op", "call", "launcher"])


def _rows_inside(frame: pd.DataFrame, start_us: float, end_us: float) -> Ints:
    """Rows of a table, sorted by start, that overlap the stretch."""
    start = frame["start_us"].to_numpy()
    last = int(np.searchsorted(start, end_us, side="left"))
    return np.flatnonzero(start[:last] + frame["dur_us"].to_numpy()[:last] > start_us)


def _slices(frame: pd.DataFrame, rows: Ints, kind: Any, call: Any = -1) -> pd.DataFrame:
    return _frame(frame, rows, "host", kind, "pid", "tid", call=call)


def _frame(
    frame: pd.DataFrame,
    rows: Ints,
    side: str,
    kind: Any,
    process: str,
    track: str,
    op: Any = "",
    call: Any = -1,
    launcher: Any = -1,
) -> pd.DataFrame:
    names = np.asarray(frame["name"].cat.categories, object)
    data = {
        "side": side,
        "process": frame[process].to_numpy()[rows],
        "track": frame[track].to_numpy()[rows],
        "start": frame["start_us"].to_numpy()[rows],
        "dur": frame["dur_us"].to_numpy()[rows],
        "kind": kind,
        # As objects: pandas' own strings refuse the lone surrogates that a trace may hold.
        "name": pd.Series(names[frame["name"].cat.codes.to_numpy()[rows]] if len(rows) else [], dtype=object),
        "op": op,
        "call": call,
        "launcher": launcher,
    }
    return pd.DataFrame(data, index=np.arange(len(rows)))


def _without_outer_frames(host: pd.DataFrame, start_us: float, end_us: float) -> pd.DataFrame:
    """The slices less those Python frames that only lead to another one that is open for nearly all of their time."""
    shown = np.minimum(host["start"] + host["dur"], end_us) - np.maximum(host["start"], start_us)
    around = host[(host["kind"] == "python") & (shown >= AROUND * (end_us - start_us))].sort_values("dur", kind="stable")
    kept: pd.DataFrame = host.drop(around.index[around.duplicated(["process", "track"])])
    return kept


def _depth(lane: Ints, start: np.ndarray, end: np.ndarray) -> Ints:
    """(n,) how many slices of its lane lie around each."""
    parents = nest(lane, start, end)
    return over_ancestors(parents, (parents >= 0).astype(np.int64), 0, np.add)


def _launchers(rows: pd.DataFrame) -> Ints:
    """(n,) position of the call that launched each slice, by the calls' rows in the trace."""
    call, launcher = rows["call"].to_numpy(np.int64), rows["launcher"].to_numpy(np.int64)
    at = np.flatnonzero(call >= 0)
    found = np.full(len(rows), -1, np.int64)
    if len(at):
        at = at[np.argsort(call[at], kind="stable")]
        place = np.minimum(np.searchsorted(call[at], launcher), len(at) - 1)
        known = (launcher >= 0) & (call[at[place]] == launcher)
        found[known] = at[place[known]]
    return found
