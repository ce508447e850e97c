"""Pauses between recorded events: the program's own work, or what comes over it now and then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from advisor.intervals import EMPTY, PIECE_ROWS, Floats, Ints, Spans, overlap_with
from advisor.knowledge import recording_cost
from advisor.knowledge.shares import MOST
from advisor.recordings.columns import Table

Codes = NDArray[np.signedinteger[Any]]


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
        edges, what, long, first, last = _edges(tables, limits.quiet_us)
        lasts, odd = last - first, np.zeros(len(long), bool)
        if len(long):
            group, passes, pauses = _places(what, long)
            unusual = (passes >= limits.usual_passes) & (pauses < limits.usual_share * passes) & (pauses < steps)
            odd = unusual[group] & (lasts < limits.longest_us) & (overlap_with(first, last, waits) < MOST * lasts)
            often = odd & (lasts > limits.rare_us)
            odd &= ~often | (often.sum() <= steps)
        first = first + limits.quiet_us
        return cls(edges, (first[~odd], last[~odd]), (first[odd], last[odd]))


def _places(what: Codes, long: Ints) -> tuple[Ints, Ints, Ints]:
    """The place of each long pause, by the events before and after it. Then how often each place is passed, and how often with a long pause."""
    count = int(what.max()) + 1
    known, group = np.unique(what[long] * np.int64(count) + what[long + 1], return_inverse=True)
    # Most events are at no such place: one look-up leaves them out, before pairs are made of the rest.
    ends, begins, passes = np.zeros(count, bool), np.zeros(count, bool), np.zeros(len(known), np.int64)
    ends[what[long]] = begins[what[long + 1]] = True
    for at in range(0, len(what), PIECE_ROWS):
        before, after = what[at : at + PIECE_ROWS], what[at + 1 : at + 1 + PIECE_ROWS]
        before = before[: len(after)]
        some = np.flatnonzero(ends[before] & begins[after])
        place = before[some] * np.int64(count) + after[some]
        found = np.searchsorted(known, place)
        here = known[np.minimum(found, len(known) - 1)] == place
        passes += np.bincount(found[here], minlength=len(known))
    return group, passes, np.bincount(group, minlength=len(known))


def _edges(tables: Sequence[Table], quiet_us: float) -> tuple[Floats, Codes, Ints, Floats, Floats]:
    """Times at which any event begins or ends, in order, each once. (n,) a number for the name and end at each edge. Then the edges before long pauses,
    and times of these pauses. The tables are in order of start.
    """
    n, names = 2 * sum(map(len, tables)), 2 * sum(len(table["name"].categories) for table in tables)
    times = np.empty(n)
    what: Codes = np.empty(n, np.int16 if names < 1 << 15 else np.int32)
    cuts = max((table["start_us"] for table in tables), key=len)[PIECE_ROWS::PIECE_ROWS].tolist()
    opened = [(np.empty(0), np.empty(0, what.dtype)) for _ in tables]  # ends of events that began before, beyond a cut
    pauses: list[tuple[Ints, Floats, Floats]] = []
    rows, done, kept, before = [0] * len(tables), 0, 0, -np.inf
    for cut in [*cuts, np.nan]:  # nothing is beyond the last
        at: list[Floats] = []
        of: list[Codes] = []
        first = 0
        for i, table in enumerate(tables):
            piece = slice(rows[i], int(np.searchsorted(table["start_us"], cut)))
            start, end = table.bounds(piece)
            begins = table["name"].codes[piece].astype(what.dtype) * 2 + first
            end, ends = np.concatenate([opened[i][0], end]), np.concatenate([opened[i][1], begins + 1])
            later = end >= cut
            opened[i] = end[later], ends[later]
            at += [start, end[~later]]
            of += [begins, ends[~later]]
            rows[i], first = piece.stop, first + 2 * len(table["name"].categories)
        time = np.concatenate(at)
        order = np.argsort(time, kind="stable")
        time = time[order]
        what[done : done + len(time)] = np.concatenate(of)[order]
        previous = np.concatenate([[before], time])[:-1]
        new, long = time[time > previous], np.flatnonzero((time - previous > quiet_us) & (previous > -np.inf))
        pauses.append((done + long - 1, previous[long], time[long]))
        times[kept : kept + len(new)] = new
        done, kept, before = done + len(time), kept + len(new), time[-1] if len(time) else before
    places, since, until = map(np.concatenate, zip(*pauses, strict=True))
    return times[:kept], what, places, since, until
