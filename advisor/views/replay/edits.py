"""What fixes do to a schedule, as data: it can be looked at, sent to another process, saved in a report, and combined."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.knowledge.measured_costs import cost, costs
from advisor.report.finding import Change
from advisor.views.replay.schedule import Schedule


class Edit(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """One thing that a fix does to a schedule. Calls and ops are positions in it, which no edit renumbers."""

    def apply(self, schedule: Schedule) -> Schedule:
        """The schedule as it is after the fix; the one given stays."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Its kind, as a report says it."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__).lower()

    @property
    def parts(self) -> tuple[Edit, ...]:
        """The edits that it consists of, in order."""
        return (self,)


class Combined(Edit, frozen=True, eq=False):
    """Several edits in turn. Edits that add host time come after edits that scale it, since these scale the current time, but before edits that change how
    everything is launched.
    """

    edits: tuple[Edit, ...] = ()

    def apply(self, schedule: Schedule) -> Schedule:
        for part in self.parts:
            schedule = part.apply(schedule)
        return schedule

    @property
    def parts(self) -> tuple[Edit, ...]:
        made: list[Edit] = []
        added: list[Edit] = []
        for part in (part for edit in self.edits for part in edit.parts):
            if isinstance(part, WithHostTime):
                added.append(part)
                continue
            if isinstance(part, _ISSUED_ANOTHER_WAY):
                made, added = [*made, *added], []
            made.append(part)
        return (*made, *added)


def combine(*edits: Edit) -> Edit:
    """All of several edits, in turn; none of them changes nothing."""
    return edits[0] if len(edits) == 1 else Combined(edits)


class Edits(NamedTuple):
    """The effect of a fix on the step at the low end, as expected, and at the high end."""

    low: Edit
    expected: Edit
    high: Edit

    @classmethod
    def exact(cls, edit: Edit) -> Edits:
        """A fix whose effect on the schedule is known."""
        return cls(edit, edit, edit)

    @classmethod
    def combined(cls, edits: Sequence[Edits]) -> Edits:
        """Every fix applied, each at the same end."""
        return cls(*(combine(*ends) for ends in zip(*edits, strict=True))) if edits else cls.exact(Combined())


def changes(schedule: Schedule, edit: Edit) -> Iterator[Change]:
    """What each part of an edit does to a step, in order; parts that do nothing are left out."""
    for part in edit.parts:
        after = part.apply(schedule)
        made = _change(part.name, schedule, after)
        if made != Change(part.name):
            yield made
        schedule = after


def _change(name: str, before: Schedule, after: Schedule) -> Change:
    gone = after.skip_op & ~before.skip_op
    other = [getattr(before, column) != getattr(after, column) for column in ("dur_us", "latency_us", "gap_us", "stream", "after")]
    return Change(
        name,
        ops_removed=float(gone.sum()) / before.steps,
        ops_changed=float((np.logical_or.reduce(other) & ~after.skip_op).sum()) / before.steps,
        gpu_us=(_gpu_us(before) - _gpu_us(after)) / before.steps,
        host_us=(_host_us(before) - _host_us(after)) / before.steps,
        waits_removed=float(((before.waits_for != -1) & (after.waits_for == -1)).sum()) / before.steps,
    )


def gpu_us_removed(schedule: Schedule, edit: Edit) -> float:
    """The time a step that its ops no longer take after an edit."""
    return (_gpu_us(schedule) - _gpu_us(edit.apply(schedule))) / schedule.steps


def least_us(schedule: Schedule, edit: Edit) -> float:
    """The least step time after an edit: the work of the busiest stream, or the host's. Work that the edit leaves alone keeps its time. Work that it
    shortens keeps at least half of its edited time, since that is an estimate."""
    after = edit.apply(schedule)
    host_us = _certain(schedule.host_us + schedule.call_us, after.host_us + after.call_us)
    # A negative gap is an op that begins before the one ahead of it ends.
    ops_us = _certain(schedule.dur_us, np.where(after.skip_op, 0.0, after.dur_us)) + np.minimum(np.where(after.skip_op, 0.0, after.gap_us), 0.0)
    return max(float(host_us.sum()), float(np.bincount(after.stream, ops_us).max(initial=0.0))) / schedule.steps


