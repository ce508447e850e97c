"""Where the host marks its steps, or seems to: the profiler's schedule, a range of the program's own, the optimizer's steps, the calls of a
jitted function, a launch sequence that comes again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd

from advisor.intervals import Floats, Ints
from advisor.knowledge.framework_ranges import BY_FRAMEWORK
from advisor.recordings.timeline import Timeline
from advisor.views.trace.frames import matches
from advisor.views.trace.jitted_steps import jitted_calls, may_mark
from advisor.views.trace.launches import Launches

Basis = Literal["profiler-step", "nvtx", "detected", "whole"]

Marks = tuple[Floats, Floats]
"""Start and end of each step on the host."""

LAUNCH_SEQUENCE = "a launch sequence that repeats (a step, or a layer of one)"

_PROFILER_STEP = re.compile(r"^ProfilerStep\s*#?\s*\d+$")
_NUMBER = re.compile(r"\d+")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")

FEWEST_REPEATS = 3
"""Fewer repeats than this are not a pattern: any two equal kernels would be one."""

COVERED, UNEVEN = 0.5, 3.0
"""Ranges that cover less of the run than this, at periods further apart than this factor, do not mark its steps."""


def step_marks(timeline: Timeline, launches: Launches) -> Iterator[tuple[Basis, str, Marks]]:
    """How steps are told, in words, and where each begins and ends: by every way that this trace knows, the surest first."""
    if marks := _profiler_steps(timeline, launches):
        yield "profiler-step", "steps marked by the profiler's schedule", marks
    if marks := _repeated_range(timeline, launches):
        yield "nvtx", "a range that the program marks", marks
    if marks := _optimizer_steps(timeline, launches):
        yield "detected", "the period of Optimizer.step", marks
    if found := jitted_calls(timeline):
        yield "detected", "the calls of the jitted function that does most of the work", found[1:]
    if marks := _repeated_launches(timeline, launches):
        yield "detected", LAUNCH_SEQUENCE, marks


def ranges(frame: pd.DataFrame, pattern: re.Pattern[str]) -> Marks:
    """Start and end of the rows whose name matches."""
    return _ends(frame[matches(frame, pattern)])


def _ends(rows: pd.DataFrame) -> Marks:
    start = rows["start_us"].to_numpy()
    return start, start + rows["dur_us"].to_numpy()


def _profiler_steps(timeline: Timeline, launches: Launches) -> Marks | None:
    # The schema of 2021 has step marks among the operators.
    for frame in (timeline.annotations, timeline.cpu_ops):
        if len(frame):
            marks = _ends(_of_one_process(frame[matches(frame, _PROFILER_STEP)], timeline, launches))
            if len(marks[0]):
                return marks
    return None


def _of_one_process(rows: pd.DataFrame, timeline: Timeline, launches: Launches) -> pd.DataFrame:
    """Where ranks were merged into one file each process marks its own steps: those of the one that launches most on the device with most
    work, as that device's first kernels are where steps begin."""
    marked = np.unique(rows["pid"].to_numpy())
    if len(marked) < 2:
        return rows
    launched = np.flatnonzero(launches.call >= 0)
    by, device = timeline.api_calls["pid"].to_numpy()[launches.call[launched]], timeline.gpu_ops["device"].to_numpy()[launched]
    marks = np.isin(by, marked)
    if not marks.any():
        return rows
    devices, ops = np.unique(device[marks], return_counts=True)
    processes, ops = np.unique(by[marks & (device == devices[ops.argmax()])], return_counts=True)
    return rows[rows["pid"].to_numpy() == processes[ops.argmax()]]


def _repeated_range(timeline: Timeline, launches: Launches) -> Marks | None:
    """The user's own range that repeats, does not overlap itself and launches most of the GPU's work; the longest such."""
    frame = timeline.annotations
    if (mine := may_mark(timeline)) is not None:
        frame = frame[mine]
    if not len(frame) or not len(timeline.gpu_ops):
        return None
    stems = np.array([_NUMBER.sub("#", n) if not BY_FRAMEWORK.search(n) else "" for n in frame["name"].cat.categories])
    distinct, stem_of_name = np.unique(stems, return_inverse=True)
    worked = _work_before(timeline, launches)
    found: list[tuple[float, int, Marks, Ints]] = []
    for stem, name, start, end in _by_stem(frame, stem_of_name):
        if not distinct[stem] or len(start) < FEWEST_REPEATS or (start[1:] < end[:-1]).any() or not _paces(start, end):
            continue
        done = [worked(float(at)) for at in (*start, end[-1])]
        if done[-1] - done[0] > 0.6 * worked(np.inf) and max(np.diff(done)) <= MOST_OF_ALL * (done[-1] - done[0]):
            found.append((float(np.median(end - start)), stem, (start, end), name))
    # The longest first: the others need no closer look once it holds.
    for _, stem, marks, names in sorted(found, key=lambda one: -one[0]):
        named = stem_of_name == stem
        if named.sum() == 1 or (_as_long(names, *marks) and not _parts_of_a_step(timeline, launches, named, *marks)):
            return marks
    return None


