"""Marks of steps on the host: the profiler's schedule, ranges of a server or of the program, optimizer steps, calls of a jitted function.

Without these, a repeating launch sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.shares import MOST, NEARLY_ALL
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import Timeline
from advisor.views.trace.jitted_steps import jitted_calls
from advisor.views.trace.launches import Launches
from advisor.views.trace.marked_ranges import of_one_process, outermost, repeated_range, server_steps
from advisor.views.trace.marks import Marks
from advisor.views.trace.repeats import FEWEST_REPEATS, TWICE, repeats
from advisor.views.trace.table_filters import matches

Basis = Literal["profiler-step", "nvtx", "detected", "whole"]

PROFILER_STEP = names_of("profiler_step_number")
_OPTIMIZER = names_of("optimizer_step")

FEWEST_LAUNCHES = 4 * FEWEST_REPEATS
"""A recording of fewer holds no steps: three repeats of three kernels, and what closes them."""

MARKED_TWICE = TWICE
"""Three ranges of a name are a pattern. If a launch sequence repeats inside them, two are enough to show that the sequence is not a step."""


def step_marks(timeline: Timeline, launches: Launches) -> Iterator[tuple[Basis, str, Marks]]:
    """Ways to find steps in this trace, most reliable first: a description, and the start and end of each step."""
    if marks := _profiler_steps(timeline, launches):
        yield "profiler-step", "steps marked by the profiler's schedule", marks
    if marks := server_steps(timeline, launches):
        yield "nvtx", f"steps that a server marks{marks.told}", marks
    if marks := repeated_range(timeline, launches):
        yield "nvtx", f"a range that the program marks{marks.told}", marks
    if marks := _optimizer_steps(timeline, launches):
        yield "detected", "the period of Optimizer.step", marks
    if found := jitted_calls(timeline):
        yield "detected", "the calls of the jitted function that does most of the work", Marks(*found[1:])
    if marks := _repeated_launches(timeline, launches):
        around = repeated_range(timeline, launches, MARKED_TWICE)
        if around is not None and _hold_several(around, marks):
            yield "nvtx", f"a range that the program marks{around.told}", around
        else:
            yield "detected", "a launch sequence that repeats (a step, or a layer)", replace(marks, by_launches=True)


def _hold_several(marks: Marks, guessed: Marks) -> bool:
    """Whether most marks contain more than one start of the guessed steps: the marks are then better."""
    held = np.searchsorted(guessed.start, marks.end) - np.searchsorted(guessed.start, marks.start)
    return bool((held > 1).mean() > 0.5)


def _profiler_steps(timeline: Timeline, launches: Launches) -> Marks | None:
    # The schema of 2021 has step marks among the operators.
    for frame in (timeline.annotations, timeline.cpu_ops):
        if len(frame):
            rows, process = of_one_process(frame[matches(frame, PROFILER_STEP)], timeline, launches)
            if len(rows):
                rows, outer = outermost(rows)  # files that were merged hold a mark twice
                return Marks(*rows[outer].bounds(), process)
    return None


def _optimizer_steps(timeline: Timeline, launches: Launches) -> Marks | None:
    frame = timeline.annotations
    if not len(frame):
        return None
    frame, process = of_one_process(frame[matches(frame, _OPTIMIZER)], timeline, launches)
    frame, outer = outermost(frame)  # an optimizer may call another's step inside its own
    start, end, name = (column[outer] for column in (*frame.bounds(), frame["name"].codes))
    if len(end) > 1:  # of several in a step, the last: behind it comes the next forward pass
        behind = np.r_[start[1:] - end[:-1], -np.inf]
        usual = {one: float(np.median(behind[:-1][name[:-1] == one])) for one in np.unique(name[:-1]).tolist()}
        last = [one for one, us in usual.items() if 2 * us >= max(usual.values())]
        end = end[name == max(last, key=lambda one: int((name == one).sum()))]  # not one of every tenth step
    return Marks(end[:-1], end[1:], process) if len(end) > FEWEST_REPEATS else None


def _repeated_launches(timeline: Timeline, launches: Launches) -> Marks | None:
    """The shortest period with which the sequence of launched kernels repeats almost exactly, for most of the launches. What comes
    before it is another kind of work: a server's prefill, or setting up."""
    process = launches.main_process(timeline)
    launches = launches.of_process(timeline, process)
    rows = launches.in_order
    if len(rows) < FEWEST_LAUNCHES:
        return None
    for found in repeats(timeline.gpu_ops["name"].codes[rows]):
        first, end = found.longest
        start = launches.start_us[rows[first : end : found.period]]
        # Many launches of one kernel in a row may be a part of a step, as an optimizer's: alone they are the loop where nothing else runs.
        if end - first >= (MOST if found.period > 1 else NEARLY_ALL) * len(rows) and len(start) > FEWEST_REPEATS:
            return Marks(start[:-1], start[1:], process)
    return None
