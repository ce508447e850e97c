"""Which framework op each call and each GPU op belongs to, and how ops nest."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask, innermost, nest, over_ancestors
from advisor.intervals import outermost as the_outermost
from advisor.recordings.columns import Table, row_by_row
from advisor.recordings.timeline import Timeline
from advisor.views.groups import Groups
from advisor.views.trace.launches import Launches


def thread_ids(*frames: Table) -> Ints:
    """One integer a (pid, tid), the same over all frames. Shape (sum of rows,)."""
    return Groups.by_keys(*(np.concatenate([frame[name] for frame in frames]) for name in ("pid", "tid"))).of


class Ops(msgspec.Struct, frozen=True):
    """The op tree, built from time alone: ids are missing or wrong in some producers' files.

    parent: (n_cpu,) row of the op around each op, or -1. of_call: (n_api,) innermost op around each call, or -1.
    of_gpu: (n_gpu,) innermost op around the call that launched each GPU op, or -1. outermost: (n_cpu,) root of each.
    """

    parent: Ints
    of_call: Ints
    of_gpu: Ints
    outermost: Ints
    names: Ints
    """(n_cpu,) category codes of the op names."""
    categories: tuple[str, ...]

    def name(self, op: int) -> str:
        """Name of one op, "" for -1."""
        return self.categories[self.names[op]] if op >= 0 else ""

    def chain(self, op: int) -> list[str]:
        """Names from one op outwards."""
        found = []
        while op >= 0:
            found.append(self.name(op))
            op = int(self.parent[op])
        return found

    def outermost_where(self, chosen: np.ndarray) -> Ints:
        """(n_cpu,) for each op the outermost op around or equal to it that is chosen, -1 if none is."""
        return over_ancestors(self.parent, np.where(chosen, np.arange(len(chosen)), -1), -1, the_outermost)

    def within_chosen(self, chosen: np.ndarray) -> Mask:
        """(n_cpu,) whether each op is chosen or is inside a chosen op."""
        return self.outermost_where(chosen) >= 0

    def matching(self, wanted: Callable[[str], object]) -> Mask:
        """(n_cpu,) whether each op's name is wanted; each distinct name is asked for once."""
        return np.array([*(bool(wanted(name)) for name in self.categories), False], bool)[self.names]

    def named(self, pattern: re.Pattern[str]) -> Mask:
        """(n_cpu,) whether each op's name matches; each distinct name is looked at once."""
        return self.matching(pattern.search)

    def codes(self, rows: Ints) -> Ints:
        """Category codes of the names of ops by their rows, -1 for -1."""
        return row_by_row(np.r_[self.names, -1].__getitem__, rows)

    def enclosing(self, rows: Ints, pattern: re.Pattern[str]) -> Ints:
        """The outermost op with such a name around, or equal to, each of these rows; -1 if there is none."""
        return np.r_[self.outermost_where(self.named(pattern)), -1][rows]

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches) -> Ops:
        ops, calls = timeline.cpu_ops, timeline.api_calls
        n, none = len(ops), np.int64(-1)
        if not n:
            of_call, of_gpu = (np.broadcast_to(none, len(rows)) for rows in (calls, launches.call))
            return cls(np.empty(0, np.int64), of_call, of_gpu, np.empty(0, np.int64), np.empty(0, np.int64), tuple(ops["name"].categories))
        start = np.r_[ops["start_us"], calls["start_us"]]
        end = start + np.r_[ops["dur_us"], calls["dur_us"]]
        parents = nest(thread_ids(ops, calls), start, end)
        # A driver call inside a runtime call belongs to the op around both.
        rows = np.arange(len(parents))
        op = over_ancestors(parents, np.where(rows < n, rows, -1), -1, innermost)
        around = np.where(parents >= 0, op[parents], -1)
        parent, of_call = around[:n], around[n:]
        outermost = over_ancestors(parent, np.arange(n), -1, the_outermost)
        launcher = launches.call
        of_gpu = np.where(launcher >= 0, of_call[launcher], -1) if len(of_call) else np.full(len(launcher), -1, np.int64)
        return cls(parent, of_call, of_gpu, outermost, ops["name"].codes.astype(np.int64), tuple(ops["name"].categories))
