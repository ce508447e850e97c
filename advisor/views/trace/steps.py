"""What a step is in this trace, and the window that holds whole steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd

from advisor.intervals import Floats, Ints
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.report.numbers import duration
from advisor.views.trace.jitted_steps import jitted_calls, may_mark
from advisor.views.trace.launches import Launches
from advisor.views.trace.one_pass import one_pass
from advisor.views.trace.program import Program
from advisor.views.trace.startup import StartUp

Basis = Literal["profiler-step", "nvtx", "detected", "whole"]

_MADE_HERE = re.compile(r"enumerate\(DataLoader\)#_SingleProcess")
_PROFILER_STEP = re.compile(r"ProfilerStep\s*#?\s*\d+$")
_NUMBER = re.compile(r"\d+")
# Ranges that the framework opens by itself and that do not span a step.
_FRAMEWORK = re.compile(
    r"Optimizer\.|enumerate\(|compile_id=|dynamo_timed|## |Torch-Compiled|CompiledFxGraph|DistributedDataParallel|nccl:|c10d::|PyTorch Profiler|\["
)
_OPTIMIZER = re.compile(r"Optimizer\.step#")

MIN_REPEATS = 3
"""Fewer repeats than this are not a pattern: any two equal kernels would be one."""

OUTLIER = 1.5
"""A leading period this many times the median is start-up (lazy loading, a drained queue), not the steady state."""


COVERED, UNEVEN = 0.5, 3.0
"""Ranges that cover less of the run than this, at periods further apart than this factor, do not mark its steps."""


@dataclass(frozen=True)
class Steps:
    """Whole steps of steady work.

    The host marks steps as it issues them; a busy GPU executes them later. So a step begins, for the window, where the
    GPU starts the first kernel that the step launched, and the period between two such starts is the step time
    whichever side is the bound. The last mark only closes the window: what follows it holds the end of the capture.

    start_us, end_us: the window. steps: whole steps in it. host_start_us, host_end_us: the host's part of the same
    steps, and host_edges_us (steps + 1,) where each begins. periods_us: (steps,) each step's period. apart: share of the device's work
    that lies before and after a launch sequence that repeats, less what was copied before it, as weights are.
    """

    basis: Basis
    detail: str
    start_us: float
    end_us: float
    host_edges_us: Floats
    steps: int
    periods_us: Floats
    clock: Literal["gpu", "host"]
    apart: float = 0.0

    @property
    def host_start_us(self) -> float:
        """Where the host begins the first step."""
        return float(self.host_edges_us[0])

    @property
    def begun_us(self) -> float:
        """Where the host's part of the window counts from: what it called while the device did unrecorded work from before ran ahead."""
        return self.host_start_us if self.repeats else max(self.host_start_us, self.start_us)

    @property
    def host_end_us(self) -> float:
        """Where the host ends the last step."""
        return float(self.host_edges_us[-1])

    @property
    def step_us(self) -> float:
        """Mean period of the window."""
        return (self.end_us - self.start_us) / self.steps

    def middle(self, count: int) -> Steps:
        """So many steps from the middle, as a window of their own."""
        first = (self.steps - min(count, self.steps)) // 2
        last = first + min(count, self.steps)
        edges = self.start_us + np.r_[0.0, np.cumsum(self.periods_us)]
        return replace(
            self,
            start_us=float(edges[first]),
            end_us=float(edges[last]),
            host_edges_us=self.host_edges_us[first : last + 1],
            steps=last - first,
            periods_us=self.periods_us[first:last],
        )

    def of_host_time(self, times_us: Floats) -> Ints:
        """Which step the host was issuing at each time: 0 to steps - 1, -1 before and `steps` after the window."""
        found: Ints = np.searchsorted(self.host_edges_us, times_us, side="right") - 1
        return found

    @property
    def repeats(self) -> bool:
        """Whether the window holds a repeated step, rather than all that was recorded."""
        return self.basis != "whole"

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, startup: StartUp, program: Program) -> Steps:
        whole = "no step marks and no repeating launch sequence: the whole trace is one window"
        for basis, detail, marks in (
            ("profiler-step", "steps marked by the profiler's schedule", _profiler_steps(timeline)),
            ("nvtx", "a range that the program marks", _repeated_range(timeline, launches)),
            ("detected", "the period of Optimizer.step", _optimizer_steps(timeline)),
            ("detected", "the calls of the jitted function that does most of the work", _jitted(timeline)),
            ("detected", _REPEATS, _repeated_launches(timeline, launches)),
        ):
            if marks is not None:
                made = _window(timeline, launches, basis, detail, *marks)  # type: ignore[arg-type]
                if made and made.end_us > made.start_us:
                    if detail == _REPEATS and (known := one_pass(timeline, launches, program, marks[0][0], marks[1][-1], len(marks[0]))):
                        whole = f"the {len(marks[0]) + 1} repeats of a launch sequence are taken for layers of one pass, since {known}: the whole trace is one window"
                        continue
                    if basis != "detected":
                        return made
                    told, share = _apart(timeline, launches, marks)
                    return replace(made, detail=made.detail + told, apart=share if detail == _REPEATS else 0.0)
        return _whole(timeline, launches, startup, whole)


