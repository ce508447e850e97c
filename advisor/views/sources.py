"""Where in the user's program a call was made: the innermost Python frame that is not the framework's."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from advisor.intervals import Ints, nest
from advisor.report import SourceLine
from advisor.timeline import Timeline
from advisor.views.ops import Ops, thread_ids

_FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.*)$")
_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages)/|(^|/)lib/python\d|(^|/)torch/|^<|^\.\.\.")
# The profiler cuts sys.path from file names, so the standard library's files look like the user's.
_LIBRARY_ROOTS = sys.stdlib_module_names | {"torch", "torchvision", "triton", "numpy", "functorch", "tqdm"}


@lru_cache(maxsize=65536)
def user_frame(name: str) -> SourceLine | None:
    """The file and line of a Python frame as the profiler names it, None for the framework's, a library's or a builtin."""
    match = _FRAME.match(name)
    if not match or _LIBRARY.search(match["file"]):
        return None
    if match["file"].split("/", 1)[0].removesuffix(".py") in _LIBRARY_ROOTS:
        return None
    return SourceLine(file=match["file"], line=int(match["line"]))


@dataclass(frozen=True)
class Sources:
    """Python frames by thread; answers which one was running at a moment."""

    timeline: Timeline
    ops: Ops
    parents: Ints
    starts: np.ndarray
    ends: np.ndarray
    thread_of_row: Ints
    thread_keys: dict[tuple[int, int], int]
    order: Ints

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops) -> Sources:
        frame = timeline.python_calls
        start = frame["start_us"].to_numpy()
        end = start + frame["dur_us"].to_numpy()
        threads = thread_ids(frame) if len(frame) else np.empty(0, np.int64)
        keys = dict(zip(zip(frame["pid"].tolist(), frame["tid"].tolist(), strict=True), threads.tolist(), strict=True))
        # Within a thread rows are already in order of start.
        order = np.lexsort((-end, start, threads))
        return cls(timeline, ops, nest(threads, start, end), start, end, threads, keys, order)

    def line_of_call(self, call: int) -> SourceLine | None:
        """The user's line that made a runtime call; for a call of a backward pass, the line of its forward op."""
        if call < 0:
            return None
        calls = self.timeline.api_calls
        row = calls.iloc[call]
        found = self._at(int(row["pid"]), int(row["tid"]), float(row["start_us"]))
        return found or self._forward_line(int(self.ops.of_call[call]))

    def most_common(self, calls: Iterable[int]) -> SourceLine | None:
        """The line that made most of these calls, None where no stacks were recorded."""
        if not len(self.starts):
            return None
        lines = Counter(line for call in calls if (line := self.line_of_call(int(call))))
        return lines.most_common(1)[0][0] if lines else None

    def _forward_line(self, op: int) -> SourceLine | None:
        ops = self.timeline.cpu_ops
        sequence = -1
        while op >= 0 and sequence < 0:
            sequence = int(ops["sequence"].iloc[op])
            root = op
            op = int(self.ops.parent[op])
        if sequence < 0:
            return None
        thread = int(ops["tid"].iloc[root])
        same = np.flatnonzero((ops["sequence"].to_numpy() == sequence) & (ops["tid"].to_numpy() != thread))
        if not len(same):
            return None
        row = ops.iloc[int(same[0])]
        return self._at(int(row["pid"]), int(row["tid"]), float(row["start_us"]))

    def _at(self, pid: int, tid: int, time_us: float) -> SourceLine | None:
        thread = self.thread_keys.get((pid, tid))
        if thread is None:
            return None
        mine = self.order[self.thread_of_row[self.order] == thread] if len(self.thread_keys) > 1 else self.order
        row = int(mine[i]) if (i := int(np.searchsorted(self.starts[mine], time_us, side="right")) - 1) >= 0 else -1
        names = self.timeline.python_calls["name"]
        while row >= 0:
            if self.ends[row] > time_us and (line := user_frame(str(names.iloc[row]))):
                return line
            row = int(self.parents[row])
        return None
