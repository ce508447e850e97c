"""Which module each GPU op belongs to, where modules were recorded."""

from __future__ import annotations

import numpy as np
import pandas as pd

from advisor.intervals import Ints, nest
from advisor.timeline import Timeline
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import AUTOGRAD, Ops, thread_ids

_MODULE = "nn.Module: "
def modules_of(timeline: Timeline, ops: Ops, launches: Launches, inside: Ints, outer: Ints) -> tuple[list[tuple[str, ...]], Ints]:
    """Paths of modules, the empty one first, and for each GPU op which. Backward ops are found by their forward op.

    What a compiler made of a program has paths of its own: functions and named scopes.
    """
    if (timeline.gpu_ops["compiled"] >= 0).any():
        return _scopes(timeline, inside)
    python, calls = timeline.python_calls, timeline.api_calls
    names = python["name"].cat.categories
    is_module = np.array([name.startswith(_MODULE) for name in names], bool)
    frames = np.flatnonzero(is_module[python["name"].cat.codes.to_numpy()]) if len(python) else np.empty(0, np.int64)
    call = launches.call[inside]
    if not len(frames) or not (call >= 0).any():
        return [()], np.zeros(len(inside), np.int64)
    around, forward = python.iloc[frames], _forward_ops(timeline, ops)
    at = np.where(outer >= 0, forward[outer], -1) if len(forward) else np.full(len(inside), -1)
    # What is looked up: the launch, or the forward op of a backward one.
    pid, tid = calls["pid"].to_numpy()[call], calls["tid"].to_numpy()[call]
    time = np.where(call >= 0, launches.start_us[inside], -np.inf)
    if len(timeline.cpu_ops):
        first = timeline.cpu_ops
        pid = np.where(at >= 0, first["pid"].to_numpy()[at], pid)
        tid = np.where(at >= 0, first["tid"].to_numpy()[at], tid)
        time = np.where(at >= 0, first["start_us"].to_numpy()[at], time)
    group = thread_ids(around, pd.DataFrame({"pid": pid, "tid": tid}))
    start = np.r_[around["start_us"].to_numpy(), np.nan_to_num(time, neginf=-1e300)]
    parents = nest(group, start, start + np.r_[around["dur_us"].to_numpy(), np.zeros(len(inside))])
    texts = [str(name).removeprefix(_MODULE) for name in around["name"]]
    paths: dict[tuple[str, ...], int] = {(): 0}
    of_frame: dict[int, int] = {-1: 0}
    for row in np.unique(parents[len(frames) :]).tolist():
        path, up = [], row
        while up >= 0:
            path.append(texts[up])
            up = int(parents[up])
        of_frame[row] = paths.setdefault(tuple(reversed(path)), len(paths))
    return list(paths), np.array([of_frame[row] for row in parents[len(frames) :].tolist()], np.int64)


def _scopes(timeline: Timeline, inside: Ints) -> tuple[list[tuple[str, ...]], Ints]:
    scopes = [str(scope) for scope in timeline.compiled_ops["scope"]]
    paths: dict[tuple[str, ...], int] = {(): 0}
    of_row = [paths.setdefault(tuple(scope.split("/")) if scope else (), len(paths)) for scope in scopes]
    # The last stands for ops of which nothing is known: their row is -1.
    return list(paths), np.array([*of_row, 0], np.int64)[timeline.gpu_ops["compiled"].to_numpy()[inside]]


def _forward_ops(timeline: Timeline, ops: Ops) -> Ints:
    """(n_cpu,) for each outermost backward op the latest forward op before it with its sequence number, -1 where none."""
    frame = timeline.cpu_ops
    found = np.full(len(frame), -1, np.int64)
    backward = np.array([name.startswith(AUTOGRAD) for name in frame["name"].cat.categories], bool)
    if not backward.any():
        return found
    is_backward = backward[frame["name"].cat.codes.to_numpy()]
    sequence = frame["sequence"].to_numpy()
    forward = np.flatnonzero(~is_backward[ops.outermost] & (sequence >= 0))
    wanted = np.flatnonzero(is_backward & (sequence >= 0))
    # Rows stand in order of time, so a stable sort by sequence keeps the latest before each last.
    forward = forward[np.argsort(sequence[forward], kind="stable")]
    keys = sequence[forward].astype(np.float64) * len(frame) + forward
    place = np.searchsorted(keys, sequence[wanted].astype(np.float64) * len(frame) + wanted) - 1
    known = (
        (place >= 0) & (sequence[forward[np.maximum(place, 0)]] == sequence[wanted])
        if len(forward)
        else np.zeros(len(wanted), bool)
    )
    found[wanted[known]] = forward[place[known]]
    return found
