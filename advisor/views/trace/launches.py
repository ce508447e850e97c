"""Which host call launched which GPU op, by correlation."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Codes, Floats, Ints, Mask
from advisor.knowledge import cuda_api
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import CopyKind, GpuKind, Timeline


class Launches(msgspec.Struct, frozen=True):
    """For each row of `gpu_ops`, the call that launched it; a CUDA graph's call launches many.

    call: (n_gpu,) row of `api_calls`, -1 if none was recorded. start_us: (n_gpu,) start of that call, NaN if none.
    roles: (n_api,) the role of each call, as positions in `list(cuda_api.ApiRole)`.
    ambiguous: how many GPU ops carry a correlation id that several calls share (merged ranks do that).
    """

    call: Ints
    start_us: Floats
    roles: Codes
    ambiguous: int

    def calls_with(self, *roles: cuda_api.ApiRole) -> Ints:
        """Rows of `api_calls` that have one of these roles."""
        wanted = [list(cuda_api.ApiRole).index(r) for r in roles]
        return np.flatnonzero(np.isin(self.roles, wanted))

    @property
    def replayed(self) -> Mask:
        """(n_gpu,) whether a graph's launch ran it."""
        return np.isin(self.call, self.calls_with(cuda_api.ApiRole.GRAPH_LAUNCH))

    @property
    def in_order(self) -> Ints:
        """Rows of the GPU ops that a call is known of, as they were launched."""
        known = np.flatnonzero(self.call >= 0)
        return known[np.argsort(self.start_us[known], kind="stable")]

    def by_process(self, timeline: Timeline) -> Ints:
        """(n_gpu,) the process that launched each GPU op, -1 where no call is known."""
        return np.r_[timeline.api_calls["pid"], -1][self.call]

    def of_process(self, timeline: Timeline, process: int) -> Launches:
        """Launches of a process, if several share a recording: ops of other processes then have no launch. All launches for -1."""
        mine = self.by_process(timeline) == process
        if process < 0 or mine[self.call >= 0].all():
            return self
        return replace(self, call=np.where(mine, self.call, -1), start_us=np.where(mine, self.start_us, np.nan))

    def main_process(self, timeline: Timeline, among: Ints | None = None) -> int:
        """Of the given processes, or of all: the process with most launches on the device with most of their launches; -1 without launches."""
        by, device = self.by_process(timeline), timeline.gpu_ops["device"]
        theirs = by >= 0 if among is None else np.isin(by, among[among >= 0])
        if not theirs.any():
            return -1
        devices, ops = np.unique(device[theirs], return_counts=True)
        processes, ops = np.unique(by[theirs & (device == devices[ops.argmax()])], return_counts=True)
        return int(processes[ops.argmax()])

    @classmethod
    def build(cls, timeline: Timeline) -> Launches:
        calls, ops = timeline.api_calls, timeline.gpu_ops
        order_of = {r: i for i, r in enumerate(cuda_api.ApiRole)}
        by_name = np.array([order_of[cuda_api.role(name)] for name in calls["name"].categories], np.int8)
        roles = by_name[calls["name"].codes] if len(calls) else np.empty(0, np.int8)

        start = calls["start_us"]
        correlation = calls["correlation"]
        linked = np.flatnonzero(correlation >= 0)
        order = linked[np.lexsort((start[linked], correlation[linked]))]
        keys = correlation[order]
        wanted = ops["correlation"]
        first = np.searchsorted(keys, wanted, side="left")
        count = np.searchsorted(keys, wanted, side="right") - first
        count[wanted < 0] = 0
        chosen = np.full(len(ops), -1, np.int64)
        one = count == 1
        chosen[one] = order[first[one]]
        # Several calls of one id: a driver call inside a runtime call, or ids of merged ranks. The latest that starts
        # before the op does is the one that can have launched it.
        gpu_start, begun = ops["start_us"], start[order]
        several = np.flatnonzero(count > 1)
        for i in several.tolist():
            before = int(np.searchsorted(begun[first[i] : first[i] + count[i]], gpu_start[i], side="right"))
            chosen[i] = order[first[i] + max(before - 1, 0)]
        earliest, latest = order[first[several]], order[first[several] + count[several] - 1]
        ambiguous = np.count_nonzero(start[latest] - start[earliest] > calls["dur_us"][earliest])
        times = np.where(chosen >= 0, start[chosen], np.nan) if len(start) else np.full(len(ops), np.nan)
        return cls(chosen, times, roles, int(ambiguous))


NUMBER_BYTES = 16
"""Bytes of a single number, at most those of a complex one of two doubles: a loss that is read, not data to compute on."""


def behind_reads(timeline: Timeline, launches: Launches, times_us: Floats) -> Mask:
    """(k,) whether what was launched last before each of these times copies more than a number to the host."""
    ops = timeline.gpu_ops
    order = np.argsort(launches.start_us, kind="stable")  # those without a launch last
    last = np.searchsorted(launches.start_us[order], times_us) - 1
    reads = (ops["copy_kind"] == CopyKind.DTOH.value) & (ops["bytes"] > NUMBER_BYTES)
    found: Mask = last >= 0
    found[found] = reads[order[last[found]]]
    return found


def computing_ops(timeline: Timeline) -> Mask:
    """(n_gpu,) ops that compute: no copies, no fills."""
    return ~timeline.gpu_ops["kind"].isin([GpuKind.MEMCPY.value, GpuKind.MEMSET.value])


def launched_ops(timeline: Timeline) -> Mask:
    """(n_gpu,) ops that the program asked for: pages of managed memory migrate by themselves."""
    return ~timeline.gpu_ops["copy_kind"].isin([CopyKind.MIGRATION_HTOD.value, CopyKind.MIGRATION_DTOH.value])
