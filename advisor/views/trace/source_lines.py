"""Where in the user's program a call was made: the innermost Python frame that is not the framework's.

Python frames are events of their own; torch 1.8 to 1.12 wrote them as text on the ops that they call, the innermost first.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property, lru_cache

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, innermost, over_ancestors
from advisor.knowledge.counts import EXAMINED
from advisor.knowledge.library_files import IN_LIBRARY
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Timeline
from advisor.report.finding import SourceLine
from advisor.views.trace.ops import Ops, thread_ids
from advisor.views.trace.python_frames import PythonFrames

_FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d{1,9})\): (?P<function>.*)$")
_LIBRARY = re.compile(IN_LIBRARY + r"|(^|/)torch/|^\.\.\.")
# The profiler cuts sys.path from file names, so the standard library's files look like the user's.
_LIBRARY_ROOTS = sys.stdlib_module_names | {"torch", "torchvision", "triton", "numpy", "functorch", "tqdm"}

_STRIDES = 5
"""Frames are skipped 32 at a time: a look-up at the maximum depth takes about 500 iterations, a usual look-up a few."""

OF_C = "<built-in "
"""How frames of functions of C are named."""

MOST_FRAMES = EXAMINED
"""Between a call and the user's line, those that are looked at: a library that goes deeper is some library all the same."""


@lru_cache(maxsize=65536)
def user_frame(name: str, scripts: frozenset[str] = frozenset()) -> SourceLine | None:
    """The file and line of a Python frame as the profiler names it, None for the framework's, a library's or a builtin. scripts: files that are
    the user's whatever they are called."""
    match = _FRAME.match(name)
    if not match or _LIBRARY.search(match["file"]):
        return None
    if match["file"] not in scripts and match["file"].split("/", 1)[0].removesuffix(".py") in _LIBRARY_ROOTS:
        return None
    return SourceLine(file=match["file"], line=int(match["line"]))