MOST_OF_ALL = 0.9
"""Of the work between the first and the last of ranges that repeat: where one holds more, the others are not its like."""


def _by_stem(frame: pd.DataFrame, stem_of_name: Ints) -> Iterator[tuple[int, Ints, Floats, Floats]]:
    """Each stem's ranges, their names, starts and ends, by start, in one pass over the rows however many stems there are."""
    codes = frame["name"].cat.codes.to_numpy()
    stems = stem_of_name[codes]
    order = np.argsort(stems, kind="stable")
    start, dur, codes, stems = frame["start_us"].to_numpy()[order], frame["dur_us"].to_numpy()[order], codes[order], stems[order]
    edges = np.flatnonzero(np.diff(np.r_[-1, stems, stems.max() + 1]))
    for first, last in pairwise(edges.tolist()):
        yield int(stems[first]), codes[first:last], start[first:last], start[first:last] + dur[first:last]


def _work_before(timeline: Timeline, launches: Launches) -> Callable[[float], float]:
    """How many microseconds of GPU work the host had launched before a time."""
    known = np.flatnonzero(~np.isnan(launches.start_us))
    known = known[np.argsort(launches.start_us[known], kind="stable")]
    at, total = launches.start_us[known], np.r_[0.0, np.cumsum(timeline.gpu_ops["dur_us"].to_numpy()[known])]
    return lambda time_us: float(total[np.searchsorted(at, time_us)])


ALIKE = 0.5
"""Steps run the same program: at least half of them begin with the same kernel. Layers that are only numbered do not."""


ORDER = 10.0
"""By this much ranges differ that a program only numbers, as parts of one pass: steps run the same program."""


def _as_long(name: Ints, start: Floats, end: Floats) -> bool:
    """Whether ranges whose names differ by a number are about as long as steps are: at least half of them within an order of magnitude of their
    median, since a first one may compile. Of numbers that come round again, as parts' do, all but one have such a median."""
    lasts = np.maximum(end - start, 1e-9)
    if not _alike(lasts).mean() >= 0.5:
        return False
    names, count = np.unique(name, return_counts=True)
    if np.median(count) < 2:
        return True
    return bool((~_alike(np.array([np.median(lasts[name == one]) for one in names]))).sum() <= 1)


def _alike(lasts: Floats) -> np.ndarray:
    usual = float(np.median(lasts))
    alike: np.ndarray = (lasts * ORDER >= usual) & (lasts <= usual * ORDER)
    return alike


def _parts_of_a_step(timeline: Timeline, launches: Launches, named: np.ndarray, start: Floats, end: Floats) -> bool:
    """Whether ranges whose names differ by a number are layers rather than steps: several of them stand in each repeat of a longer
    range of their thread, or what they launch differs."""
    frame = timeline.annotations
    mine = named[frame["name"].cat.codes.to_numpy()]
    thread = frame["tid"].to_numpy()
    first, last = frame["start_us"].to_numpy(), (frame["start_us"] + frame["dur_us"]).to_numpy()
    others = ~mine & np.isin(thread, thread[mine])
    held = np.searchsorted(start, last, "left") - np.searchsorted(start, first, "left")
    # A range around all of them is the loop; one that comes again and again with several in it is the step.
    around = others & (held >= 2) & ~((first <= start[0]) & (last >= end[-1]))
    if np.bincount(frame["name"].cat.codes.to_numpy()[around], minlength=1).max() >= 2:
        return True
    firsts = _first_kernels(timeline, launches, start, end)
    return len(firsts) >= FEWEST_REPEATS and np.unique(firsts, return_counts=True)[1].max() < ALIKE * len(firsts)


