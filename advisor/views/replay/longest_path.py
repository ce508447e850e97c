"""The longest path of a schedule's steady step: the chain of host work, launches and ops that sets its length.

A recorded step has a critical path by its times. A step after fixes has only a schedule, so it is run once, with each op and call as early as
possible, and walked back along its latest predecessors. Equals `networkx.dag_longest_path` of `graph`, in a tenth of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints
from advisor.recordings.extension import EXTENSION
from advisor.views.replay.schedule import EARLIER, Schedule
from advisor.views.replay.simulate import REPEATS, columns_for_c


class Path(NamedTuple):
    """Steps in columns: the kind of each link as the critical path names them, "op" if it is an op; µs; the op's position, -1 of others."""

    kind: list[str]
    us: Floats
    op: Ints


NONE, BEGINNING = -1, -2
"""Where an op's number belongs: it waited for no op; it waited for what came before the first repeat."""


class _Run(msgspec.Struct):
    """A schedule run back to back, with ops and calls numbered through all repeats.

    op_waited: for each op, its latest predecessor, NONE if that is its launch. call_waited: for each call, the op that it waited for, NONE without a wait.
    done_us: end of each repeat, the start first; done_with: the op that ended last, NONE for the host.
    """

    op_waited: list[int]
    call_waited: list[int]
    done_us: list[float]
    done_with: list[int]


def _run(schedule: Schedule, repeats: int) -> _Run:
    dur, latency, gap = (c.tolist() for c in (schedule.dur_us, schedule.latency_us, schedule.gap_us))
    stream, after, skip = schedule.stream.tolist(), schedule.after.tolist(), schedule.skip_op.tolist()
    first_op = np.r_[0, np.cumsum(np.bincount(schedule.op_call, minlength=len(schedule.host_us)))].tolist()
    of_call = [c.tolist() for c in (schedule.host_us, schedule.call_us, schedule.waits_for, schedule.tail_us)]
    n_calls = len(schedule.host_us)
    n = len(dur)
    made = _Run([NONE] * (n * repeats), [NONE] * (n_calls * repeats), [0.0], [NONE])
    op_waited, end = made.op_waited, [0.0] * (n * repeats)
    # The op that each stands for, a skipped one for the op before it on its stream; and the last one on each stream.
    stands, last_on = [NONE] * n, dict.fromkeys(stream, NONE)
    now, idle, idle_at = 0.0, BEGINNING, 0.0
    for r in range(repeats):
        earlier, earlier_at = idle, idle_at
        for i, (host, call, waits, tail, low, high) in enumerate(zip(*of_call, first_op[:-1], first_op[1:], strict=True)):
            now += host
            for k in range(low, high):
                before = last_on[stream[k]]
                if skip[k]:
                    stands[k] = before
                    continue
                op, start = r * n + k, now + latency[k]
                if before >= 0 and end[before] + gap[k] > start:
                    start, op_waited[op] = end[before] + gap[k], before
                if after[k] >= 0 and (other := stands[after[k]]) >= 0 and end[other] + gap[k] > start:
                    start, op_waited[op] = end[other] + gap[k], other
                end[op] = done = start + dur[k]
                last_on[stream[k]] = stands[k] = op
                if done > idle_at:
                    idle, idle_at = op, done
            now += call
            if waits != -1:
                op = earlier if waits == EARLIER else stands[waits]
                back = (earlier_at if waits == EARLIER else end[op]) + tail
                if op != NONE and back > now:
                    now, made.call_waited[r * n_calls + i] = back, op
        made.done_us.append(max(now, idle_at))
        made.done_with.append(idle if idle_at > now else NONE)
    return made


def longest_path(schedule: Schedule) -> Path:
    """The steps that the steady repeat takes as long as, last first; they sum to the window's period."""
    done_us, met = walked(schedule, REPEATS if schedule.periodic else 1)
    first, last = done_us[-3:-1] if schedule.periodic else done_us
    kind, us, op = _steps(schedule, met)
    moments = np.subtract.accumulate(np.r_[done_us[-1], us])
    # Of steps that go back in time, what lies between the two moments.
    inside = np.minimum(moments[:-1], last) - np.maximum(moments[1:], first)
    over = np.flatnonzero(moments[1:] < first - _BESIDE_US)
    kept = np.flatnonzero(inside[: over[0] + 1 if len(over) else None] > _ROUNDING_US)
    return Path([_KINDS[number] for number in kind[kept].tolist()], inside[kept], op[kept])