class Sources(msgspec.Struct, frozen=True, dict=True):
    """Python frames by thread; finds the frame that ran at a moment, or uses the stacks of ops if frames are no events.

    rows: by (pid, tid), rows of `python_calls` in order of start, outer frames first.
    """

    timeline: Timeline
    ops: Ops
    frames: PythonFrames
    rows: dict[tuple[int, int], Ints]

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops, frames: PythonFrames) -> Sources:
        frame = timeline.python_calls
        if not len(frame):
            return cls(timeline, ops, frames, {})
        threads = thread_ids(frame)
        order = _outer_first(threads, frame["start_us"], frame["dur_us"])
        bounds = np.flatnonzero(np.diff(threads[order])) + 1
        groups = np.split(order, bounds)
        pid, tid = frame["pid"], frame["tid"]
        return cls(timeline, ops, frames, {(int(pid[g[0]]), int(tid[g[0]])): g for g in groups})

    @cached_property
    def _starts(self) -> dict[tuple[int, int], Floats]:
        """Starts of `rows`, so that a look-up costs a binary search alone."""
        start = self.timeline.python_calls["start_us"]
        return {thread: start[rows] for thread, rows in self.rows.items()}

    @cached_property
    def _end(self) -> Floats:
        frame = self.timeline.python_calls
        return frame["start_us"] + frame["dur_us"]

    @cached_property
    def _far(self) -> tuple[Ints, Floats]:
        """For each frame the one `2 ** _STRIDES` calls further out, -1 for none, and when the last of those before it ends."""
        n = len(self._end)
        out, end = np.r_[np.where(self.frames.callers.to >= 0, self.frames.callers.to, n), n], np.r_[self._end, -np.inf]
        for _ in range(_STRIDES):
            end, out = np.maximum(end, end[out]), out[out]
        return np.where(out < n, out, -1)[:n], end[:n]

    # As arrays and lists: taking one value out of a table costs tens of microseconds.
    @cached_property
    def _names(self) -> tuple[list[str], Ints]:
        names = self.timeline.python_calls["name"]
        return list(map(str, names.categories)), names.codes

    @cached_property
    def _users(self) -> Ints:
        """(n_python,) the innermost of the user's frames that each is, or is called from; -1 for none."""
        names, codes = self._names
        of_user = np.array([user_frame(name, self._scripts) is not None for name in names], bool)
        rows = np.arange(len(codes))
        return over_ancestors(self.frames.callers.to, np.where(of_user[codes], rows, -1), -1, innermost)

    @cached_property
    def _calls(self) -> tuple[Ints, Ints, Floats]:
        """Process, thread and start of each runtime call."""
        return _placed(self.timeline.api_calls)

    @cached_property
    def _ops(self) -> tuple[Ints, Ints, Floats]:
        return _placed(self.timeline.cpu_ops)

    @cached_property
    def _numbered(self) -> Ints:
        """(n_cpu,) each op, or the innermost around it, that autograd gave a number; -1 for none."""
        numbered = self.timeline.cpu_ops["sequence"] >= 0
        return over_ancestors(self.ops.parent, np.where(numbered, np.arange(len(numbered)), -1), -1, innermost)

    @cached_property
    def _elsewhere(self) -> Ints:
        """(n_cpu,) the first op with the number of each that is of another thread; -1 for none."""
        frame = self.timeline.cpu_ops
        sequence, tid = frame["sequence"], frame["tid"]
        order = np.argsort(sequence, kind="stable")
        begins = np.flatnonzero(np.r_[True, np.diff(sequence[order]) != 0])
        first = np.repeat(order[begins], np.diff(np.r_[begins, len(order)]))
        # Of each number the first op, and the first of another thread than that one's.
        other, found = np.full(len(order), -1, np.int64), np.full(len(order), -1, np.int64)
        differ = np.flatnonzero(tid[order] != tid[first])[::-1]
        other[first[differ]] = order[differ]
        found[order] = np.where(tid[order] != tid[first], first, other[first])
        return found

    @cached_property
    def _stacks(self) -> tuple[list[str], Ints]:
        """The texts of all stacks, and which one each op has."""
        stacks = self.timeline.cpu_ops["call_stack"]
        return list(map(str, stacks.categories)), stacks.codes

    @cached_property
    def _stacked(self) -> Ints:
        """(n_cpu,) each op, or the innermost around it, that has a stack; -1 for none."""
        texts, codes = self._stacks
        has = np.array([*map(bool, texts), False], bool)[codes]
        return over_ancestors(self.ops.parent, np.where(has, np.arange(len(has)), -1), -1, innermost)

    @cached_property
    def _stack_lines(self) -> list[SourceLine | None]:
        """The user's line of each of those texts."""
        frames = [text.split(";") for text in self._stacks[0]]
        scripts = frozenset(match["file"] for stack in frames if stack[-1].endswith("): <module>") and (match := _FRAME.match(stack[-1])))
        return [next((line for name in stack if (line := user_frame(name, scripts))), None) for stack in frames]

    @cached_property
    def recorded(self) -> bool:
        """Whether there are frames or stacks to look in."""
        return bool(self.rows) or any(self._stacks[0])

    @cached_property
    def _scripts(self) -> frozenset[str]:
        """The files that Python was started with: their module's frame has none around it, while an import is made by another."""
        names, codes = self._names
        modules = np.array([name.endswith("): <module>") for name in names], bool)
        outermost = np.flatnonzero(modules[codes] & (self.frames.callers.to < 0)) if modules.any() else codes[:0]
        return frozenset(match["file"] for code in np.unique(codes[outermost]).tolist() if (match := _FRAME.match(names[code])))

    def line_of_call(self, call: int) -> SourceLine | None:
        """The user's line that made a runtime call; for a call of a backward pass, the line of its forward op."""
        if call < 0:
            return None
        op = int(self.ops.of_call[call])
        return self._line_at(*(column[call].item() for column in self._calls)) or self._stack_line(op) or self._forward_line(op)

    def line_of_op(self, op: int) -> SourceLine | None:
        """The user's line that called an op; for one of a backward pass, the line of its forward op."""
        pid, tid, start = self._ops
        return self._line_at(int(pid[op]), int(tid[op]), float(start[op])) or self._stack_line(op) or self._forward_line(op)

    @cached_property
    def tells_c(self) -> bool:
        """Whether calls of functions of C are among the Python frames: what no frame covers is then Python's own."""
        return any(name.startswith(OF_C) for name in self._names[0])

    def spent_us(self, thread: tuple[int, int], start_us: float, end_us: float) -> dict[tuple[SourceLine, str], float]:
        """Time of a thread in a window by the user's function: its line and its name. It includes calls out of the user's code, also those
        without an op, such as numpy's."""
        rows = self.rows.get(thread)
        if rows is None:
            return {}
        begin, to = self.timeline.python_calls["start_us"], self.frames.callers.to
        whole = np.maximum(np.minimum(self._end, end_us) - np.maximum(begin, start_us), 0.0)
        own = whole.copy()
        called = rows[to[rows] >= 0]
        np.subtract.at(own, to[called], whole[called])
        found: dict[tuple[SourceLine, str], float] = defaultdict(float)
        names, codes = self._names
        mine = rows[self._users[rows] >= 0]
        spent = np.bincount(codes[self._users[mine]], own[mine], len(names))
        for code in np.flatnonzero(spent > 0).tolist():
            if (line := user_frame(names[code], self._scripts)) and (match := _FRAME.match(names[code])):
                found[line, match["function"]] += float(spent[code])
        return found

    def frames_of_call(self, call: int) -> tuple[str, ...]:
        """Names of the Python frames around a runtime call, from the innermost to the user's; none if frames are no events."""
        row = self._running(*(column[call].item() for column in self._calls))
        user = int(self._users[row]) if row >= 0 else -1
        found: list[str] = []
        names, codes = self._names
        while row >= 0 and len(found) < MOST_FRAMES:
            found.append(names[codes[row]])
            row = int(self.frames.callers.to[row]) if row != user else -1
        return tuple(found)

    def most_common(self, calls: Iterable[int]) -> SourceLine | None:
        """The line that made most of these calls, None if no stacks were recorded."""
        if not self.recorded:
            return None
        lines = Counter(line for call in calls if (line := self.line_of_call(int(call))))
        return lines.most_common(1)[0][0] if lines else None

    def _forward_line(self, op: int) -> SourceLine | None:
        numbered = int(self._numbered[op]) if op >= 0 else -1
        forward = int(self._elsewhere[numbered]) if numbered >= 0 else -1
        if forward < 0:
            return None
        pid, tid, start = self._ops
        return self._line_at(int(pid[forward]), int(tid[forward]), float(start[forward])) or self._stack_line(forward)

    def _stack_line(self, op: int) -> SourceLine | None:
        """The line by the stack of the op, or of the innermost one around it that has any."""
        if self.rows or not self.recorded or op < 0:
            return None
        stacked = int(self._stacked[op])
        return self._stack_lines[self._stacks[1][stacked]] if stacked >= 0 else None

    def _line_at(self, pid: int, tid: int, time_us: float) -> SourceLine | None:
        """The line of the innermost of the user's frames around a moment: what called a frame that runs does so too."""
        row = self._running(pid, tid, time_us)
        user = int(self._users[row]) if row >= 0 else -1
        names, codes = self._names
        return user_frame(names[codes[user]], self._scripts) if user >= 0 else None

    def _running(self, pid: int, tid: int, time_us: float) -> int:
        """The row of the innermost frame around a moment, -1 if none is."""
        mine = self.rows.get((pid, tid))
        if mine is None:
            return -1
        i = int(np.searchsorted(self._starts[pid, tid], time_us, side="right")) - 1
        row = int(mine[i]) if i >= 0 else -1
        # The latest to begin, or the innermost around it, that has not returned: of many that have, most are passed at once.
        out, end_of_all = self._far
        while row >= 0 and end_of_all[row] <= time_us:
            row = int(out[row])
        while row >= 0 and self._end[row] <= time_us:
            row = int(self.frames.callers.to[row])
        return row


def _placed(frame: Table) -> tuple[Ints, Ints, Floats]:
    return frame["pid"], frame["tid"], frame["start_us"]


def _outer_first(threads: Ints, starts: Floats, durations: Floats) -> Ints:
    """Rows by thread, then start, of those that start together the longest first. Tables are sorted by start: only ties are sorted anew."""
    order = np.argsort(threads.astype(np.int16) if threads.max() < 1 << 15 else threads, kind="stable")  # of 16 bits it is a radix sort
    together = (np.diff(starts[order]) == 0) & (np.diff(threads[order]) == 0)
    if together.any():
        tied = np.flatnonzero(np.r_[together, False] | np.r_[False, together])
        rows, group = order[tied], np.cumsum(np.r_[True, ~together])[tied]
        order[tied] = rows[np.lexsort((-durations[rows], group))]
    return order
