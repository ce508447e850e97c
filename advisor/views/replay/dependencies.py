"""Why each op started when it did, and what each call of the host waited for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from advisor.intervals import Codes, Floats, Ints
from advisor.knowledge import cuda_api
from advisor.knowledge.counts import EXAMINED
from advisor.knowledge.measured_costs import cost
from advisor.views.replay.schedule import EARLIER
from advisor.views.trace.host_activity import CLOCK_SKEW_US

BACK_TO_BACK_US = cost("back-to-back")

PROMPT_US = cost("prompt-launch")

DEFAULT_LATENCY_US = cost("launch-latency")


MOST_LOOKED_AT = EXAMINED
"""Ops that ended last on other streams, among which an op's predecessor is looked for."""


class Ran(msgspec.Struct, frozen=True):
    """GPU ops (n,) as they ran, in the order of their launches. idle_us: of moments and positions, how long each op's device ran nothing between
    the moment and the op's start."""

    start: Floats
    end: Floats
    stream: Ints
    idle_us: Callable[[Floats, Ints], Floats]

    def previous_end(self, busy_until: Floats) -> Floats:
        """(n,) when all that was launched before on the op's stream had ended. busy_until: (n_streams,) when what ran before these ops had."""
        found = np.full(len(self.start), -np.inf)
        for s in np.unique(self.stream):
            rows = np.flatnonzero(self.stream == s)
            found[rows] = np.maximum.accumulate(np.r_[busy_until[s], self.end[rows]])[:-1]
        return found

    def last_elsewhere(self, rows: Ints, held_until: Floats) -> Ints:
        """(n_rows,) of those launched before on other streams, the last to end before each of these began, if that ended after all else that held
        it up; else -1."""
        found = np.full(len(rows), -1, np.int64)
        order = np.argsort(self.end, kind="stable")
        ends = self.end[order]
        firsts = np.searchsorted(ends, self.start[rows] + CLOCK_SKEW_US, side="right") - 1
        for n, (k, first) in enumerate(zip(rows.tolist(), firsts.tolist(), strict=True)):
            for i in range(first, max(first - MOST_LOOKED_AT, -1), -1):
                j = order[i]
                if ends[i] <= held_until[k]:
                    break
                if self.stream[j] != self.stream[k] and j < k:
                    found[n] = j
                    break
        return found

    def paused_us(self, since: Floats, rows: Ints) -> Floats:
        """(n_rows,) how long each waited from a moment on for no recorded work: at most its device's idle time, and at most the duration of the op next to
        which it started, which may have held SMs that it needed.
        """
        waited = self.start[rows] - since
        return np.minimum(waited, self.idle_us(since, rows) + np.minimum(self._overlap_us(rows), PROMPT_US))

    def _overlap_us(self, rows: Ints) -> Floats:
        """(n_rows,) how long the op that began last on another stream had run when each of these began, 0 if none ran then."""
        order = np.argsort(self.start, kind="stable")
        found = np.zeros(len(rows))
        for n, (k, first) in enumerate(zip(rows.tolist(), np.searchsorted(self.start[order], self.start[rows]).tolist(), strict=True)):
            for j in order[max(first - MOST_LOOKED_AT, 0) : first][::-1]:
                if self.stream[j] != self.stream[k] and self.end[j] > self.start[k]:
                    found[n] = self.start[k] - self.start[j]
                    break
        return found


def gpu_rules(ran: Ran, launch: Floats, issued: Floats, staged: np.ndarray, told: Ints, busy_until: Floats) -> tuple[Floats, Floats, Ints]:
    """The reason that each op started when it did: launch latency, the op before on its stream, or an op on another stream.

    issued: the earliest start on the device; a graph is prepared first, during its launch. staged: copies that the host staged first, for as long as that
    takes. told: (n,) the op that its stream waited for by event, or -1. busy_until: (n_streams,) end of earlier work per stream. In a repeating window
    the first op follows the last of the repeat before.

    An op without such a reason follows the op that was launched before it and ended last. A stream with one op per step may look idle for a step; the
    part of such a gap that other streams filled is no pause and disappears with their work.
    """
    start, end, previous_end = ran.start, ran.end, ran.previous_end(busy_until)
    starved = issued > previous_end - CLOCK_SKEW_US
    delay, idle_gap = start - launch, start - previous_end
    close = ~starved & (idle_gap >= 0) & (idle_gap < BACK_TO_BACK_US)
    usual_gap = float(np.median(idle_gap[close])) if close.any() else 1.0
    prompt = starved & (delay >= 0) & (delay < PROMPT_US)
    usual_latency = float(np.median(delay[prompt])) if prompt.any() else DEFAULT_LATENCY_US
    latency = np.where(starved, np.maximum(delay, 0.0), usual_latency)
    # Programmatic launch starts an op before the one ahead of it ends: a negative gap, kept.
    gap = np.where(starved | ~np.isfinite(idle_gap), usual_gap, idle_gap)
    late = (~starved & (idle_gap > BACK_TO_BACK_US)) | (starved & (delay >= PROMPT_US) & ~staged)
    latency[late & starved] = usual_latency
    # What a stream was told to wait for holds, whether or not it came last. An event recorded before the wait was asked for
    # by a call in between may be another's: an op that ended after this one began was not waited for.
    after = np.where((told >= 0) & (end[told] <= start + CLOCK_SKEW_US), told, -1)
    held_until = np.maximum(previous_end, launch)
    rows = np.flatnonzero(late)
    known = rows[(after[rows] >= 0) & (end[after[rows]] > held_until[rows])]
    known = known[(start - end[after])[known] - ran.idle_us(end[after[known]], known) < BACK_TO_BACK_US]
    rows = np.setdiff1d(rows, known)
    last = ran.last_elsewhere(rows, held_until)
    rows, last = rows[last >= 0], last[last >= 0]
    # What began on an idle device waited for something unseen.
    seen = ~starved[rows] | (ran.idle_us(end[last], rows) < PROMPT_US)
    after[rows[seen]] = last[seen]
    binding = late & (after >= 0) & (end[after] > held_until)
    paused = np.flatnonzero(binding | (late & ~starved))
    gap[paused] = np.maximum(usual_gap, ran.paused_us(np.where(binding, end[after], previous_end)[paused], paused))
    return latency, gap, after


