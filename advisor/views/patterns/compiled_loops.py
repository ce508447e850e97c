"""Loops inside a compiled program of JAX (`scan`, `fori_loop`, `while_loop`), turn by turn as XLA's runtime issues them."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask, clip, length, union
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.shares import MOST
from advisor.recordings.timeline import CopyKind
from advisor.views.replay.edits import CheaperDispatch, Edit, WithoutOps, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.table_filters import matches

_TURN = re.compile(r"\[iter=(\d{1,9})\]")
"""The range that XLA's runtime opens around each turn of a loop."""

_COPY = names_of("copy_of_xla")
"""Copies of slices, and of what a turn hands on: in a command buffer they are kernels, and named so."""

MOSTLY = MOST
"""Of the turns, from which they are of loops that a value ends: the last one of such a loop does nothing but test."""

_COUNTS = re.compile(r"(u?int\d+|bool)\[\]( (u?int\d+|bool)\[\])*")
"""Operands of a loop's own arithmetic: its counter, and where to slice."""


class CompiledLoops(msgspec.Struct, frozen=True, eq=False):
    """The t iterations of all loops of the window, in order: innermost loops only.

    number: (t,) earlier iterations of the loop. of_op, of_call: (n_ops,), (n_calls,) the launching iteration, -1 outside. own: (n_ops,) ops of the loop
    itself: its counter, copies of slices, and, if a value ends it, computing that value and its copy to the host. copies: (n_ops,) copies of slices.
    by_value: whether the host reads a value in most iterations. idle_us: recorded idle time of the device during a step's loops.
    """

    number: Ints
    of_op: Ints
    of_call: Ints
    own: Mask
    copies: Mask
    by_value: bool
    idle_us: float

    @property
    def turns(self) -> Ints:
        """Those that launched something, in order."""
        return np.unique(self.of_op[self.of_op >= 0])

    def several_at_once(self, turns: int, copies: bool = True) -> Edit:
        """The edit that merges this many iterations: the others run in the same iteration, without work of the loop itself, except remaining `copies` of
        slices."""
        later = np.r_[self.number % turns != 0, False]
        return combine(
            CheaperDispatch(0.0, np.flatnonzero(~later[self.of_call])),
            WithoutOps(np.flatnonzero((self.own if copies else self.own & ~self.copies) & later[self.of_op])),
        )

    @classmethod
    def build(cls, work: GpuWork, calls: HostCalls, host: HostActivity) -> CompiledLoops:
        number, start, end = _turns(work, host)
        of_op = _turn_of(work.launched_us, start, end)
        looped = of_op >= 0
        operands = work.timeline.compiled_ops["operands"]
        counts = np.array([*(bool(_COUNTS.fullmatch(text)) for text in operands), False], bool)[work.column("compiled")]
        copies = looped & work.named(_COPY)
        tested = _tested(of_op, looped & (work.column("copy_kind") == CopyKind.DTOH.value), len(number))
        return cls(
            number=number,
            of_op=of_op,
            of_call=_turn_of(calls.timeline.api_calls["start_us"][calls.rows], start, end),
            own=(looped & counts & (work.column("grid_blocks") == 1)) | copies | tested,
            copies=copies,
            by_value=len(np.unique(of_op[tested])) > MOSTLY * len(np.unique(of_op[looped])),
            idle_us=_idle_us(work, of_op, np.cumsum(number == 0)),
        )


def _turns(work: GpuWork, host: HostActivity) -> tuple[Ints, Floats, Floats]:
    """Number, start and end of each turn that holds no other, in order."""
    notes = work.timeline.annotations
    rows = np.flatnonzero(matches(notes, _TURN) & host.on_threads(notes))
    rows = rows[np.argsort(notes["start_us"][rows], kind="stable")]
    start, end = notes.bounds(rows)
    innermost = np.r_[end[:-1] <= start[1:], True][: len(rows)]
    names = notes["name"]
    numbers = np.array([int(found[1]) if (found := _TURN.fullmatch(name)) else -1 for name in names.categories], np.int64)
    return numbers[names.codes[rows]][innermost], start[innermost], end[innermost]


def _turn_of(times_us: Floats, start: Floats, end: Floats) -> Ints:
    """(n,) which of disjoint, sorted turns each time lies in, -1 for none."""
    if not len(start):
        return np.full(len(times_us), -1, np.int64)
    found = np.searchsorted(start, times_us, side="right") - 1
    return np.where((found >= 0) & (times_us <= end[np.maximum(found, 0)]), found, -1)


def _tested(of_op: Ints, read: Mask, turns: int) -> Mask:
    """(n_ops,) launches of an iteration up to its copy to the host: the runtime tests for a next iteration first."""
    last = np.full(turns + 1, -1, np.int64)
    at = np.flatnonzero(read)
    last[of_op[at]] = at
    return (of_op >= 0) & (np.arange(len(of_op)) <= last[of_op])


def _idle_us(work: GpuWork, of_op: Ints, loop: Ints) -> float:
    """From the first to the last op of each loop, the time in which the device does nothing, a step."""
    at = np.flatnonzero(of_op >= 0)
    if not len(at):
        return 0.0
    start = work.column("start_us")
    end, idle = start + work.dur_us, 0.0
    busy = union(start, end)
    for one in np.unique(loop[of_op[at]]):
        of_loop = at[loop[of_op[at]] == one]
        window = float(start[of_loop].min()), float(end[of_loop].max())
        idle += window[1] - window[0] - length(clip(busy, *window))
    return idle / work.schedule.steps