def _first_kernels(timeline: Timeline, launches: Launches, start: Floats, end: Floats) -> Ints:
    """The name of the first op that each range launched, for those that launched any."""
    known = np.flatnonzero(~np.isnan(launches.start_us))
    known = known[np.argsort(launches.start_us[known], kind="stable")]
    at = np.searchsorted(launches.start_us[known], start)
    inside = at < len(known)
    inside[inside] &= launches.start_us[known[at[inside]]] < end[inside]
    found: Ints = timeline.gpu_ops["name"].cat.codes.to_numpy()[known[at[inside]]].astype(np.int64)
    return found


def _paces(start: Floats, end: Floats) -> bool:
    """Whether ranges divide the run into steps: they cover most of it, or come at an even pace. An op's range does neither."""
    if (end - start).sum() >= COVERED * (end[-1] - start[0]):
        return True
    periods = np.diff(start)
    usual = float(np.median(periods))
    return bool((periods > usual / UNEVEN).mean() > 0.9 and (periods < usual * UNEVEN).mean() > 0.9)


def _optimizer_steps(timeline: Timeline, launches: Launches) -> Marks | None:
    frame = timeline.annotations
    if not len(frame):
        return None
    frame = _of_one_process(frame[matches(frame, _OPTIMIZER)], timeline, launches).sort_values(["start_us", "dur_us"], ascending=[True, False], kind="stable")
    start = frame["start_us"].to_numpy()
    end = start + frame["dur_us"].to_numpy()
    # An optimizer may call another's step inside its own.
    outermost = end > np.r_[-np.inf, np.maximum.accumulate(end)[:-1]]
    start, end, name = start[outermost], end[outermost], frame["name"].cat.codes.to_numpy()[outermost]
    if len(end) > 1:  # of several in a step, the last: behind it comes the next forward pass
        behind = np.r_[start[1:] - end[:-1], -np.inf]
        usual = {one: float(np.median(behind[:-1][name[:-1] == one])) for one in np.unique(name[:-1]).tolist()}
        last = [one for one, us in usual.items() if 2 * us >= max(usual.values())]
        end = end[name == max(last, key=lambda one: int((name == one).sum()))]  # not one of every tenth step
    return (end[:-1], end[1:]) if len(end) > FEWEST_REPEATS else None


def _repeated_launches(timeline: Timeline, launches: Launches) -> Marks | None:
    """The shortest period with which the sequence of launched kernels repeats almost exactly, for most of the launches. What comes
    before it is another kind of work: a server's prefill, or setting up."""
    rows = np.flatnonzero(launches.call >= 0)
    rows = rows[np.argsort(launches.start_us[rows], kind="stable")]
    codes = timeline.gpu_ops["name"].cat.codes.to_numpy()[rows]
    n = len(codes)
    if n < 4 * FEWEST_REPEATS:
        return None
    counts = np.bincount(codes)
    candidates: set[int] = set()
    # The rarest kernel that still repeats marks a period; so may the next few.
    repeated = np.flatnonzero(counts >= FEWEST_REPEATS)
    for code in repeated[np.argsort(counts[repeated], kind="stable")][:8]:
        distances = np.diff(np.flatnonzero(codes == code))
        candidates.add(int(np.median(distances)))
    for period in sorted(p for p in candidates if p >= 1 and n // p >= FEWEST_REPEATS):
        again = np.r_[0, np.cumsum(codes[:-period] == codes[period:])]
        first, last = _longest_run(again[period:] - again[:-period] >= REPEATED * period)
        last += 2 * period - 1  # what the last window compares, and what it compares that with
        start = launches.start_us[rows[first:last:period]]
        # Many launches of one kernel in a row may be a part of a step, as an optimizer's: alone they are the loop where nothing else runs.
        if last - first >= (MOST if period > 1 else ALONE) * n and len(start) > FEWEST_REPEATS:
            return start[:-1], start[1:]
    return None


REPEATED, MOST, ALONE = 0.95, 0.5, 0.9
"""Of a repeat's kernels, those that must be the same; and of all launches, those that must be part of the repetition: of several
kernels, and of one."""


def _longest_run(good: np.ndarray) -> tuple[int, int]:
    """Where the longest stretch of True begins and ends."""
    edges = np.flatnonzero(np.diff(np.r_[0, good.astype(np.int8), 0]))
    if not len(edges):
        return 0, 0
    begins, ends = edges[::2], edges[1::2]
    at = int(np.argmax(ends - begins))
    return int(begins[at]), int(ends[at])
