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
    """Disjoint spans without an event, less the first `quiet_us` of each. edges_us: (n,) when events begin and end, once each.

    own: of places where the program usually pauses, or does so in each step, and waits for something else of its own. odd: of
    places, told by the events before and after, that it usually passes without: there the recorder took memory for its next
    records, or the machine did something else. No recorder was seen to pause for as long as some programs do.
    """

    edges_us: Floats
    own: Spans
    odd: Spans

    @classmethod
    def create(cls, tables: Sequence[Table], steps: int, waits: Spans = EMPTY) -> Pauses:
        """Those of the events of one host in so many steps, in tables with `name`, `start_us` and `dur_us`. Marks of steps and
        ranges among them make places of what a step does once. waits: where the host waits for what is not recorded, as for
        processes that deliver several batches at a time: a pause there is the program's, however seldom."""
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