def told_to_wait(names: list[str], call_start: Floats, launch: Floats, stream: Ints) -> Ints:
    """(n,) the op that each op's stream waits for by event, or -1: the last launched op on another stream before the last recorded event.

    names, call_start: calls about events, in order. Their event and stream are not recorded, so a wait counts for the stream that is launched on next,
    and for the last recorded event.
    """
    found = np.full(len(launch), -1, np.int64)
    recorded = np.array(["EventRecord" in name for name in names], bool)
    waits = np.array(["StreamWaitEvent" in name for name in names], bool)
    if not recorded.any() or not waits.any() or not len(launch):
        return found
    record_at = call_start[recorded]
    for at in call_start[waits]:
        k = int(np.searchsorted(launch, at))
        event = int(np.searchsorted(record_at, at)) - 1
        if k >= len(launch) or event < 0:
            continue
        before = int(np.searchsorted(launch, record_at[event])) - 1
        if before >= 0 and stream[before] != stream[k]:
            found[k] = before
    return found


def host_rules(
    roles: Codes, start: Floats, end: Floats, op_call: Ints, op_end: Floats, held: np.ndarray, earlier: Floats, frees: np.ndarray
) -> tuple[Ints, Floats, Floats]:
    """The op that each call waits for, the time from its end to the call's return, and the call's own cost.

    held: (n_ops,) whether the launching call was blocked until the op ended. earlier: sorted ends of work launched before the window. frees: (n_calls,)
    whether it frees device memory, for which the driver waits for an idle device: on an idle device it would still wait if the host were earlier.
    """
    n = len(roles)
    waits, tail = np.full(n, -1, np.int64), np.zeros(n)
    cost = end - start
    names = list(cuda_api.ApiRole)
    waiting = np.isin(roles, [names.index(cuda_api.ApiRole.SYNC), names.index(cuda_api.ApiRole.ALLOCATION)])
    is_sync = roles == names.index(cuda_api.ApiRole.SYNC)
    is_copy = roles == names.index(cuda_api.ApiRole.COPY)
    first_op = np.searchsorted(op_call, np.arange(n + 1))
    prompt = ~waiting
    prompt[op_call[held]] = False
    usual = np.median(cost[prompt]) if prompt.any() else 5.0
    latest = np.maximum.accumulate(op_end) if len(op_end) else op_end
    for i in np.flatnonzero(waiting | is_copy):
        if is_copy[i]:
            own = np.arange(first_op[i], first_op[i + 1])
            own = own[held[own]]
            target = int(own[np.argmax(op_end[own])]) if len(own) else -1
        else:
            target = _last_done(op_end, latest, first_op[i], end[i])
            if target >= 0 and not (is_sync[i] or frees[i]) and op_end[target] < start[i]:
                target = -1
        if target < 0:
            behind = int(np.searchsorted(earlier, end[i] + CLOCK_SKEW_US)) - 1
            if is_sync[i] and not first_op[i] and behind >= 0 and earlier[behind] > start[i]:
                waits[i], tail[i], cost[i] = EARLIER, end[i] - earlier[behind], 0.0
            continue
        waits[i] = target
        blocked = op_end[target] > start[i]
        # Negative where a copy's call returns with the last piece still on its way.
        tail[i] = end[i] - op_end[target] if blocked else 0.0
        if blocked:
            cost[i] = min(cost[i], usual) if is_copy[i] else 0.0
    # A full launch queue blocks the launching call; the queue, not the call, is the cost.
    launching = ~waiting & ~is_copy
    if launching.any():
        typical = float(np.median(cost[launching]))
        cost = np.where(launching & (cost > 20 * typical) & (cost > 100.0) & _work_queued(start, latest, first_op), typical, cost)
    return waits, tail, cost


def _last_done(op_end: Floats, latest: Floats, launched: int, call_end: float) -> int:
    """Of the ops launched so far, the last to end that ended before the call returned; latest: how late any op up to each ended."""
    if not launched:
        return -1
    if op_end[launched - 1] == latest[launched - 1] <= call_end + CLOCK_SKEW_US:
        return launched - 1
    first = max(launched - FURTHEST_BACK, 0)
    ended = op_end[first:launched]
    done = np.flatnonzero(ended <= call_end + CLOCK_SKEW_US)
    # Of ops on other streams one that was launched earlier may end later.
    return first + int(done[len(done) - 1 - np.argmax(ended[done][::-1])]) if len(done) else -1


FURTHEST_BACK = 4096
"""Launches before a call among which what it waited for is looked for."""


def _work_queued(start: Floats, latest: Floats, first_op: Ints) -> np.ndarray:
    """Whether the GPU still had work queued when each call was made."""
    last = first_op[:-1] - 1
    return np.where(last >= 0, latest[np.maximum(last, 0)] > start, False) if len(latest) else np.zeros(len(start), bool)
