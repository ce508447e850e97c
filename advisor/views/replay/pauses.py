"""Pauses between recorded events: the program's own work, or what comes over it now and then."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Floats, Ints, Spans, overlap_with
from advisor.knowledge import recording_cost
from advisor.knowledge.shares import MOST
from advisor.recordings.columns import Table


class Pauses(msgspec.Struct, frozen=True):
    """Disjoint spans without an event, without the first `quiet_us` of each. edges_us: (n,) start and end of events, each once.

    own: at places where the program usually pauses, or does in each step, and waits for something unrecorded. odd: at places (by the events before and
    after) that it usually passes without a pause: there the profiler allocated buffers, or the machine did something else. No profiler was seen to pause
    as long as some programs do.
    """

    edges_us: Floats
    own: Spans
    odd: Spans

    @classmethod
    def create(cls, tables: Sequence[Table], steps: int, waits: Spans = EMPTY) -> Pauses:
        """Pauses between the events of a host in so many steps, in tables with `name`, `start_us` and `dur_us`. Marks of steps and ranges make places of
        one-time
        work in a step. waits: host waits for something unrecorded, such as worker processes that deliver several batches at once; a pause there belongs to
        the program, however rare.
        """
        limits = recording_cost.limits()
        at, what = _edges(tables)
        gaps = np.diff(at)
        long = np.flatnonzero(gaps > limits.quiet_us)
        first, last, lasts, odd = at[long], at[long + 1], gaps[long], np.zeros(len(long), bool)
        if len(long):
            group, passes, pauses = _places(what, long)
            unusual = (passes >= limits.usual_passes) & (pauses < limits.usual_share * passes) & (pauses < steps)
            odd = unusual[group] & (lasts < limits.longest_us) & (overlap_with(first, last, waits) < MOST * lasts)
            often = odd & (lasts > limits.rare_us)
            odd &= ~often | (often.sum() <= steps)
        first = first + limits.quiet_us
        return cls(at[np.r_[True, gaps > 0][: len(at)]], (first[~odd], last[~odd]), (first[odd], last[odd]))


def _places(what: Ints, long: Ints) -> tuple[Ints, Ints, Ints]:
    """The place of each long pause, by the events before and after it. Then how often each place is passed, and how often with a long pause."""
    before, after, count = what[:-1], what[1:], int(what.max()) + 1
    known, group = np.unique(before[long] * np.int64(count) + after[long], return_inverse=True)
    # Most events are at no such place: one look-up leaves them out, before pairs are made of the rest.
    ends, begins = np.zeros(count, bool), np.zeros(count, bool)
    ends[before[long]] = begins[after[long]] = True
    some = np.flatnonzero(ends[before] & begins[after])
    place = before[some] * np.int64(count) + after[some]
    found = np.searchsorted(known, place)
    here = known[np.minimum(found, len(known) - 1)] == place
    return group, np.bincount(found[here], minlength=len(known)), np.bincount(group, minlength=len(known))


def _edges(tables: Sequence[Table]) -> tuple[Floats, Ints]:
    """When each event begins and ends, in order, and what does: a number for each name and end of it."""
    times: list[Floats] = []
    names: list[Ints] = []
    first = 0
    for table in tables:
        start, codes = table["start_us"], np.int32(first) + 2 * table["name"].codes.astype(np.int32)
        times += [start, start + table["dur_us"]]
        names += [codes, codes + np.int32(1)]
        first += 2 * len(table["name"].categories)
    at = np.concatenate(times)
    order = np.argsort(at, kind="stable")
    return at[order], np.concatenate(names)[order]
