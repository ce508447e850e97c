"""Ranges that mark steps on the host: an inference server's, by its names, and the program's own, by what they hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from advisor.intervals import Floats, Ints, Mask, in_spans, overlap_with
from advisor.knowledge.framework_ranges import BY_FRAMEWORK
from advisor.knowledge.server_marks import phase, server_step
from advisor.knowledge.shares import MOST, NEARLY_ALL
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Timeline
from advisor.views.trace.jitted_steps import may_mark
from advisor.views.trace.launches import Launches
from advisor.views.trace.marks import MOST_WORK, Marks, of_one_kind
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.table_filters import matches, spans_of

_NUMBER = re.compile(r"\d+")

COVERED, UNEVEN = MOST, 3.0
"""Ranges that cover less of the run than this, at periods further apart than this factor, do not mark its steps."""


def of_one_process(rows: Table, timeline: Timeline, launches: Launches) -> tuple[Table, int]:
    """Of several processes in a recording, as ranks of a file, the process with most launches on the device with most work: that device's first kernels
    define steps. -1 if no process with marks launches.
    """
    pids = rows["pid"]
    process = launches.main_process(timeline, np.unique(pids))
    return (rows if process < 0 else rows[pids == process]), process


def server_steps(timeline: Timeline, launches: Launches) -> Marks | None:
    """Each forward pass of an inference server, which it marks by its kind."""
    rows, process = server_rows(timeline, launches)
    return _by_kind(rows, server_step, timeline, launches.of_process(timeline, process), process) if len(rows) else None


def server_rows(timeline: Timeline, launches: Launches) -> tuple[Table, int]:
    """The ranges that a server marks, of one process, and which."""
    return of_one_process(_named(timeline.annotations, server_step), timeline, launches)


def _named(frame: Table, kind_of: Callable[[str], str]) -> Table:
    """The ranges whose names say a kind of step."""
    return frame[frame["name"].matching(kind_of)]


def _by_kind(rows: Table, kind_of: Callable[[str], str], timeline: Timeline, launches: Launches, process: int, fewest: int = 1) -> Marks | None:
    """Outermost ranges that each name their kind, as marks of a single kind (see `of_one_kind`)."""
    rows, outer = outermost(rows)
    start, end = (side[outer] for side in rows.bounds())
    worked = _work_before(timeline, launches)
    done = worked(np.r_[start, end[-1]])
    return of_one_kind([kind_of(name) for name in rows["name"][outer]], start, end, np.diff(done), process, fewest)


def outermost(rows: Table) -> tuple[Table, Mask]:
    """The ranges by start, the longer of two first, and (n,) which of them lie in no other."""
    rows = rows[np.lexsort((-rows["dur_us"], rows["start_us"]))]
    end = rows.ends
    outer: Mask = end > np.r_[-np.inf, np.maximum.accumulate(end)[:-1]]
    return rows, outer


def repeated_range(timeline: Timeline, launches: Launches, fewest: int = FEWEST_REPEATS) -> Marks | None:
    """The user's own range that repeats, does not overlap itself and launches most of the GPU's work; the longest such. If ranges are named as
    kinds of steps, those of one kind."""
    frame = timeline.annotations
    if (mine := may_mark(timeline)) is not None:
        frame = frame[mine]
    if not len(frame) or not len(timeline.gpu_ops):
        return None
    stems = np.array([_NUMBER.sub("#", n) if not BY_FRAMEWORK.search(n) else "" for n in frame["name"].categories])
    own, process = of_one_process(frame[(stems != "")[frame["name"].codes]], timeline, launches)
    own = own[~_opened_by_ops(own, timeline, process)]
    launches = launches.of_process(timeline, process)
    worked = _work_before(timeline, launches)

    def holds_most(start: Floats, end: Floats) -> bool:
        done = worked(np.r_[start, end[-1]])
        return bool(done[-1] - done[0] > MOST_WORK * worked(np.inf) and np.diff(done).max() <= MOST_OF_ALL * (done[-1] - done[0]))

    phases = _named(own, phase)
    several = len(set(map(phase, phases["name"]))) > 1 and holds_most(*phases.bounds())
    if several and (marks := _by_kind(phases, phase, timeline, launches, process, FEWEST_REPEATS)) and not (marks.start[1:] < marks.end[:-1]).any():
        return marks
    _, stem_of_name = np.unique(stems, return_inverse=True)
    found: list[tuple[float, int, tuple[Floats, Floats], Ints]] = []
    for stem, name, start, end in _by_stem(own, stem_of_name):
        if len(start) >= fewest and not (start[1:] < end[:-1]).any() and _paces(start, end) and holds_most(start, end):
            found.append((float(np.median(end - start)), stem, (start, end), name))
    # The longest first: the others need no closer look once it holds.
    for _, stem, span, names in sorted(found, key=lambda one: -one[0]):
        named = stem_of_name == stem
        if named.sum() == 1 or (_as_long(names, *span) and not _parts_of_a_step(timeline, launches, named, process, *span)):
            return Marks(*span, process)
    return None


_OP = re.compile(r"::")
"""In the name of a registered op."""


def _opened_by_ops(own: Table, timeline: Timeline, process: int) -> Mask:
    """(n_own,) which ranges lie inside of an op, on any thread of the process: layers that are alike have them at an even pace."""
    ops = timeline.cpu_ops
    ops = ops[ops["pid"] == process] if process >= 0 else ops
    start, end = own.bounds()
    around = spans_of(ops, matches(ops, _OP))
    return in_spans(start, around) & (overlap_with(start, end, around) >= end - start)


MOST_OF_ALL = NEARLY_ALL
"""Share of the work between the first and last repeating range: if a range holds more, the others are of another kind."""


def _by_stem(frame: Table, stem_of_name: Ints) -> Iterator[tuple[int, Ints, Floats, Floats]]:
    """Each stem's ranges, their names, starts and ends, by start, in one pass over the rows however many stems there are."""
    codes = frame["name"].codes
    stems = stem_of_name[codes]
    order = np.argsort(stems, kind="stable")
    start, dur, codes, stems = frame["start_us"][order], frame["dur_us"][order], codes[order], stems[order]
    edges = np.flatnonzero(np.diff(np.r_[-1, stems, stems.max(initial=-1) + 1]))
    for first, last in pairwise(edges.tolist()):
        yield int(stems[first]), codes[first:last], start[first:last], start[first:last] + dur[first:last]


