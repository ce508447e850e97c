"""The calls of the window that wait for the GPU, by the line that makes them, also those too cheap for a finding."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.knowledge.host_waits import GENERALLY, HostWait, measured_with
from advisor.report.finding import SourceLine
from advisor.report.host_waits import HostWaitRow, HostWaits
from advisor.views.replay.host_calls import HostCalls
from advisor.views.trace.modules import places_of_ops
from advisor.views.trace.ops import Ops
from advisor.views.trace.program import Program
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.waited_calls import WaitedCalls


class WaitTable(msgspec.Struct, frozen=True):
    """A row per line and call. A blocking copy and the synchronisation of the same op, or directly after it, are a single wait. Unavailable if no launching
    call was recorded.
    """

    waits: HostWaits

    @classmethod
    def build(cls, calls: HostCalls, ops: Ops, waited: WaitedCalls, sources: Sources, program: Program) -> WaitTable:
        at = np.flatnonzero(calls.waits)
        if not len(at):
            return cls(HostWaits(why="no call inside the window waits for the GPU"))
        took = calls.timeline.api_calls["dur_us"][calls.rows[at]]
        op, ends = calls.op[at], _synchronises(calls, at)
        together = (op[1:] == op[:-1]) & ((op[1:] >= 0) | ((np.diff(at) == 1) & ends[1:]))
        same = np.r_[False, together & ~ends[:-1]]
        one = np.cumsum(~same) - 1
        last = np.r_[np.flatnonzero(np.diff(one)), len(one) - 1]
        us = np.bincount(one, took)
        known = program.framework == "torch"
        modules = _modules(calls, ops, at[last])
        groups: dict[tuple[SourceLine | None, str, str, HostWait | None], list[float]] = {}
        for call, module, took_us in zip(calls.rows[at[last]].tolist(), modules, us.tolist(), strict=True):
            line = sources.line_of_call(call)
            row = waited.row_of(call) if known else None
            groups.setdefault((line, "" if line else module, waited.outermost(call), row), []).append(took_us)
        steps = calls.schedule.steps
        rows = [
            HostWaitRow(
                call=row.call if row and _is_told(row, op) else op,
                known=row is not None and _is_told(row, op),
                op=op,
                waits=len(each),
                waits_a_step=len(each) / steps,
                us=sum(each) / steps,
                instead=row.instead if row else GENERALLY,
                since=row.since if row else "",
                module=module,
                source=line,
            )
            for (line, module, op, row), each in groups.items()
        ]
        rows.sort(key=lambda row: (-row.us, -row.waits, row.op))
        return cls(HostWaits(rows=tuple(rows), measured=measured_with()))


def _is_told(row: HostWait, op: str) -> bool:
    """Whether the row identifies the call: a row that fits any wait does not if no op is around it."""
    return not row.general or "::" in op


def _synchronises(calls: HostCalls, at: np.ndarray) -> np.ndarray:
    """(n,) whether each of the calls at some positions is a synchronisation, which ends a wait."""
    return np.array(["Synchronize" in name for name in calls.names(at)], bool)


def _modules(calls: HostCalls, ops: Ops, at: np.ndarray) -> list[str]:
    """The innermost module around each of the calls at some positions, "" if none is known."""
    found = [""] * len(at)
    inside = np.flatnonzero(calls.op[at] >= 0)
    places, of = places_of_ops(calls.timeline, ops, calls.op[at][inside])
    for place, number in zip(inside.tolist(), of.tolist(), strict=True):
        found[place] = places[number].modules[-1] if places[number].modules else ""
    return found