_REPEATS = "a launch sequence that repeats (a step, or a layer of one)"

Marks = tuple[Floats, Floats]
"""Start and end of each step on the host."""


def _ranges(frame: pd.DataFrame, matches: np.ndarray) -> Marks:
    rows = frame[matches[frame["name"].cat.codes.to_numpy()]]
    start = rows["start_us"].to_numpy()
    return start, start + rows["dur_us"].to_numpy()


def _profiler_steps(timeline: Timeline) -> Marks | None:
    # The schema of 2021 has step marks among the operators.
    for frame in (timeline.annotations, timeline.cpu_ops):
        if len(frame):
            marks = _ranges(frame, np.array([bool(_PROFILER_STEP.match(n)) for n in frame["name"].cat.categories]))
            if len(marks[0]):
                return marks
    return None


def _repeated_range(timeline: Timeline, launches: Launches) -> Marks | None:
    """The user's own range that repeats, does not overlap itself and launches most of the GPU's work; the longest such."""
    frame = timeline.annotations
    if (mine := may_mark(timeline)) is not None:
        frame = frame[mine]
    if not len(frame) or not len(timeline.gpu_ops):
        return None
    stems = np.array([_NUMBER.sub("#", n) if not _FRAMEWORK.search(n) else "" for n in frame["name"].cat.categories])
    distinct, stem_of_name = np.unique(stems, return_inverse=True)
    worked = _work_before(timeline, launches)
    found: list[tuple[float, int, Marks]] = []
    for stem, start, end in _by_stem(frame, stem_of_name):
        if not distinct[stem] or len(start) < MIN_REPEATS or (start[1:] < end[:-1]).any() or not _paces(start, end):
            continue
        if worked(end[-1]) - worked(start[0]) > 0.6 * worked(np.inf):
            found.append((float(np.median(end - start)), stem, (start, end)))
    # The longest first: the others need no closer look once it holds.
    for _, stem, marks in sorted(found, key=lambda one: -one[0]):
        named = stem_of_name == stem
        if named.sum() == 1 or not _parts_of_a_step(timeline, launches, named, *marks):
            return marks
    return None


def _by_stem(frame: pd.DataFrame, stem_of_name: Ints) -> Iterator[tuple[int, Floats, Floats]]:
    """Each stem's ranges by start, in one pass over the rows however many stems there are."""
    stems = stem_of_name[frame["name"].cat.codes.to_numpy()]
    order = np.argsort(stems, kind="stable")
    start, dur, stems = frame["start_us"].to_numpy()[order], frame["dur_us"].to_numpy()[order], stems[order]
    edges = np.flatnonzero(np.diff(np.r_[-1, stems, stems.max() + 1]))
    for first, last in pairwise(edges.tolist()):
        yield int(stems[first]), start[first:last], start[first:last] + dur[first:last]


def _work_before(timeline: Timeline, launches: Launches) -> Callable[[float], float]:
    """How many microseconds of GPU work the host had launched before a time."""
    known = np.flatnonzero(~np.isnan(launches.start_us))
    known = known[np.argsort(launches.start_us[known], kind="stable")]
    at, total = launches.start_us[known], np.r_[0.0, np.cumsum(timeline.gpu_ops["dur_us"].to_numpy()[known])]
    return lambda time_us: float(total[np.searchsorted(at, time_us)])


ALIKE = 0.5
"""Steps run the same program: at least half of them begin with the same kernel. Layers that are only numbered do not."""


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
    return len(firsts) >= MIN_REPEATS and np.unique(firsts, return_counts=True)[1].max() < ALIKE * len(firsts)


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


def _jitted(timeline: Timeline) -> Marks | None:
    found = jitted_calls(timeline)
    return found[1:] if found else None


def _optimizer_steps(timeline: Timeline) -> Marks | None:
    frame = timeline.annotations
    if not len(frame):
        return None
    _, end = _ranges(frame, np.array([bool(_OPTIMIZER.match(n)) for n in frame["name"].cat.categories]))
    return (end[:-1], end[1:]) if len(end) > MIN_REPEATS else None