def _work_before(timeline: Timeline, launches: Launches) -> Callable[[Floats | float], Floats]:
    """How many microseconds of GPU work the host had launched before each time."""
    known = launches.in_order
    at, total = launches.start_us[known], np.r_[0.0, np.cumsum(timeline.gpu_ops["dur_us"][known])]
    return lambda times_us: total[np.searchsorted(at, times_us)]


ALIKE = MOST
"""Steps run the same program: at least half of them begin with the same kernel. Layers that are only numbered do not."""


ORDER = 10.0
"""By this much ranges differ that a program only numbers, as parts of one pass: steps run the same program."""


def _as_long(name: Ints, start: Floats, end: Floats) -> bool:
    """Whether ranges with names that differ by a number have similar durations, as steps do: at least half within an order of magnitude of their median,
    since the first may compile. Of recurring numbers, as parts have, all medians but one must be.
    """
    lasts = np.maximum(end - start, 1e-9)
    if not _alike(lasts).mean() >= ALIKE:
        return False
    names, count = np.unique(name, return_counts=True)
    if np.median(count) < 2:
        return True
    return bool((~_alike(np.array([np.median(lasts[name == one]) for one in names]))).sum() <= 1)


def _alike(lasts: Floats) -> np.ndarray:
    usual = float(np.median(lasts))
    return (lasts * ORDER >= usual) & (lasts <= usual * ORDER)


def _parts_of_a_step(timeline: Timeline, launches: Launches, named: np.ndarray, process: int, start: Floats, end: Floats) -> bool:
    """Whether ranges with names that differ by a number are layers, not steps: several are in each repeat of a longer range of their thread, or their
    launches differ.
    """
    frame = timeline.annotations
    if process >= 0:
        frame = frame[frame["pid"] == process]
    mine = named[frame["name"].codes]
    thread = frame["tid"]
    first, last = frame.bounds()
    others = ~mine & np.isin(thread, thread[mine])
    held = np.searchsorted(start, last, "left") - np.searchsorted(start, first, "left")
    # A range around all of them is the loop; one that comes again and again with several in it is the step.
    around = others & (held >= 2) & ~((first <= start[0]) & (last >= end[-1]))
    if np.bincount(frame["name"].codes[around], minlength=1).max() >= 2:
        return True
    firsts = _first_kernels(timeline, launches, start, end)
    return len(firsts) >= FEWEST_REPEATS and np.unique(firsts, return_counts=True)[1].max() < ALIKE * len(firsts)


def _first_kernels(timeline: Timeline, launches: Launches, start: Floats, end: Floats) -> Ints:
    """The name of the first op that each range launched, for those that launched any."""
    known = launches.in_order
    at = np.searchsorted(launches.start_us[known], start)
    inside = at < len(known)
    inside[inside] &= launches.start_us[known[at[inside]]] < end[inside]
    return timeline.gpu_ops["name"].codes[known[at[inside]]].astype(np.int64)


def _paces(start: Floats, end: Floats) -> bool:
    """Whether ranges divide the run into steps: they cover most of it, or come at an even pace. An op's range does neither.

    A pace is of times. `repeats` looks for the period of a sequence, and ranges of the same name have none.
    """
    if (end - start).sum() >= COVERED * (end[-1] - start[0]):
        return True
    periods = np.diff(start)
    usual = float(np.median(periods))
    return bool((periods > usual / UNEVEN).mean() > NEARLY_ALL and (periods < usual * UNEVEN).mean() > NEARLY_ALL)