def walked(schedule: Schedule, repeats: int) -> tuple[list[float], Ints]:
    """End of each repeat, the start first; and the nodes of `_walk_back`.

    They reach from the end to the repeat before the last, or to the start of a single repeat.
    """
    until = max(repeats - 2, 0)
    if EXTENSION is None:
        return walked_in_python(schedule, repeats, until)
    done_us, met = EXTENSION.longest(*columns_for_c(schedule, {}), repeats, until, _BESIDE_US)
    return done_us, np.frombuffer(met, np.int64)


def walked_in_python(schedule: Schedule, repeats: int, until: int) -> tuple[list[float], Ints]:
    """The same if there is no extension."""
    run = _run(schedule, repeats)
    return run.done_us, _walk_back(schedule, run, run.done_us[until])


_BESIDE_US = 1.0
"""Steps may be nothing, or less by rounding: only beyond this is the walk over."""

_ROUNDING_US = 1e-8
"""A step no longer than this is what sums of times are rounded by, which differs from processor to processor: no step."""


def _walk_back(schedule: Schedule, run: _Run, until_us: float) -> Ints:
    """Nodes from the end of the last repeat back to a moment, along latest predecessors: for an op twice its position, plus 1 if it followed another op; for a
    call -1 less twice its position, less 1 if it waited for an op.
    """
    n, n_calls = len(schedule.dur_us), len(schedule.host_us)
    # As lists: taking one value out of an array costs ten times as much.
    op_call, to_op = schedule.op_call.tolist(), (schedule.dur_us + schedule.gap_us).tolist()
    to_launch = (schedule.dur_us + schedule.latency_us + schedule.host_us[schedule.op_call]).tolist()
    to_call, tail = (schedule.call_us + schedule.host_us).tolist(), schedule.tail_us.tolist()
    op, at, now = run.done_with[-1], len(run.call_waited) - 1, run.done_us[-1]
    met: list[int] = []
    while op != BEGINNING and (op >= 0 or at >= 0) and now > until_us - 2 * _BESIDE_US:
        if op >= 0:
            k, waited = op % n, run.op_waited[op]
            if waited >= 0:
                met.append(2 * k + 1)
                now -= to_op[k]
                op = waited
            else:
                met.append(2 * k)
                now -= to_launch[k]
                at, op = op // n * n_calls + op_call[k] - 1, NONE
        else:
            i, op = at % n_calls, run.call_waited[at]
            if op != NONE:
                met.append(-2 - 2 * i)
                now -= tail[i]
            else:
                met.append(-1 - 2 * i)
                now -= to_call[i]
                at -= 1
    return np.array(met, np.int64)


_KINDS = ("op", "kernel-to-kernel", "launch-delay", "host", "dispatch", "return")
_OP, _TO_KERNEL, _TO_LAUNCH, _HOST, _DISPATCH, _RETURN = range(len(_KINDS))


def _steps(schedule: Schedule, met: Ints) -> tuple[Ints, Floats, Ints]:
    """The steps of what `_back` met: index into `_KINDS`, µs, and the position of the op."""
    is_op, number = met >= 0, np.where(met >= 0, met, -1 - met)
    at, waited = number // 2, number % 2 == 1
    op = at[is_op]
    call = np.where(is_op, 0, at)
    call[is_op] = schedule.op_call[op]
    own = schedule.host_us - schedule.dispatch_us
    kind = np.full((len(met), 4), -1)
    us = np.zeros((len(met), 4))
    kind[is_op, 0], us[is_op, 0] = _OP, schedule.dur_us[op]
    for here, link, spent in (
        (is_op & waited, _TO_KERNEL, schedule.gap_us),
        (is_op & ~waited, _TO_LAUNCH, schedule.latency_us),
        (~is_op & waited, _RETURN, schedule.tail_us),
        (~is_op & ~waited, _HOST, schedule.call_us),
    ):
        kind[here, 1], us[here, 1] = link, spent[at[here]]
    hosted = ~waited
    kind[hosted, 2], us[hosted, 2] = _HOST, own[call[hosted]]
    kind[hosted, 3], us[hosted, 3] = _DISPATCH, schedule.dispatch_us[call[hosted]]
    there = kind >= 0
    positions = np.full(kind.shape, -1)
    positions[is_op, 0] = op
    return kind[there], us[there], positions[there]
