"""What a schedule's steady step is made of: the chain of host work, launches and ops that it takes as long as.

The recorded step has a critical path that is read off its times; one that no one has recorded, the step after its fixes, has
only its schedule. So it is run once, each op and call as early as it can be, and walked back along what came last. The same
as `networkx.dag_longest_path` of `graph`, in a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.views.replay.schedule import EARLIER, Schedule

REPEATS = 4
"""The path to the end of the last is looked at in the one before it: how the run began is forgotten there, and how it ends,
with the last op after the last call, is not yet seen."""

Step = tuple[str, float, int]
"""Kind of link as the critical path names them, µs, and the position of the op, -1 where it is none."""


class _Run:
    """Every moment of a schedule run back to back, each with the moment that it waited for."""

    def __init__(self, schedule: Schedule, repeats: int) -> None:
        self.at: list[float] = [0.0]
        self.came_from: list[int] = [-1]
        self.steps: list[tuple[Step, ...]] = [()]
        self.done = [0]
        idle = 0
        self._columns(schedule)
        ended, last_on, now = [-1] * len(self.dur), dict[int, int](), 0
        for _ in range(repeats):
            for i in range(len(self.host)):
                own = self.host[i] - self.dispatch[i]
                issued = self._moment((now, (("dispatch", self.dispatch[i], -1), ("host", own, -1))))
                for k in range(self.first_op[i], self.first_op[i + 1]):
                    before = last_on.get(self.stream[k], -1)
                    if self.skip[k]:
                        ended[k] = before
                        continue
                    work = ("op", self.dur[k], k)
                    queued = (("kernel-to-kernel", self.gap[k], -1), work)
                    other = ended[self.after[k]] if self.after[k] >= 0 else -1
                    launched = (issued, (("launch-delay", self.latency[k], -1), work))
                    last_on[self.stream[k]] = ended[k] = self._moment(launched, (before, queued), (other, queued))
                awaited = -1 if self.waits[i] == -1 else idle if self.waits[i] == EARLIER else ended[self.waits[i]]
                now = self._moment((issued, (("host", self.call[i], -1),)), (awaited, (("return", self.tail[i], -1),)))
            idle = self._moment((idle, ()), *((node, ()) for node in last_on.values()))
            self.done.append(self._moment((now, ()), (idle, ())))

    def _columns(self, schedule: Schedule) -> None:
        self.host, self.dispatch, self.call = schedule.host_us.tolist(), schedule.dispatch_us.tolist(), schedule.call_us.tolist()
        self.waits, self.tail = schedule.waits_for.tolist(), schedule.tail_us.tolist()
        self.dur, self.latency, self.gap = schedule.dur_us.tolist(), schedule.latency_us.tolist(), schedule.gap_us.tolist()
        self.stream, self.after, self.skip = schedule.stream.tolist(), schedule.after.tolist(), schedule.skip_op.tolist()
        self.first_op = np.searchsorted(schedule.op_call, np.arange(len(self.host) + 1)).tolist()

    def _moment(self, *waits: tuple[int, tuple[Step, ...]]) -> int:
        """A moment that comes once all of these have: earlier moments, and what passes after each. -1 is before all others."""
        best, chosen = -np.inf, waits[0]
        for wait in waits:
            if wait[0] >= 0 and (at := self.at[wait[0]] + sum(step[1] for step in wait[1])) > best:
                best, chosen = at, wait
        self.at.append(best)
        self.came_from.append(chosen[0])
        self.steps.append(chosen[1])
        return len(self.at) - 1


def longest_path(schedule: Schedule) -> list[Step]:
    """The steps that the steady repeat takes as long as, last first; they sum to the window's period."""
    repeats = REPEATS if schedule.periodic else 1
    run = _Run(schedule, repeats)
    end, ends = run.at[run.done[-1]], [run.at[node] for node in run.done]
    return list(_between(_back(run, run.done[-1]), end, *(ends[-3:-1] if schedule.periodic else ends)))


def _back(run: _Run, node: int) -> Iterator[Step]:
    while node >= 0:
        yield from reversed(run.steps[node])
        node = run.came_from[node]


def _between(steps: Iterator[Step], now: float, first: float, last: float) -> Iterator[Step]:
    """Of steps that go back in time from `now`, what lies between two moments."""
    for kind, us, op in steps:
        inside = min(now, last) - max(now - us, first)
        if inside > 0:
            yield kind, inside, op
        now -= us
