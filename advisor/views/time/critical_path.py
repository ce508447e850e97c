"""The critical path: the chain of host work, launches and GPU ops that the end of the window had to wait for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Floats, Ints, Spans, joined, overlap_with, subtract, union
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.shares import NO_DIFFERENCE
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.report.step import Link, PathPart
from advisor.views.replay.longest_path import longest_path
from advisor.views.replay.replay import Replay
from advisor.views.replay.schedule import EARLIER, Schedule
from advisor.views.trace.host_activity import LONGEST_DISPATCH_US, HostActivity
from advisor.views.trace.steps import Steps


class CriticalPath(msgspec.Struct, frozen=True):
    """The path from the start of the window to the end of its last work, in order of time, without gaps between links.

    links: (n,) kinds. start_us, end_us: (n,). op_row: (n,) row of `gpu_ops`, -1 if the link is no op. unrecorded: parts of the path of a step without a
    profiler, if recording changed the path.
    """

    links: tuple[Link, ...]
    start_us: Floats
    end_us: Floats
    op_row: Ints
    unrecorded: tuple[PathPart, ...] = ()

    def total_us(self, link: Link) -> float:
        """Time of all links of a kind."""
        chosen = np.array([k == link for k in self.links], bool)
        return float((self.end_us - self.start_us)[chosen].sum()) if len(chosen) else 0.0

    @property
    def parts(self) -> tuple[PathPart, ...]:
        """The path by kind of link, most time first."""
        return self.unrecorded or _parts(self.links, self.end_us - self.start_us)

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, replay: Replay, host: HostActivity) -> CriticalPath:
        schedule = replay.recorded
        if not len(schedule.op_row) or schedule.call_row[0] < 0:
            return cls((), np.empty(0), np.empty(0), np.empty(0, np.int64))
        path = walk(timeline, schedule, host, _begin_us(timeline, schedule, steps))
        return replace(path, unrecorded=parts_of_schedule(replay.corrected, timeline)) if replay.true_step.slowed else path


def parts_of_schedule(schedule: Schedule, timeline: Timeline) -> tuple[PathPart, ...]:
    """The critical path of a steady window of a schedule that no one has recorded, by kind of link, most time first."""
    path = longest_path(schedule)
    kinds = _kinds(timeline, schedule)
    return _parts([link if op < 0 else kinds[op] for link, op in zip(path.kind, path.op.tolist(), strict=True)], path.us)


def _kinds(timeline: Timeline, schedule: Schedule) -> list[Link]:
    """Of each op of a schedule, which link it is."""
    return np.where((timeline.gpu_ops["kind"] == GpuKind.MEMCPY.value)[schedule.op_row], "copy", "kernel").tolist()


def _parts(links: Sequence[str], us: Floats) -> tuple[PathPart, ...]:
    numbers = {link: number for number, link in enumerate(dict.fromkeys(links))}
    of = np.array([numbers[link] for link in links], np.int64)
    spent, count = (np.bincount(of, weights=w, minlength=len(numbers)).tolist() for w in (us, None))
    whole = max(sum(spent), 1e-9)
    made = [PathPart(link=link, total_us=spent[number], share=spent[number] / whole, count=count[number]) for link, number in numbers.items()]
    return tuple(sorted(made, key=lambda part: -part.total_us))


SEAMLESS = NO_DIFFERENCE
"""An op that starts within this share of its predecessor followed it, whatever its launch: a host that did not wait cannot hit the end of each op so exactly.
"""

RETURN_US = cost("return-to-host")


def _begin_us(timeline: Timeline, schedule: Schedule, steps: Steps) -> float:
    """Where the window begins on the side that bounds it: the host's, unless the GPU still had earlier work to do."""
    ops = timeline.gpu_ops
    start, end = ops.bounds()
    first = schedule.op_row[int(np.argmin(start[schedule.op_row]))]
    launched = timeline.api_calls["start_us"][schedule.call_row[schedule.op_call[0]]]
    behind = bool(((start < start[first]) & (end > launched)).any())
    return float(start[first]) if behind else steps.begun_us


def walk(timeline: Timeline, schedule: Schedule, host: HostActivity, from_us: float) -> CriticalPath:
    """Back from the last thing that a schedule's calls and ops did to `from_us`, always to what was waited for."""
    calls, ops = timeline.api_calls, timeline.gpu_ops
    call_start, call_end = calls.bounds(schedule.call_row)
    start, end = ops.bounds(schedule.op_row)
    waits = np.flatnonzero(schedule.waits_for > EARLIER + 1)
    waited_for = schedule.waits_for[waits]
    # Calls that did wait, in order of time.
    waits = waits[(call_start[waits] < end[waited_for]) & (call_end[waits] - end[waited_for] < RETURN_US)]
    now, last_end = max(float(end.max()), float(call_end.max())), float(end.max())
    op = int(np.argmax(end)) if last_end >= call_end.max() else -1
    # As lists: taking one value out of an array costs ten times as much.
    waited_for, returned = schedule.waits_for[waits].tolist(), call_end[waits].tolist()
    kinds = _kinds(timeline, schedule)
    launched = call_start[schedule.op_call]
    ahead = _ahead(schedule, start, end, launched).tolist()
    rows, starts, ends, launches = schedule.op_row.tolist(), start.tolist(), end.tolist(), launched.tolist()
    links: list[Link] = []
    firsts: list[float] = []
    lasts: list[float] = []
    at_rows: list[int] = []

    def add(link: Link, first: float, last: float, row: int = -1) -> None:
        first = first if first > from_us else from_us
        if last > first:
            links.append(link)
            firsts.append(first)
            lasts.append(last)
            at_rows.append(row)

    n = len(returned)
    while now > from_us:
        if op < 0:  # the host, back to the last call that waited; what returned later cannot have been waited for on the way here
            n = bisect_right(returned, now, hi=n) - 1
            since = returned[n] if n >= 0 else from_us
            add("host", since, now)
            if n < 0:
                break
            op = waited_for[n]
            now = min(ends[op], since)
            add("return", now, since)
            continue
        at, last = starts[op], ahead[op]
        add(kinds[op], at, now, rows[op])
        if last >= 0:
            now = min(ends[last], at)
            add("kernel-to-kernel", now, at)
        else:
            now = min(launches[op], at)
            add("launch-delay", now, at)
        op = last
    issuing = _issuing(np.r_[from_us, call_end], call_start, host)
    path = links[::-1], np.array(firsts[::-1], float), np.array(lasts[::-1], float), np.array(at_rows[::-1], np.int64)
    return _split(*_without_busy_gaps(timeline, *path), host, issuing)


