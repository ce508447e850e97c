"""Where in the user's program a call was made: the innermost Python frame that is not the framework's.

Python frames are events of their own; torch 1.8 to 1.12 wrote them as text on the ops that they call, the innermost first.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

from advisor.intervals import Floats, Ints, nest
from advisor.knowledge.library_files import IN_LIBRARY
from advisor.recordings.timeline import Timeline
from advisor.report.finding import SourceLine
from advisor.views.trace.ops import Ops, thread_ids

_FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d{1,9})\): (?P<function>.*)$")
_LIBRARY = re.compile(IN_LIBRARY + r"|(^|/)torch/|^\.\.\.")
# The profiler cuts sys.path from file names, so the standard library's files look like the user's.
_LIBRARY_ROOTS = sys.stdlib_module_names | {"torch", "torchvision", "triton", "numpy", "functorch", "tqdm"}


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


@dataclass(frozen=True)
class Sources:
    """Python frames by thread; answers which one was running at a moment, or by the stacks of ops where frames are no events.

    rows: by (pid, tid), rows of `python_calls` in order of start, outer frames first.
    """

    timeline: Timeline
    ops: Ops
    rows: dict[tuple[int, int], Ints]

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops) -> Sources:
        frame = timeline.python_calls
        if not len(frame):
            return cls(timeline, ops, {})
        threads = thread_ids(frame)
        order = _outer_first(threads, frame["start_us"].to_numpy(), frame["dur_us"].to_numpy())
        bounds = np.flatnonzero(np.diff(threads[order])) + 1
        groups = np.split(order, bounds)
        pid, tid = frame["pid"].to_numpy(), frame["tid"].to_numpy()
        return cls(timeline, ops, {(int(pid[g[0]]), int(tid[g[0]])): g for g in groups})

    @cached_property
    def _times(self) -> tuple[Floats, Floats]:
        frame = self.timeline.python_calls
        start = frame["start_us"].to_numpy()
        return start, start + frame["dur_us"].to_numpy()

    @cached_property
    def _starts(self) -> dict[tuple[int, int], Floats]:
        """Starts of `rows`, so that a look-up costs a binary search alone."""
        return {thread: self._times[0][rows] for thread, rows in self.rows.items()}

    # As arrays and lists: taking one value out of a table costs tens of microseconds.
    @cached_property
    def _names(self) -> tuple[list[str], Ints]:
        names = self.timeline.python_calls["name"].cat
        return list(map(str, names.categories)), names.codes.to_numpy()

    @cached_property
    def _calls(self) -> tuple[Ints, Ints, Floats]:
        """Process, thread and start of each runtime call."""
        return _placed(self.timeline.api_calls)

    @cached_property
    def _ops(self) -> tuple[Ints, Ints, Floats]:
        return _placed(self.timeline.cpu_ops)

    @cached_property
    def _sequences(self) -> tuple[Ints, Ints, Ints]:
        """The number of each op that autograd runs backwards, the ops in order of it, and it in that order."""
        sequence = self.timeline.cpu_ops["sequence"].to_numpy()
        order = np.argsort(sequence, kind="stable")
        return sequence, order, sequence[order]

    @cached_property
    def _parents(self) -> Ints:
        """The frame around each: as the profiler recorded it, by time where it did not."""
        frame = self.timeline.python_calls
        parent_id, python_id = frame["parent_id"].to_numpy(), frame["python_id"].to_numpy()
        if not (parent_id >= 0).any():
            return nest(thread_ids(frame), *self._times)
        order = np.argsort(python_id, kind="stable")
        at = np.minimum(np.searchsorted(python_id[order], parent_id), len(order) - 1)
        found = order[at]
        return np.where((parent_id >= 0) & (python_id[found] == parent_id), found, -1)

    @cached_property
    def _stacks(self) -> tuple[list[str], Ints]:
        """The texts of all stacks, and which one each op has."""
        stacks = self.timeline.cpu_ops["call_stack"].cat
        return list(map(str, stacks.categories)), stacks.codes.to_numpy()

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
        outermost = np.flatnonzero(modules[codes] & (self._parents < 0)) if modules.any() else codes[:0]
        return frozenset(match["file"] for code in np.unique(codes[outermost]).tolist() if (match := _FRAME.match(names[code])))

    def line_of_call(self, call: int) -> SourceLine | None:
        """The user's line that made a runtime call; for a call of a backward pass, the line of its forward op."""
        if call < 0:
            return None
        op = int(self.ops.of_call[call])
        return self._at(*(column[call].item() for column in self._calls)) or self._stack_line(op) or self._forward_line(op)

    def most_common(self, calls: Iterable[int]) -> SourceLine | None:
        """The line that made most of these calls, None where no stacks were recorded."""
        if not self.recorded:
            return None
        lines = Counter(line for call in calls if (line := self.line_of_call(int(call))))
        return lines.most_common(1)[0][0] if lines else None

    def _forward_line(self, op: int) -> SourceLine | None:
        sequences, by_sequence, sorted_sequences = self._sequences
        sequence = -1
        while op >= 0 and sequence < 0:
            sequence = int(sequences[op])
            root = op
            op = int(self.ops.parent[op])
        if sequence < 0:
            return None
        pid, tid, start = self._ops
        low, high = (int(np.searchsorted(sorted_sequences, sequence, side)) for side in ("left", "right"))
        forward = next((row for row in by_sequence[low:high].tolist() if tid[row] != tid[root]), None)
        return None if forward is None else self._at(int(pid[forward]), int(tid[forward]), float(start[forward])) or self._stack_line(forward)

    def _stack_line(self, op: int) -> SourceLine | None:
        """The line by the stack of the op, or of the innermost one around it that has any."""
        if self.rows or not self.recorded:
            return None
        texts, codes = self._stacks
        while op >= 0 and not (codes[op] >= 0 and texts[codes[op]]):
            op = int(self.ops.parent[op])
        return self._stack_lines[codes[op]] if op >= 0 else None

    def _at(self, pid: int, tid: int, time_us: float) -> SourceLine | None:
        mine = self.rows.get((pid, tid))
        if mine is None:
            return None
        _, end = self._times
        i = int(np.searchsorted(self._starts[pid, tid], time_us, side="right")) - 1
        row = int(mine[i]) if i >= 0 else -1
        names, codes = self._names
        while row >= 0:
            if end[row] > time_us and (line := user_frame(names[codes[row]], self._scripts)):
                return line
            row = int(self._parents[row])
        return None


def _placed(frame: pd.DataFrame) -> tuple[Ints, Ints, Floats]:
    return frame["pid"].to_numpy(), frame["tid"].to_numpy(), frame["start_us"].to_numpy()


def _outer_first(threads: Ints, starts: Floats, durations: Floats) -> Ints:
    """Rows by thread, then start, of those that start together the longest first. Tables are sorted by start: only ties are sorted anew."""
    order = np.argsort(threads.astype(np.int16) if threads.max() < 1 << 15 else threads, kind="stable")  # of 16 bits it is a radix sort
    together = (np.diff(starts[order]) == 0) & (np.diff(threads[order]) == 0)
    if together.any():
        tied = np.flatnonzero(np.r_[together, False] | np.r_[False, together])
        rows, group = order[tied], np.cumsum(np.r_[True, ~together])[tied]
        order[tied] = rows[np.lexsort((-durations[rows], group))]
    return order