def _repeated_launches(timeline: Timeline, launches: Launches) -> Marks | None:
    """The shortest period with which the sequence of launched kernels repeats almost exactly, for most of the launches. What comes
    before it is another kind of work: a server's prefill, or setting up."""
    rows = np.flatnonzero(launches.call >= 0)
    rows = rows[np.argsort(launches.start_us[rows], kind="stable")]
    codes = timeline.gpu_ops["name"].cat.codes.to_numpy()[rows]
    n = len(codes)
    if n < 4 * MIN_REPEATS:
        return None
    counts = np.bincount(codes)
    candidates: set[int] = set()
    # The rarest kernel that still repeats marks a period; so may the next few.
    repeated = np.flatnonzero(counts >= MIN_REPEATS)
    for code in repeated[np.argsort(counts[repeated], kind="stable")][:8]:
        distances = np.diff(np.flatnonzero(codes == code))
        candidates.add(int(np.median(distances)))
    for period in sorted(p for p in candidates if p >= 1 and n // p >= MIN_REPEATS):
        first, last = _longest_run(np.convolve(codes[:-period] == codes[period:], np.ones(period), "valid") >= REPEATED * period)
        last += 2 * period - 1  # what the last window compares, and what it compares that with
        start = launches.start_us[rows[first:last:period]]
        # Many launches of one kernel in a row may be a part of a step, as an optimizer's: alone they are the loop where nothing else runs.
        if last - first >= (MOST if period > 1 else ALONE) * n and len(start) > MIN_REPEATS:
            return start[:-1], start[1:]
    return None


APART = 0.05
"""GPU work before the repetition, or after it, from which it is said: a twentieth of all."""


def _apart(timeline: Timeline, launches: Launches, marks: Marks) -> tuple[str, float]:
    """What was launched before the first step that repeats and after the last, in words, "" where it is little: a server's prefill, setting
    up, reading results. And its share of the device's work, without what was copied before."""
    dur = timeline.gpu_ops["dur_us"].to_numpy()
    # The last mark begins a step that is not counted, for it may not be whole.
    last = marks[1][-1] + float(np.median(marks[1] - marks[0]))
    told, before, after = "", launches.start_us < marks[0][0], launches.start_us > last
    for chosen, where in ((before, "before"), (after, "after")):
        spent = float(dur[chosen].sum())
        if spent >= APART * max(float(dur.sum()), 1e-9):
            as_what = ", as a prefill or setting up" if where == "before" else ""
            told += f"; apart from it, {where}: {int(chosen.sum()):,} GPU ops that take {duration(spent)}{as_what}"
    set_up = before & (timeline.gpu_ops["kind"] != GpuKind.KERNEL.value).to_numpy()
    return told, float(dur[(before | after) & ~set_up].sum()) / max(float(dur[~set_up].sum()), 1e-9)


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


def _active_span(timeline: Timeline) -> tuple[float, float]:
    start = timeline.gpu_ops["start_us"].to_numpy()
    return float(start.min()), float((start + timeline.gpu_ops["dur_us"].to_numpy()).max())


def _window(timeline: Timeline, launches: Launches, basis: Basis, detail: str, starts: Floats, ends: Floats) -> Steps | None:
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    first_kernel = _first_kernel_of_steps(timeline, launches, np.r_[starts, max(ends[-1], starts[-1])])
    if np.isnan(first_kernel).all() or len(starts) == 1:
        if len(starts) > 1:
            return _from(basis, detail + "; no GPU work could be tied to them", starts, starts, "host")
        return _single(timeline, launches, basis, detail, float(starts[0]), float(ends[0]))
    known = ~np.isnan(first_kernel)
    if known.sum() < 2 or (np.diff(first_kernel[known]) <= 0).any():
        return _from(basis, detail, starts, starts, "host")
    # A step that launched nothing is a step all the same: it begins on the GPU where its mark lies between the others'.
    whole = slice(int(np.argmax(known)), len(known) - int(np.argmax(known[::-1])))
    edges = np.interp(starts[whole], starts[known], first_kernel[known])
    return _from(basis, detail, edges, starts[whole], "gpu")


def _from(basis: Basis, detail: str, edges: Floats, host_edges: Floats, clock: Literal["gpu", "host"]) -> Steps | None:
    periods = np.diff(edges)
    skip = 0
    while len(periods) - skip > MIN_REPEATS and periods[skip] > OUTLIER * np.median(periods):
        skip += 1
    if skip:
        detail += f"; the first {skip} left out as start-up"
    edges, host_edges = edges[skip:], host_edges[skip:]
    return Steps(
        basis,
        detail,
        float(edges[0]),
        float(edges[-1]),
        host_edges,
        len(edges) - 1,
        np.diff(edges),
        clock,
    )


def _first_kernel_of_steps(timeline: Timeline, launches: Launches, edges: Floats) -> Floats:
    """Start of the first kernel that each step launched, on the device with most of them; NaN for a step without."""
    ops = timeline.gpu_ops
    n = len(edges) - 1
    found = np.full(n, np.nan)
    if not len(ops):
        return found
    step = np.searchsorted(edges, launches.start_us, side="right") - 1
    step[np.isnan(launches.start_us)] = -1
    kernels = (ops["kind"] == "kernel").to_numpy() | (ops["kind"] == "graph").to_numpy()
    chosen = (step >= 0) & (step < n) & (kernels if kernels.any() else True)
    if chosen.any():
        device = ops["device"].to_numpy()
        values, counts = np.unique(device[chosen], return_counts=True)
        chosen &= device == values[counts.argmax()]
        start = ops["start_us"].to_numpy()
        np.fmin.at(found, step[chosen], start[chosen])
    return found


def _single(timeline: Timeline, launches: Launches, basis: Basis, detail: str, start: float, end: float) -> Steps:
    """One marked step: from its mark (or its first kernel, if earlier steps' work still ran then) to the end of its work."""
    ops = timeline.gpu_ops
    launched = launches.start_us
    inside = (launched >= start) & (launched < end)
    window_start, window_end = start, end
    clock: Literal["gpu", "host"] = "host"
    if inside.any():
        op_start = ops["start_us"].to_numpy()
        op_end = op_start + ops["dur_us"].to_numpy()
        backlog = (launched < start) & (op_end > start)
        if backlog.any():
            window_start = float(op_start[inside].min())
        window_end = max(end, float(op_end[inside].max()))
        clock = "gpu" if window_end > end else "host"
    return Steps(
        basis,
        detail + "; only one whole step was recorded",
        window_start,
        window_end,
        np.array([start, end]),
        1,
        np.array([window_end - window_start]),
        clock,
    )


FEWEST_LEFT, LEAST_LEFT = 8, 0.2
"""What stays of a recording that begins with start-up must still be a program: so many GPU ops, and this share of their time."""


def _whole(timeline: Timeline, launches: Launches, startup: StartUp, detail: str) -> Steps:
    """From the first launch, or the batch that was made for it, to the end of the last GPU op, less what happens once; without GPU work, all that the host did."""
    if not len(timeline.gpu_ops):
        frames = [f for f in (timeline.cpu_ops, timeline.api_calls, timeline.python_calls) if len(f)]
        start = min(float(f["start_us"].min()) for f in frames)
        end = max(float((f["start_us"] + f["dur_us"]).max()) for f in frames)
        return Steps("whole", detail, start, end, np.array([start, end]), 1, np.array([end - start]), "host")
    first, end = _active_span(timeline)
    launched = launches.start_us[~np.isnan(launches.start_us)]
    start = host_start = min(first, float(launched.min())) if len(launched) else first
    batch = _batch_before(timeline, launches, start)
    if startup.earlier_us > start:
        batch = None
        detail += f"; begun where the device was done with work from before the recording, {duration(startup.earlier_for_us)} of it"
        start = startup.earlier_us
    begin = _after_startup(timeline, launches, startup, start)
    if begin is None and batch is not None:
        detail += ", begun with the batch that the main process made for it"
        start = host_start = batch
    if begin is not None:
        detail += f"; {duration(begin - start)} of start-up left out, the longest call {startup.longest(start, begin)}"
        start = host_start = begin
    host_end = float(launched.max()) + 1e-3 if len(launched) else end
    return Steps("whole", detail, start, end, np.array([host_start, host_end]), 1, np.array([end - start]), "gpu")


def _batch_before(timeline: Timeline, launches: Launches, start: float) -> float | None:
    """When the main process began the last batch before the first launch, None where it made none: a loop makes one for each pass, while what
    worker processes deliver first waits for their start."""
    notes = timeline.annotations
    if not len(notes) or not len(launches.start_us):
        return None
    begun, end = _ranges(notes, np.array([bool(_MADE_HERE.match(name)) for name in notes["name"].cat.categories]))
    # One that was made long before was for something else.
    before = begun[(end <= start) & (start - end <= end - begun)]
    return float(before.max()) if len(before) else None


def _after_startup(timeline: Timeline, launches: Launches, startup: StartUp, start: float) -> float | None:
    """The first launch after the last one-time call that leaves enough of the program behind it; None where there is none."""
    ops = timeline.gpu_ops
    op_start, dur = ops["start_us"].to_numpy(), ops["dur_us"].to_numpy()
    for end in startup.ends_us[::-1]:
        left = launches.start_us >= end
        if end > start and left.sum() >= FEWEST_LEFT and dur[left].sum() >= LEAST_LEFT * dur.sum():
            return float(min(launches.start_us[left].min(), op_start[left].min()))
    return None
