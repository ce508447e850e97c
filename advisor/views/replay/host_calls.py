"""The host's calls in the replayed steps, position by position of the schedule."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from advisor.errors import Unavailable
from advisor.intervals import Codes, Floats, Ints, Mask, Spans, overlap_with
from advisor.knowledge import cuda_api
from advisor.knowledge.how_to_record import AS_WRITTEN, RECORD_BOTH, RECORD_LAUNCHES, Recipe
from advisor.knowledge.shares import MOST
from advisor.recordings.timeline import Timeline
from advisor.views.replay.from_trace import NO_LAUNCHES, unseen_host
from advisor.views.replay.replay import Replay
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches

_ASYNCHRONOUS = re.compile(r"Memcpy\w{0,40}Async")

MOSTLY = MOST
"""What holds more of a call than all else together is what it waits for."""


class HostCalls(msgspec.Struct, frozen=True, eq=False):
    """The n calls of the recorded schedule, in order. Unavailable if no launching call was recorded.

    rows: (n,) of `api_calls`. roles: (n,) positions in `list(cuda_api.ApiRole)`. op: (n,) of `cpu_ops`, the op around each, -1 if not recorded. waits: (n,)
    whether it waits for the GPU.
    """

    schedule: Schedule
    rows: Ints
    roles: Codes
    op: Ints
    waits: Mask
    timeline: Timeline

    def with_role(self, role: cuda_api.ApiRole) -> Mask:
        """(n,) whether each has that role."""
        return self.roles == list(cuda_api.ApiRole).index(role)

    def launching(self, ops: Mask) -> Mask:
        """(n,) whether each launches one of these GPU ops (a mask over positions)."""
        found = np.zeros(len(self.rows), bool)
        found[self.schedule.op_call[ops]] = True
        return found

    def us_a_step(self, at: Ints) -> float:
        """Recorded time of the calls at some positions, a step."""
        return float(self.timeline.api_calls["dur_us"][self.rows[at]].sum()) / self.schedule.steps

    def us_a_step_inside(self, at: Ints, spans: Spans) -> float:
        """Recorded time of the calls at some positions, a step, in which these spans are."""
        start, dur = (self.timeline.api_calls[column][self.rows[at]] for column in ("start_us", "dur_us"))
        return float(overlap_with(start, start + dur, spans).sum()) / self.schedule.steps

    def mostly_covered(self, at: Ints, spans: Spans) -> Mask:
        """(n,) whether most of each of the calls at some positions, as recorded, passes inside these spans."""
        calls = self.timeline.api_calls
        start, dur = calls["start_us"][self.rows[at]], calls["dur_us"][self.rows[at]]
        return overlap_with(start, start + dur, spans) > MOSTLY * dur

    def names(self, at: Ints) -> list[str]:
        """Names of the calls at some positions."""
        return [str(name) for name in self.timeline.api_calls["name"][self.rows[at]]]

    def waits_of_copies(self, calls: Ints) -> Mask:
        """(n,) synchronising calls that wait for copies made by `calls` (positions).

        PyTorch implements a blocking copy as an asynchronous copy and a stream sync inside the same op. Without recorded ops, the sync directly after the
        copy belongs to it.
        """
        sync = self.with_role(cuda_api.ApiRole.SYNC)
        copying = self.op[calls]
        following = np.zeros(len(sync), bool)
        following[np.minimum(calls[copying < 0] + 1, len(sync) - 1)] = True
        return sync & (np.isin(self.op, copying[copying >= 0]) | following)

    def held_by_copies(self, calls: Ints) -> Ints:
        """Positions of the calls that wait for copies made by `calls`: the copying call itself, and the sync that goes with it."""
        return np.unique(np.r_[calls[self.waits[calls]], np.flatnonzero(self.waits & self.waits_of_copies(calls))])

    def held_us(self, calls: Ints) -> Floats:
        """(n,) recorded time of the calls at some positions that copy, with that of the sync of the same op right behind."""
        took = self.timeline.api_calls["dur_us"][self.rows]
        behind = np.minimum(calls + 1, len(took) - 1)
        return took[calls] + np.where((behind > calls) & self.waits_of_copies(calls)[behind], took[behind], 0.0)

    def held_unasked(self, pageable: Mask) -> Mask:
        """(n,) the asynchronous copies that held the host all the same, for they are of pageable memory (a mask over positions): no op asked for
        the data, and no sync follows that would wait for them."""
        followed = np.r_[self.with_role(cuda_api.ApiRole.SYNC)[1:], False]
        asynchronous = matches(self.timeline.api_calls, _ASYNCHRONOUS)[self.rows]
        return asynchronous & self.launching(pageable) & self.waits & (self.op < 0) & ~followed

    def waited_for_at(self, copying: Ints, waits: Ints) -> Mask:
        """(n,) whether the copy that each of the calls `copying` makes is waited for at one of `waits` (positions both)."""
        op = self.op[copying]
        return np.isin(copying, waits) | np.isin(copying + 1, waits) | ((op >= 0) & np.isin(op, self.op[waits]))

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, launches: Launches, ops: Ops, replay: Replay) -> HostCalls:
        if why := unseen_host(timeline, steps, launches):
            raise Unavailable(why, *(_without_calls(timeline) if why == NO_LAUNCHES else RECORD_LAUNCHES))
        schedule = replay.recorded
        rows = schedule.call_row
        if not len(rows) or rows[0] < 0:
            raise Unavailable(NO_LAUNCHES, *_without_calls(timeline))
        return cls(schedule, rows, launches.roles[rows], ops.of_call[rows], schedule.waits_for != -1, timeline)


def _without_calls(timeline: Timeline) -> Recipe:
    """How to record the calls. A trace with ops of the host was recorded on both sides, and lost the calls afterwards."""
    return AS_WRITTEN if len(timeline.cpu_ops) else RECORD_BOTH
