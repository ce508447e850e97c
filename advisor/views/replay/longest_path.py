"""What a schedule's steady step is made of: the chain of host work, launches and ops that it takes as long as.

The recorded step has a critical path that is read off its times; one that no one has recorded, the step after its fixes, has
only its schedule. So it is run once, each op and call as early as it can be, and walked back along what came last. The same
as `networkx.dag_longest_path` of `graph`, in a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from advisor.views.replay.schedule import EARLIER, Schedule

REPEATS = 4
"""The path to the end of the last is looked at in the one before it: how the run began is forgotten there, and how it ends,
with the last op after the last call, is not yet seen."""

Step = tuple[str, float, int]
"""Kind of link as the critical path names them, µs, and the position of the op, -1 where it is none."""


NONE, BEGINNING = -1, -2
"""Where an op's number belongs: it waited for no op; it waited for what came before the first repeat."""


@dataclass
class _Run:
    """A schedule run back to back. Ops are numbered through all repeats, and so are calls.

    op_waited: for each op, the op that it followed, NONE where it followed its launch. call_waited: for each call, the op that
    it returned after, NONE where it waited for none. done_us: when each repeat was done, the beginning first; done_with: the
    op that was last then, NONE where the host was.
    """

    op_waited: list[int]
    call_waited: list[int]
    done_us: list[float]
    done_with: list[int]


def _run(schedule: Schedule, repeats: int) -> _Run:
    host, call, tail, waits = (c.tolist() for c in (schedule.host_us, schedule.call_us, schedule.tail_us, schedule.waits_for))
    dur, latency, gap = (c.tolist() for c in (schedule.dur_us, schedule.latency_us, schedule.gap_us))
    stream, after, skip = schedule.stream.tolist(), schedule.after.tolist(), schedule.skip_op.tolist()
    first_op = np.searchsorted(schedule.op_call, np.arange(len(host) + 1)).tolist()
    n = len(dur)
    made = _Run([NONE] * (n * repeats), [NONE] * (len(host) * repeats), [0.0], [NONE])
    end = [0.0] * (n * repeats)
    # The op that each stands for, a skipped one for the op before it on its stream; and the last one on each stream.
    stands, last_on = [NONE] * n, dict.fromkeys(stream, NONE)
    now, idle, idle_at = 0.0, BEGINNING, 0.0
    for r in range(repeats):
        earlier, earlier_at = idle, idle_at
        for i in range(len(host)):
            now += host[i]
            for k in range(first_op[i], first_op[i + 1]):
                before = last_on[stream[k]]
                if skip[k]:
                    stands[k] = before
                    continue
                op, start, waited = r * n + k, now + latency[k], NONE
                for other in (before, stands[after[k]] if after[k] >= 0 else NONE):
                    if other >= 0 and end[other] + gap[k] > start:
                        start, waited = end[other] + gap[k], other
                end[op], made.op_waited[op] = start + dur[k], waited
                last_on[stream[k]] = stands[k] = op
                if end[op] > idle_at:
                    idle, idle_at = op, end[op]
            now += call[i]
            if waits[i] != -1:
                op = earlier if waits[i] == EARLIER else stands[waits[i]]
                back = (earlier_at if waits[i] == EARLIER else end[op]) + tail[i]
                if op != NONE and back > now:
                    now, made.call_waited[r * len(host) + i] = back, op
        made.done_us.append(max(now, idle_at))
        made.done_with.append(idle if idle_at > now else NONE)
    return made


def longest_path(schedule: Schedule) -> list[Step]:
    """The steps that the steady repeat takes as long as, last first; they sum to the window's period."""
    run = _run(schedule, REPEATS if schedule.periodic else 1)
    return list(_between(_back(schedule, run), run.done_us[-1], *(run.done_us[-3:-1] if schedule.periodic else run.done_us)))


def _back(schedule: Schedule, run: _Run) -> Iterator[Step]:
    """From the end of the last repeat back to the beginning, always to what was waited for."""
    n, n_calls = len(schedule.dur_us), len(schedule.host_us)
    # As lists: taking one value out of an array costs ten times as much.
    dur, gap, latency, op_call = (c.tolist() for c in (schedule.dur_us, schedule.gap_us, schedule.latency_us, schedule.op_call))
    tail, call, dispatch = (c.tolist() for c in (schedule.tail_us, schedule.call_us, schedule.dispatch_us))
    own = (schedule.host_us - schedule.dispatch_us).tolist()
    op, at = run.done_with[-1], len(run.call_waited) - 1
    while op != BEGINNING and (op >= 0 or at >= 0):
        if op >= 0:
            k = op % n
            yield "op", dur[k], k
            if run.op_waited[op] >= 0:
                op = run.op_waited[op]
                yield "kernel-to-kernel", gap[k], -1
                continue
            yield "launch-delay", latency[k], -1
            at, op = op // n * n_calls + op_call[k], NONE
        else:
            i = at % n_calls
            if run.call_waited[at] != NONE:
                op = run.call_waited[at]
                yield "return", tail[i], -1
                continue
            yield "host", call[i], -1
        i = at % n_calls
        yield "host", own[i], -1
        yield "dispatch", dispatch[i], -1
        at -= 1


_BESIDE_US = 1.0
"""Steps may be nothing, or less by rounding: only beyond this is the walk over."""


def _between(steps: Iterator[Step], now: float, first: float, last: float) -> Iterator[Step]:
    """Of steps that go back in time from `now`, what lies between two moments."""
    for kind, us, op in steps:
        since = now - us
        inside = (now if now < last else last) - (since if since > first else first)
        if inside > 0:
            yield kind, inside, op
        now = since
        if now < first - _BESIDE_US:
            return
