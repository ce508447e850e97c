"""Steps of a program of JAX that marks none: the calls of the one jitted function that does most of the work."""

from __future__ import annotations

import re

import numpy as np

from advisor.intervals import Floats
from advisor.recordings.timeline import Timeline
from advisor.views.groups import Groups
from advisor.views.trace.marks import MOST_WORK
from advisor.views.trace.repeats import FEWEST_REPEATS

_JITTED = re.compile(r"PjitFunction\((?P<name>.*)\)")
_MODULE = re.compile(r"(?:jit|pjit|pmap)_+")
_ODD = re.compile(r"\W+")


def may_mark(timeline: Timeline) -> np.ndarray | None:
    """Which annotations may be a program's own around its steps: those in which it calls jitted functions. XLA's runtime opens its ranges
    inside of such calls, and where buffers are freed. None if no jitted function is called."""
    calls, notes = timeline.cpu_ops, timeline.annotations
    if not len(calls):
        return None
    jitted = calls["name"].matching(_JITTED.fullmatch)
    if not jitted.any():
        return None
    chosen = np.zeros(len(notes), bool)
    start, end = notes.bounds()
    for thread in np.unique(calls["tid"][jitted]).tolist():
        at = np.sort(calls["start_us"][jitted & (calls["tid"] == thread)])
        mine = np.flatnonzero(notes["tid"] == thread)
        chosen[mine] = np.searchsorted(at, end[mine]) > np.searchsorted(at, start[mine])
    return chosen


def jitted_calls(timeline: Timeline) -> tuple[str, Floats, Floats] | None:
    """The function's name, and start and end of its calls; None if no function does most of the work, again and again on one thread."""
    name = _main_module(timeline)
    frame = timeline.cpu_ops
    if not name or not len(frame):
        return None
    found = {i: match["name"] for i, text in enumerate(frame["name"].categories) if (match := _JITTED.fullmatch(text)) and _alike(match["name"], name)}
    rows = np.flatnonzero(np.isin(frame["name"].codes, list(found)))
    if not found or len(np.unique(frame["tid"][rows])) != 1:
        return None
    start, end = frame.bounds(rows[np.argsort(frame["start_us"][rows], kind="stable")])
    # A call stands twice, once in Python and once below: the outer one is the call.
    outer = start >= np.r_[-np.inf, np.maximum.accumulate(end)[:-1]]
    return (next(iter(found.values())), start[outer], end[outer]) if outer.sum() >= FEWEST_REPEATS else None


def _main_module(timeline: Timeline) -> str:
    """The name of the compiled program that takes most of the GPU's time, "" if none does."""
    ops, compiled = timeline.gpu_ops, timeline.compiled_ops
    if not len(compiled) or not len(ops):
        return ""
    rows, dur = ops["compiled"], ops["dur_us"]
    programs = Groups.by_keys(compiled["module"].codes, compiled["program"]).of
    spent = np.bincount(programs[rows[rows >= 0]], weights=dur[rows >= 0], minlength=1)
    if spent.max() < MOST_WORK * float(dur.sum()):
        return ""
    return str(compiled["module"][int(np.argmax(programs == spent.argmax()))])


def _alike(function: str, module: str) -> bool:
    """Whether a program is compiled of a function: `jit_step` of `step`, `jit__lambda_` of `<lambda>`."""
    return _ODD.sub("_", function).strip("_") == _ODD.sub("_", _MODULE.sub("", module, count=1)).strip("_")
