"""What fixes do to a job, as data: each can be looked at, sent to another machine, combined and replayed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from advisor.knowledge.structs import replace
from advisor.views.ranks.lane import PARTS
from advisor.views.ranks.schedule import JobSchedule

OWN = tuple(part for part in PARTS if part != "communication")
HOST_PARTS = ("launch", "host", "sync", "data-loading")
"""Idle time of a device that its host makes."""


class JobEdit(msgspec.Struct, frozen=True, tag=True):
    """A change of a job's schedule."""

    def apply(self, schedule: JobSchedule) -> JobSchedule:
        """The schedule once it is made; this one changes nothing."""
        return schedule


class JobEdits(NamedTuple):
    """The effect of a fix on the job at the low end, as expected, and at the high end."""

    low: JobEdit
    expected: JobEdit
    high: JobEdit


class MedianParts(JobEdit, frozen=True):
    """These ranks spend no more on these parts than the median of the others; all ranks if none is named."""

    ranks: tuple[int, ...] = ()
    parts: tuple[str, ...] = OWN
    share: float = 1.0
    """How much of the excess goes."""

    def apply(self, schedule: JobSchedule) -> JobSchedule:
        stretches, host = schedule.stretches, schedule.graph.host_us.copy()
        if len(stretches) < 2:
            return schedule
        own = schedule.own.copy()
        chosen = [PARTS.index(part) for part in self.parts]
        for rank in self.ranks or range(len(stretches)):
            mine = stretches[rank][:, chosen]
            others = np.delete(stretches[:, :, chosen], rank, axis=0)
            over = np.maximum(mine - np.median(others, axis=0), 0.0)
            # Noise of stretches adds up where only excesses count: together they are no more than the whole rank's excess.
            whole = np.maximum(mine.sum(axis=0) - np.median(others.sum(axis=1), axis=0), 0.0)
            gone = over * np.minimum(np.divide(whole, over.sum(axis=0), out=np.zeros(len(chosen)), where=over.sum(axis=0) > 0), 1.0)
            keep = 1 - self.share * np.divide(gone, mine, out=np.zeros(mine.shape), where=mine > 0)
            rows = np.flatnonzero(schedule.segment_rank == rank)
            own[rows[:, None], chosen] *= keep[schedule.stretch[rows]]
            if set(self.parts) & set(HOST_PARTS):
                usual = float(np.median(np.delete(schedule.graph.host_us, rank)))
                host[rank] -= self.share * max(host[rank] - usual, 0.0)
        return schedule.edited(own=own, host_us=host)


class Evened(JobEdit, frozen=True):
    """The ranks' own work divided evenly, hosts' with it: in each stretch between collectives each does as much as the mean."""

    parts: tuple[str, ...] = OWN
    share: float = 1.0

    def apply(self, schedule: JobSchedule) -> JobSchedule:
        spent, host = schedule.stretches, schedule.graph.host_us
        ratio = np.divide(spent.mean(axis=0), spent, out=np.ones(spent.shape), where=spent > 0)
        factor = 1 + self.share * (ratio - 1)
        factor[:, :, [at for at, part in enumerate(PARTS) if part not in self.parts]] = 1.0
        host = host + self.share * (host.mean() - host)
        return schedule.edited(own=schedule.own * factor[schedule.segment_rank, schedule.stretch], host_us=host)


class LessComputing(JobEdit, frozen=True):
    """Kernels of each rank (all equal for a single figure) take so many µs less per step; more if negative."""

    us: tuple[float, ...]

    def apply(self, schedule: JobSchedule) -> JobSchedule:
        at = PARTS.index("compute")
        computing = schedule.totals[:, at]
        keep = 1 - np.minimum(np.divide(np.broadcast_to(np.array(self.us), len(computing)), computing, out=np.zeros(len(computing)), where=computing > 0), 1.0)
        own = schedule.own.copy()
        own[:, at] *= keep[schedule.segment_rank]
        return schedule.edited(own=own)


class Transfers(JobEdit, frozen=True):
    """Collectives (numbers among the job's) take this factor of their transfer, and each rank's host so much less a step."""

    collectives: tuple[int, ...]
    factor: float
    host_us: float = 0.0

    def apply(self, schedule: JobSchedule) -> JobSchedule:
        chosen = np.isin(schedule.collective, self.collectives)
        transfer = np.where(chosen, schedule.transfer_us * self.factor, schedule.transfer_us)
        saved = schedule
        if self.host_us:
            saved = FasterHost((self.host_us,)).apply(schedule)
        return saved.edited(transfer_us=transfer)


class Ahead(JobEdit, frozen=True):
    """Collectives (numbers of the job's) overlap computing. A gather starts with the work before it, not after it, and later work waits only for the gather."""

    collectives: tuple[int, ...]

    def apply(self, schedule: JobSchedule) -> JobSchedule:
        graph, segments = schedule.graph, len(schedule.own)
        node = np.zeros(len(graph.dur_us), bool)
        node[segments:] = np.isin(schedule.collective, self.collectives)
        lag = graph.lag_us.copy()
        into = node[graph.target] & (graph.source < segments)
        lag[into] -= graph.dur_us[graph.source[into]]
        out = node[graph.source] & (graph.target < segments)
        lag[out] -= graph.dur_us[graph.source[out]]
        return replace(schedule, graph=replace(graph, lag_us=lag))


class FasterHost(JobEdit, frozen=True):
    """Each rank's host (all equal for a single figure) launches a step in so many µs less; idle time of its device shrinks accordingly, at these parts in turn."""

    us: tuple[float, ...]
    parts: tuple[str, ...] = ("launch", "host")

    def apply(self, schedule: JobSchedule) -> JobSchedule:
        totals = schedule.totals
        saved = np.broadcast_to(np.array(self.us), len(totals)).copy()
        left = saved.copy()
        factor = np.ones_like(totals)
        for part in self.parts:
            at = PARTS.index(part)
            gone = np.minimum(left, totals[:, at])
            factor[:, at] = 1 - np.divide(gone, totals[:, at], out=np.zeros(len(gone)), where=totals[:, at] > 0)
            left -= gone
        own = schedule.own * factor[schedule.segment_rank]
        return schedule.edited(own=own, host_us=np.maximum(schedule.graph.host_us - saved, 0.0))


class WithoutHolding(JobEdit, frozen=True):
    """Hosts no longer wait for collectives, so that they run ahead: no device idles for its host, unless that is slower by itself."""

    share: float = 1.0

    def apply(self, schedule: JobSchedule) -> JobSchedule:
        own = schedule.own.copy()
        own[:, [PARTS.index(part) for part in ("launch", "host", "sync")]] *= 1 - self.share
        return schedule.edited(own=own)


class Several(JobEdit, frozen=True):
    """One after the other."""

    edits: tuple[JobEdit, ...]

    def apply(self, schedule: JobSchedule) -> JobSchedule:
        for edit in self.edits:
            schedule = edit.apply(schedule)
        return schedule