def _certain(before_us: Floats, after_us: Floats) -> Floats:
    return np.where(after_us < before_us, after_us / 2, before_us)


def _gpu_us(schedule: Schedule) -> float:
    return float(schedule.dur_us[~schedule.skip_op].sum())


def _host_us(schedule: Schedule) -> float:
    return float(schedule.host_us.sum() + schedule.call_us.sum())


class WithoutWaits(Edit, frozen=True, eq=False):
    """These calls no longer wait for the GPU, nor cost the host anything."""

    calls: Ints

    def apply(self, schedule: Schedule) -> Schedule:
        waits, cost = schedule.waits_for.copy(), schedule.call_us.copy()
        waits[self.calls], cost[self.calls] = -1, 0.0
        return schedule.edit(waits_for=waits, call_us=cost)


class WithDurations(Edit, frozen=True, eq=False):
    """These ops take that long; never longer than they did."""

    ops: Ints
    dur_us: Floats

    def apply(self, schedule: Schedule) -> Schedule:
        dur = schedule.dur_us.copy()
        dur[self.ops] = np.minimum(dur[self.ops], self.dur_us)
        return schedule.edit(dur_us=dur)


ASYNC_LATENCY_US = cost("async-copy-latency")


class FasterCopies(Edit, frozen=True, eq=False):
    """These copies take that long and start without being staged; never slower than they were."""

    ops: Ints
    dur_us: Floats

    def apply(self, schedule: Schedule) -> Schedule:
        dur, latency = schedule.dur_us.copy(), schedule.latency_us.copy()
        dur[self.ops] = np.minimum(dur[self.ops], self.dur_us)
        latency[self.ops] = np.minimum(latency[self.ops], ASYNC_LATENCY_US)
        return schedule.edit(dur_us=dur, latency_us=latency)


class WithoutTime(Edit, frozen=True, eq=False):
    """These ops take no GPU time; host time stays. An op that others were fused into still does their work."""

    ops: Ints

    def apply(self, schedule: Schedule) -> Schedule:
        own = self.ops[~schedule.fused[self.ops]]
        dur, gap = schedule.dur_us.copy(), schedule.gap_us.copy()
        dur[own] = gap[own] = 0.0
        return schedule.edit(dur_us=dur, gap_us=gap)


class FewerLaunches(Edit, frozen=True, eq=False):
    """Ops `gone` are not launched, `kept` do their work in `dur_us`; the host's time between calls stays."""

    kept: Ints
    gone: Ints
    dur_us: Floats

    def apply(self, schedule: Schedule) -> Schedule:
        edited, calls = _without_calls(schedule, self.kept, self.gone, self.dur_us)
        cost = schedule.call_us.copy()
        cost[calls] = 0.0
        return edited.edit(call_us=cost)


class Fused(FewerLaunches, frozen=True, eq=False):
    """Ops `gone` disappear with the host time that issued them; `kept` do their work in `dur_us`."""

    @classmethod
    def chains(cls, chains: Sequence[Ints], dur_us: Floats, kernels: Sequence[int] = ()) -> Fused:
        """Each chain of ops becomes its first, or as many of its first as `kernels` says, which take that long together."""
        left = [min(n, len(c)) for c, n in zip(chains, kernels or [1] * len(chains), strict=True)]
        return cls(
            np.concatenate([c[:n] for c, n in zip(chains, left, strict=True)]),
            np.concatenate([c[n:] for c, n in zip(chains, left, strict=True)]),
            np.repeat(np.asarray(dur_us) / left, left),
        )

    def apply(self, schedule: Schedule) -> Schedule:
        edited, calls = _without_calls(schedule, self.kept, self.gone, self.dur_us)
        host, dispatch, cost = schedule.host_us.copy(), schedule.dispatch_us.copy(), schedule.call_us.copy()
        host[calls] -= dispatch[calls]
        dispatch[calls] = cost[calls] = 0.0
        return edited.edit(host_us=host, dispatch_us=dispatch, call_us=cost)


