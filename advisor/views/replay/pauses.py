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
        long = np.diff(at) > limits.quiet_us
        odd = np.zeros(len(long), bool)
        if long.any():
            # What ends and begins at each pause, as one number: the places where any is long are looked at.
            place = what[:-1] * (what.max() + 1) + what[1:]
            known, group = np.unique(place[long], return_inverse=True)
            found = np.searchsorted(known, place)
            here = known[np.minimum(found, len(known) - 1)] == place
            passes, pauses = np.bincount(found[here], minlength=len(known)), np.bincount(group, minlength=len(known))
            unusual = (passes >= limits.usual_passes) & (pauses < limits.usual_share * passes) & (pauses < steps)
            lasts = np.diff(at)[long]
            odd[long] = unusual[group] & (lasts < limits.longest_us) & (overlap_with(at[:-1][long], at[1:][long], waits) < MOST * lasts)
            often = odd & (np.diff(at) > limits.rare_us)
            odd &= ~often | (often.sum() <= steps)
        first, last = at[:-1] + limits.quiet_us, at[1:]
        return cls(at[np.r_[True, np.diff(at) > 0][: len(at)]], (first[long & ~odd], last[long & ~odd]), (first[odd], last[odd]))


def _edges(tables: Sequence[Table]) -> tuple[Floats, Ints]:
    """When each event begins and ends, in order, and what does: a number for each name and end of it."""
    times: list[Floats] = []
    names: list[Ints] = []
    first = 0
    for table in tables:
        start, codes = table["start_us"], table["name"].codes.astype(np.int64)
        times += [start, start + table["dur_us"]]
        names += [first + 2 * codes, first + 2 * codes + 1]
        first += 2 * len(table["name"].categories)
    at = np.concatenate(times)
    order = np.argsort(at, kind="stable")
    return at[order], np.concatenate(names)[order]