def _without_busy_gaps(timeline: Timeline, links: list[Link], first: Floats, last: Floats, rows: Ints) -> tuple[list[Link], Floats, Floats, Ints]:
    """The path with the gaps between its ops that are idle time of their device. While another stream keeps the device busy, no op waits in a
    gap: what runs there is on the path, as a kernel without a row of its own."""
    gaps = np.array([at for at, link in enumerate(links[:-1]) if link == "kernel-to-kernel" and rows[at + 1] >= 0], np.int64)
    if not len(gaps):
        return links, first, last, rows
    ops = timeline.gpu_ops
    device, start = ops["device"], ops["start_us"]
    end, of, busy_us = start + ops["dur_us"], device[rows[gaps + 1]], np.zeros(len(links))
    for one in np.unique(of):
        here = gaps[of == one]
        busy_us[here] = overlap_with(first[here], last[here], union(start[device == one], end[device == one]))
    busy = np.flatnonzero(busy_us > 0)
    until = first + busy_us
    order = np.argsort(np.r_[np.arange(len(links)), busy - 0.5], kind="stable")
    begins, rest = np.where(busy_us > 0, until, first), [*links, *(["kernel"] * len(busy))]
    begins, ends = np.r_[begins, first[busy]][order], np.r_[last, until[busy]][order]
    left = (ends > begins) | (np.r_[busy_us, np.zeros(len(busy))][order] == 0)
    made: list[Link] = [rest[at] for at in order[left].tolist()]
    return made, begins[left], ends[left], np.r_[rows, np.full(len(busy), -1)][order][left]


def _issuing(call_end: Floats, call_start: Floats, host: HostActivity) -> Spans:
    """Time in which the host launched ops: not between the end of a call (n+1,) and the start of the next (n,) if these are so far apart that it did
    something else within an op.
    """
    first, last = np.maximum.accumulate(call_end)[:-1], call_start
    apart = last > first
    first, last = first[apart], last[apart]
    elsewhere = overlap_with(first, last, host.launch) > LONGEST_DISPATCH_US
    return subtract(host.launch, (first[elsewhere], last[elsewhere]))


def _ahead(schedule: Schedule, start: Floats, end: Floats, launched: Floats) -> Ints:
    """(n_ops,) the op that each waited for on the device, its own stream's or another's; -1 where it waited for its launch."""
    order = np.lexsort((start, schedule.stream))
    same = schedule.stream[order[1:]] == schedule.stream[order[:-1]]
    before = np.full(len(start), -1, np.int64)
    before[order[1:]] = np.where(same, order[:-1], -1)
    other = schedule.after
    later = (other >= 0) & ((before < 0) | (end[other] > end[before]))
    last = np.where(later, other, before)
    seamless = start - end[last] <= SEAMLESS * (end - start)[last]
    # Always to what began before: within the skew between clocks, two ops may each end before the other begins.
    at = np.arange(len(start))
    before_it = (start[last] < start) | ((start[last] == start) & (last < at))
    return np.where((last >= 0) & before_it & ((end[last] >= launched) | seamless), last, -1)


def _split(links: list[Link], first: Floats, last: Floats, rows: Ints, host: HostActivity, issuing: Spans) -> CriticalPath:
    """The host's links by what it did: what most explains it first, its own work last."""
    known: list[tuple[Link, Spans]] = [("allocation", host.allocator), ("data-loading", host.data_loading), ("dispatch", issuing)]
    names: list[Link] = [link for link, _ in known]
    hosts = np.array([link == "host" for link in links], bool)
    reach, before, begin = EMPTY, np.zeros(len(links)), first
    # Where each link's parts begin and end, in order: a part that lasts is there. The last is the link itself, or what is left of it.
    begins, ends = np.empty((len(links), len(known) + 1)), np.empty((len(links), len(known) + 1))
    for number, (_, spans) in enumerate(known):
        reach = joined(reach, spans)
        inside = overlap_with(first, last, reach)
        spent = np.where(hosts, inside - before, 0.0)
        begins[:, number], before = begin, inside
        begin = np.where(spent > 0, np.minimum(begin + spent, last), begin)
        ends[:, number] = np.where(spent > 0, begin, -np.inf)
    begins[:, -1], ends[:, -1] = begin, np.where((last > begin) | ~hosts, last, -np.inf)
    there = ends > -np.inf
    of, part = np.nonzero(there)
    split = [names[number] if number < len(names) else links[at] for at, number in zip(of.tolist(), part.tolist(), strict=True)]
    return CriticalPath(tuple(split), begins[there], ends[there], np.where(part < len(names), -1, rows[of]))