class WithoutOps(Edit, frozen=True, eq=False):
    """These ops disappear with the host time that issued them."""

    ops: Ints

    def apply(self, schedule: Schedule) -> Schedule:
        return Fused(self.ops[:0], self.ops, np.empty(0)).apply(schedule)


def _without_calls(schedule: Schedule, kept: Ints, gone: Ints, dur_us: Floats) -> tuple[Schedule, Ints]:
    """`kept` take that long and represent those gone; and the calls that are no longer made, as all their ops are gone."""
    dur, skip, fused = schedule.dur_us.copy(), schedule.skip_op.copy(), schedule.fused.copy()
    dur[kept] = dur_us
    fused[kept], skip[gone] = True, True
    left, had = (np.bincount(schedule.op_call[ops], minlength=len(schedule.call_us)) for ops in (~skip, gone))
    return schedule.edit(dur_us=dur, skip_op=skip, fused=fused), np.flatnonzero((left == 0) & (had > 0))


class CheaperDispatch(Edit, frozen=True, eq=False):
    """Issuing ops costs the host this share of what it did, but for some calls (positions); waits and the program's own work stay."""

    share: float
    kept: Ints = msgspec.field(default_factory=lambda: np.empty(0, np.int64))

    def apply(self, schedule: Schedule) -> Schedule:
        launches = _launching(schedule, np.zeros(len(schedule.op_call), bool))
        share = np.full(len(schedule.call_us), self.share)
        share[self.kept] = 1.0
        return schedule.edit(
            host_us=schedule.host_us - (1 - share) * schedule.dispatch_us,
            dispatch_us=share * schedule.dispatch_us,
            call_us=np.where(launches, share * schedule.call_us, schedule.call_us),
        )


class WithDispatch(Edit, frozen=True, eq=False):
    """Issuing costs each call (n_calls,) this share of what it did; calls themselves stay."""

    keep: Floats

    def apply(self, schedule: Schedule) -> Schedule:
        return schedule.edit(host_us=schedule.host_us - (1 - self.keep) * schedule.dispatch_us, dispatch_us=self.keep * schedule.dispatch_us)


class WithoutHostTime(Edit, frozen=True, eq=False):
    """Before each call (n_calls,) these shares of its issuing and of the program's own time are gone; the calls stay."""

    dispatch_share: Floats
    own_share: Floats

    def apply(self, schedule: Schedule) -> Schedule:
        dispatch = schedule.dispatch_us * (1 - self.dispatch_share)
        own = np.maximum(schedule.host_us - schedule.dispatch_us, 0.0) * (1 - self.own_share)
        return schedule.edit(host_us=dispatch + own, dispatch_us=dispatch)


OF_EACH_US = 1000.0
"""A longer pause between two launches is no dispatch."""


class Batched(Edit, frozen=True, eq=False):
    """A step serves `items` in the time of a single item: per item, the host's part and these ops are divided by `items`. Spans of CPU code of `OF_EACH_US`
    or more are per item: preparing its words, images or sounds, and writing its answer.
    """

    items: float
    ops: Ints

    def apply(self, schedule: Schedule) -> Schedule:
        dur = schedule.dur_us.copy()
        dur[self.ops] /= self.items
        own = schedule.host_us - schedule.dispatch_us
        of_each = np.where(own >= OF_EACH_US, own, 0.0)
        return schedule.edit(
            host_us=of_each + (schedule.host_us - of_each) / self.items,
            dispatch_us=schedule.dispatch_us / self.items,
            call_us=schedule.call_us / self.items,
            tail_us=schedule.tail_us / self.items,
            latency_us=schedule.latency_us / self.items,
            gap_us=schedule.gap_us / self.items,
            dur_us=dur,
        )


