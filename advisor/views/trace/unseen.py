"""What devices were asked for and left no trace of, and what of the file was not read: no idle time, whatever it looks like."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.cuda_api import ApiRole
from advisor.knowledge.cuda_errors import CudaError, cuda_error
from advisor.recordings.timeline import LeftOut, Timeline
from advisor.report.numbers import counted
from advisor.report.recording import UnseenWork
from advisor.views.trace.launches import Launches
from advisor.views.trace.unexecuted_launches import captured_calls, lost_launches


class FailedCalls(msgspec.Struct, frozen=True):
    """Calls of the same name that returned the same error. launches: whether they should have run device work."""

    call: str
    error: CudaError
    count: int
    launches: bool


class Unseen(msgspec.Struct, frozen=True):
    """launched: (n,) rows of `api_calls` that launched device work without error; lost: (n,) which of them have no op on any device. graphs: (n,) which
    launched a whole graph. captured: launches that were only captured into graphs.
    """

    launched: Ints
    lost: Mask
    graphs: Mask
    captured: int
    failed: tuple[FailedCalls, ...]
    left_out: tuple[LeftOut, ...]
    work: tuple[UnseenWork, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no device was asked for anything, and all of the file was read."""
        return not (len(self.launched) or self.captured or self.failed or self.left_out)

    @property
    def failed_launches(self) -> int:
        """How many launches failed, so that nothing ran."""
        return sum(calls.count for calls in self.failed if calls.launches)

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches) -> Unseen:
        rows, lost = lost_launches(timeline, launches)
        issued = launches.calls_with(ApiRole.LAUNCH, ApiRole.GRAPH_LAUNCH)
        graphs = launches.roles[rows] == list(ApiRole).index(ApiRole.GRAPH_LAUNCH)
        failed, left_out = _failed(timeline, issued), timeline.source.left_out
        work = (
            *_lost(timeline, rows[lost & graphs], "graph-launch", "graph launches without GPU ops"),
            *_lost(timeline, rows[lost & ~graphs], "launch", "launches without their GPU op"),
            *(UnseenWork(kind="failed-call", what=f"calls of {calls.call} that failed with {calls.error}", count=calls.count) for calls in failed),
            *(UnseenWork(kind="left-out", what=left.what, count=left.events, us=left.us) for left in left_out),
        )
        return cls(rows, lost, graphs, int(captured_calls(timeline.api_calls, issued).sum()), failed, left_out, work)

    def told(self) -> str:
        """Device work that was launched although none was read, in a phrase; "" if nothing shows."""
        if self.failed_launches:
            worst = max((calls for calls in self.failed if calls.launches), key=lambda calls: calls.count)
            return f"{counted(self.failed_launches, 'launch', 'launches')} of the program failed, most with {worst.error}"
        if len(self.launched):
            return f"the program launched {counted(len(self.launched), 'piece')} of work that left no trace on a device"
        if self.captured:
            return f"{counted(self.captured, 'launch was', 'launches were')} captured into graphs, which runs nothing"
        return f"the file holds {', '.join(map(str, self.left_out[:3]))}, which advisor does not read" if self.left_out else ""


def _lost(timeline: Timeline, rows: Ints, kind: Literal["launch", "graph-launch"], what: str) -> list[UnseenWork]:
    """Launches by the name of their call, the most first."""
    names, counts = np.unique(timeline.api_calls["name"][rows].texts(), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [UnseenWork(kind=kind, what=f"{what} ({names[i]})", count=int(counts[i])) for i in order.tolist()]


def _failed(timeline: Timeline, issued: Ints) -> tuple[FailedCalls, ...]:
    """Calls that returned an error, by name and error, the most first."""
    calls = timeline.api_calls
    error = calls["error"]
    rows = np.flatnonzero(error > 0)
    if not len(rows):
        return ()
    names = calls["name"][rows].texts().astype(str)
    kinds, inverse, counts = np.unique(np.rec.fromarrays([names, error[rows]]), return_inverse=True, return_counts=True)
    launching = np.bincount(inverse, np.isin(rows, issued), minlength=len(kinds)) > 0
    found = [FailedCalls(str(kind[0]), cuda_error(int(kind[1])), int(n), bool(is_launch)) for kind, n, is_launch in zip(kinds, counts, launching, strict=True)]
    return tuple(sorted(found, key=lambda failed: -failed.count))
