"""Which modules, and which line of the program, work belongs to, where those were recorded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.intervals import Floats, Ints, nest
from advisor.knowledge.counts import DISTINCT
from advisor.knowledge.op_tokens import AUTOGRAD
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Timeline
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops, thread_ids
from advisor.views.trace.source_lines import user_frame

_MODULE = "nn.Module: "

MOST_MODULES = DISTINCT
"""Depth of distinct modules in a place; deeper modules count as part of the last. Models nest about 20 deep. Paths of thousands of modules at thousands
of places would take quadratic space.
"""


class Place(NamedTuple):
    """Modules, outermost first and at most `MOST_MODULES`, and the innermost line of the program, `file.py:12`."""

    modules: tuple[str, ...] = ()
    line: str = ""


def places_of_gpu(timeline: Timeline, ops: Ops, launches: Launches, inside: Ints, outer: Ints) -> tuple[list[Place], Ints]:
    """Places (the empty place first), and the place of each GPU op (rows `inside`, outermost op `outer`). Backward ops take that of their forward op.
    Compiled programs have paths of functions and named scopes.
    """
    if (timeline.gpu_ops["compiled"] >= 0).any():
        return _scopes(timeline, inside)
    calls = timeline.api_calls
    if not len(calls) or not len(timeline.python_calls):
        return [Place()], np.broadcast_to(np.int64(0), len(inside))
    call = launches.call[inside]
    forward = _forward_ops(timeline, ops)
    at = np.where(outer >= 0, forward[outer], -1) if len(forward) else np.full(len(inside), -1)
    # What is looked up: the launch, or the forward op of a backward one.
    pid, tid = calls["pid"][call], calls["tid"][call]
    time = np.where(call >= 0, launches.start_us[inside], -np.inf)
    return _places(timeline, *_forward(timeline, at, pid, tid, time))


def places_of_ops(timeline: Timeline, ops: Ops, rows: Ints) -> tuple[list[Place], Ints]:
    """The same for framework ops by their rows."""
    host = timeline.cpu_ops
    outer = ops.outermost[rows] if len(rows) else rows
    columns = (host[name][rows] for name in ("pid", "tid", "start_us"))
    return _places(timeline, *_forward(timeline, _forward_ops(timeline, ops)[outer], *columns))


def places_of_calls(timeline: Timeline, rows: Ints) -> tuple[list[Place], Ints]:
    """The same for calls by their rows."""
    calls = timeline.api_calls
    return _places(timeline, *(calls[name][rows] for name in ("pid", "tid", "start_us")))


def _forward(timeline: Timeline, at: Ints, pid: Ints, tid: Ints, time: Floats) -> tuple[Ints, Ints, Floats]:
    host = timeline.cpu_ops
    if not len(host):
        return pid, tid, time
    columns = zip(("pid", "tid", "start_us"), (pid, tid, time), strict=True)
    pid, tid, time = (np.where(at >= 0, host[name][at], own) for name, own in columns)
    return pid, tid, time


def _places(timeline: Timeline, pid: Ints, tid: Ints, time: Floats) -> tuple[list[Place], Ints]:
    """The place of each moment of a thread."""
    python = timeline.python_calls
    names = [str(name) for name in python["name"].categories]
    lines = [f"{found.file}:{found.line}" if (found := user_frame(name)) else "" for name in names]
    told = np.array([name.startswith(_MODULE) or bool(line) for name, line in zip(names, lines, strict=True)], bool)
    codes = python["name"].codes
    frames = np.flatnonzero(told[codes]) if len(python) else np.empty(0, np.int64)
    if not len(frames) or not np.isfinite(time).any():
        return [Place()], np.zeros(len(time), np.int64)
    around = python[frames]
    group = thread_ids(around, Table({"pid": pid, "tid": tid}))
    start = np.r_[around["start_us"], np.nan_to_num(time, neginf=-1e300)]
    parents = nest(group, start, start + np.r_[around["dur_us"], np.zeros(len(time))])
    asked, which = np.unique(parents[len(frames) :], return_inverse=True)
    places: dict[Place, int] = {Place(): 0}
    place_of = _walked(asked, parents, codes[frames], names, lines)
    number = [places.setdefault(place_of[row], len(places)) for row in asked.tolist()]
    return list(places), np.array(number, np.int64)[which]


def _walked(asked: Ints, parents: Ints, codes: Ints, names: list[str], lines: list[str]) -> dict[int, Place]:
    """The place of each frame that is asked for, and of all around them: each is come by once. -1 is no frame.

    names, lines: by a frame's code.
    """
    found = {-1: Place()}
    for row in asked.tolist():
        below = []
        while row not in found:
            below.append(row)
            row = int(parents[row])
        for inner in reversed(below):
            modules, line = found[row]
            code = int(codes[inner])
            if names[code].startswith(_MODULE) and len(modules) < MOST_MODULES:
                modules = (*modules, names[code].removeprefix(_MODULE))
            found[inner] = Place(modules, lines[code] or line)
            row = inner
    return found


def _scopes(timeline: Timeline, inside: Ints) -> tuple[list[Place], Ints]:
    compiled = timeline.compiled_ops
    places: dict[Place, int] = {Place(): 0}
    of_row = [
        places.setdefault(Place(tuple(scope.split("/")) if scope else (), f"{file}:{line}" if file else ""), len(places))
        for scope, file, line in zip(compiled["scope"], compiled["file"], compiled["line"].tolist(), strict=True)
    ]
    # The last stands for ops of which nothing is known: their row is -1.
    return list(places), np.array([*of_row, 0], np.int64)[timeline.gpu_ops["compiled"][inside]]


def _forward_ops(timeline: Timeline, ops: Ops) -> Ints:
    """(n_cpu,) for each outermost backward op the latest forward op before it with its sequence number, -1 where none."""
    frame = timeline.cpu_ops
    found = np.full(len(frame), -1, np.int64)
    is_backward = frame["name"].matching(lambda name: name.startswith(AUTOGRAD))
    if not is_backward.any():
        return found
    sequence = frame["sequence"]
    forward = np.flatnonzero(~is_backward[ops.outermost] & (sequence >= 0))
    wanted = np.flatnonzero(is_backward & (sequence >= 0))
    # Rows stand in order of time, so a stable sort by sequence keeps the latest before each last.
    forward = forward[np.argsort(sequence[forward], kind="stable")]
    keys = sequence[forward].astype(np.float64) * len(frame) + forward
    place = np.searchsorted(keys, sequence[wanted].astype(np.float64) * len(frame) + wanted) - 1
    known = (place >= 0) & (sequence[forward[np.maximum(place, 0)]] == sequence[wanted]) if len(forward) else np.zeros(len(wanted), bool)
    found[wanted[known]] = forward[place[known]]
    return found