GRAPH_LAUNCH_US, GRAPH_NODE_GAP_US = costs("graph-launch")


class AsGraph(Edit, frozen=True, eq=False):
    """Launches become graph launches: one at the start of each step and after each wait of the host. A single op between two of these stays, since a graph of
    it saves nothing. A recorded graph has the expected cost. calls: the captured calls, None for all.
    """

    launch_us: float
    node_gap_us: float
    calls: Ints | None = None

    def apply(self, schedule: Schedule) -> Schedule:
        launches = _launching(schedule, schedule.skip_op)
        waits = schedule.waits_for != -1
        starts = np.r_[True, waits[:-1]] if len(waits) else waits
        starts[schedule.begins[: len(waits)]] = True
        # The first launch of a step, and after each wait, carries the graph's cost.
        segment = np.cumsum(starts) - 1
        several = np.bincount(segment[schedule.op_call[~schedule.skip_op]], minlength=len(waits)) > 1
        joined = several[segment]
        if self.calls is not None:
            joined &= np.isin(np.arange(len(joined)), self.calls)
        rows = np.flatnonzero(launches & joined)
        _, first = np.unique(segment[rows], return_index=True)
        cost = np.where(launches & ~waits & joined, 0.0, schedule.call_us)
        cost[rows[first]] += self.launch_us
        return schedule.edit(
            host_us=schedule.host_us - np.where(joined, schedule.dispatch_us, 0.0),
            dispatch_us=np.where(joined, 0.0, schedule.dispatch_us),
            call_us=cost,
            gap_us=np.where(joined[schedule.op_call], np.minimum(schedule.gap_us, self.node_gap_us), schedule.gap_us),
        )


def _launching(schedule: Schedule, without: Mask) -> Mask:
    """(n_calls,) whether each call launches an op, of those that are left."""
    launches = np.zeros(len(schedule.call_us), bool)
    launches[schedule.op_call[~without]] = True
    return launches


class OnSideStream(Edit, frozen=True, eq=False):
    """These copies run on a stream of their own, ahead: no op of the same step waits for them."""

    ops: Ints

    def apply(self, schedule: Schedule) -> Schedule:
        stream, after = schedule.stream.copy(), schedule.after.copy()
        stream[self.ops] = schedule.stream.max() + 1
        after[self.ops] = -1
        after[np.isin(after, self.ops)] = -1
        waits = schedule.waits_for.copy()
        waits[np.isin(waits, self.ops)] = -1
        return schedule.edit(stream=stream, after=after, waits_for=waits)


class NextAfter(Edit, frozen=True, eq=False):
    """What is launched right after each of these ops, on another stream, starts when that op has ended: as it did while the host waited."""

    ops: Ints

    def apply(self, schedule: Schedule) -> Schedule:
        ops = self.ops[self.ops + 1 < len(schedule.after)]
        ops = ops[(schedule.stream[ops + 1] != schedule.stream[ops]) & (schedule.after[ops + 1] == -1)]
        after = schedule.after.copy()
        after[ops + 1] = ops
        return schedule.edit(after=after)


class WithHostTime(Edit, frozen=True, eq=False):
    """Launching each of these ops costs the host so much more."""

    ops: Ints
    us: float

    def apply(self, schedule: Schedule) -> Schedule:
        calls = np.flatnonzero(np.bincount(schedule.op_call[self.ops]))
        host, dispatch = schedule.host_us.copy(), schedule.dispatch_us.copy()
        host[calls] += self.us
        dispatch[calls] += self.us
        return schedule.edit(host_us=host, dispatch_us=dispatch)


_ISSUED_ANOTHER_WAY = (AsGraph, Batched, CheaperDispatch, WithDispatch)
