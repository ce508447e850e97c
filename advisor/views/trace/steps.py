"""The steps of this trace, and the window of whole steps."""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask, Spans, complement, length, union
from advisor.knowledge.cuda_api import ApiRole
from advisor.knowledge.op_tokens.families import Family, family
from advisor.knowledge.shares import CONSIDERABLE, HARDLY_ANY, UNUSUAL
from advisor.knowledge.structs import replace
from advisor.recordings.columns import Table
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.report.numbers import duration
from advisor.views.trace.launches import Launches
from advisor.views.trace.layer_repeats import one_pass
from advisor.views.trace.marks import Marks, Unjudged
from advisor.views.trace.program import Program
from advisor.views.trace.repeats import FEWEST_REPEATS, TWICE
from advisor.views.trace.startup import StartUp
from advisor.views.trace.step_marks import Basis, step_marks
from advisor.views.trace.table_filters import matches
from advisor.views.trace.unexecuted_launches import first_that_lost

_MADE_HERE = re.compile(r"^enumerate\(DataLoader\)#_SingleProcess")

OUTLIER = UNUSUAL
"""A leading period this many times the median is start-up (lazy loading, a drained queue), not the steady state."""

TAKES_MEMORY, FEWEST_AFTER = HARDLY_ANY, TWICE
"""A step that spends a twentieth of a usual step on device memory fills the allocator's cache, if no later step does. At least this many later steps
are needed.
"""

FEW = FEWEST_REPEATS
"""In a window of at most this many steps, a single unusual step changes the mean considerably."""


class Steps(msgspec.Struct, frozen=True):
    """Whole steps of steady work.

    The host marks steps when it launches them; a busy GPU executes them later. So a step of the window begins when the GPU starts its first kernel, and
    the time between two such starts is the step time for either bound. The last mark only closes the window, because the capture may cut off its work.

    start_us, end_us: the window. steps: whole steps in it. host_start_us, host_end_us: the host's part of these steps. host_edges_us: (steps + 1,) where
    each begins. periods_us: (steps,) each step's period. apart: share of the device's work outside the repeating launch sequence (without earlier
    copies, such as weights), or in marked steps of other kinds. kind, unjudged: the kind of the steps ("" if unknown), and marked steps outside the
    window. ran_ahead: of a single step, whether the host launched it during earlier unrecorded device work, so its own host time is unknown.
    closes_us: end of the closing step on the host, NaN without a mark. by_launches: whether only a repeating launch sequence defines the step.
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
    ran_ahead: bool = False
    kind: str = ""
    unjudged: tuple[Unjudged, ...] = ()
    closes_us: float = np.nan
    by_launches: bool = False

    @property
    def host_start_us(self) -> float:
        """Where the host begins the first step."""
        return float(self.host_edges_us[0])

    @property
    def edges_us(self) -> Floats:
        """(steps + 1,) start of each step of the window, and the end of the last."""
        return self.start_us + np.r_[0.0, np.cumsum(self.periods_us)]

    @property
    def begun_us(self) -> float:
        """Start of the host's part of the window; launches during earlier unrecorded device work ran ahead and are left out."""
        return self.host_start_us if self.periodic else max(self.host_start_us, self.start_us)

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
        return self.part(first, first + min(count, self.steps))

    def part(self, first: int, last: int) -> Steps:
        """The steps from `first` up to, not with, `last`, as a window of their own."""
        return replace(
            self,
            start_us=float(self.edges_us[first]),
            end_us=float(self.edges_us[last]),
            host_edges_us=self.host_edges_us[first : last + 1],
            steps=last - first,
            periods_us=self.periods_us[first:last],
            closes_us=self.closes_us if last == self.steps else float(self.host_edges_us[last + 1]),
        )

    def with_closing(self) -> Steps:
        """The window with its closing step, as far as the host's part was recorded; unchanged if no mark shows that step's end."""
        if not self.closes_us > self.host_end_us:
            return self
        return replace(
            self,
            end_us=self.end_us + self.step_us,
            host_edges_us=np.r_[self.host_edges_us, self.closes_us],
            steps=self.steps + 1,
            periods_us=np.r_[self.periods_us, self.step_us],
        )

    def holds(self, times_us: Floats) -> Mask:
        """(n,) whether each time on the device lies in the window."""
        return (times_us >= self.start_us) & (times_us < self.end_us)

    def issued_at(self, times_us: Floats) -> Mask:
        """(n,) whether the host issued the window's steps at each time."""
        return (times_us >= self.host_start_us) & (times_us < self.host_end_us)

    def of_host_time(self, times_us: Floats) -> Ints:
        """The step that the host launches at each time: 0 to steps - 1, -1 before and `steps` after the window."""
        return np.searchsorted(self.host_edges_us, times_us, side="right") - 1

    @property
    def repeats(self) -> bool:
        """Whether the window holds a repeated step, rather than all that was recorded."""
        return self.basis != "whole"

    @property
    def periodic(self) -> bool:
        """Whether the window, run again and again, is the program: not where what came before it was never seen."""
        return self.repeats and not self.ran_ahead

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, startup: StartUp, program: Program) -> Steps:
        whole = "no step marks and no repeating launch sequence: the window is the whole trace"
        for basis, detail, marks in step_marks(timeline, launches):
            own = launches.of_process(timeline, marks.process)
            made = _window(timeline, own, startup, basis, detail, marks.start, marks.end)
            if made is None:
                whole = "the GPU works on after the last marked step, and no GPU work could be tied to one: the window is the whole trace"
            if made is None or made.end_us <= made.start_us:
                continue
            if marks.by_launches and (known := one_pass(timeline, own, program, marks.start[0], marks.end[-1], len(marks))):
                whole = f"the {len(marks) + 1} repeats of a launch sequence count as layers of a single pass, since {known}: the window is the whole trace"
                continue
            if basis != "detected":
                skip, lost = first_that_lost(timeline, launches, made.host_edges_us)
                made = replace(made.part(skip, made.steps), detail=made.detail + lost) if skip else made
                return replace(_warmed(timeline, launches, made), kind=marks.kind, unjudged=marks.unjudged, apart=marks.apart)
            told, share = _launched_outside(timeline, own, marks)
            return replace(made, detail=made.detail + told, apart=share if marks.by_launches else 0.0, by_launches=marks.by_launches)
        return _whole(timeline, launches, startup, whole)


APART = HARDLY_ANY
"""GPU work before the repetition, or after it, from which it is said: a twentieth of all."""


def _launched_outside(timeline: Timeline, launches: Launches, marks: Marks) -> tuple[str, float]:
    """Work launched before the first repeating step and after the last (a server's prefill, setup, reading results), in words; "" if it is little. Also its
    share of the device's work, without earlier copies.
    """
    dur = timeline.gpu_ops["dur_us"]
    # The last mark begins a step that is not counted, for it may not be whole.
    last = marks.end[-1] + float(np.median(marks.end - marks.start))
    told, before, after = "", launches.start_us < marks.start[0], launches.start_us > last
    for chosen, where in ((before, "before"), (after, "after")):
        spent = float(dur[chosen].sum())
        if spent >= APART * max(float(dur.sum()), 1e-9):
            as_what = ", as a prefill or setting up" if where == "before" else ""
            told += f"; apart from it, {where}: {int(chosen.sum()):,} GPU ops that take {duration(spent)}{as_what}"
    set_up = before & (timeline.gpu_ops["kind"] != GpuKind.KERNEL.value)
    return told, float(dur[(before | after) & ~set_up].sum()) / max(float(dur[~set_up].sum()), 1e-9)


def _window(timeline: Timeline, launches: Launches, startup: StartUp, basis: Basis, detail: str, starts: Floats, ends: Floats) -> Steps | None:
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    first_kernel = first_kernel_of_steps(timeline, launches, np.r_[starts, max(ends[-1], starts[-1])])
    if np.isnan(first_kernel).all() or len(starts) == 1:
        if len(starts) > 1:
            if _works_on(timeline, float(ends[-1]), float(np.median(np.diff(starts)))):
                return None
            return _steps_from(basis, detail + "; no GPU work could be tied to them", starts, starts, "host", float(ends[-1]))
        return _single(timeline, launches, startup, basis, detail, float(starts[0]), float(ends[0]))
    known = ~np.isnan(first_kernel)
    if known.sum() < 2 or (np.diff(first_kernel[known]) <= 0).any():
        return _steps_from(basis, detail, starts, starts, "host", float(ends[-1]))
    # A step that launched nothing is a step all the same: it begins on the GPU where its mark lies between the others'.
    whole = slice(int(np.argmax(known)), len(known) - int(np.argmax(known[::-1])))
    edges = np.interp(starts[whole], starts[known], first_kernel[known])
    return _steps_from(basis, detail, edges, starts[whole], "gpu", float(ends[-1]))


def _works_on(timeline: Timeline, end_us: float, step_us: float) -> bool:
    """Whether devices work for longer than a step after the host's last mark and op: the host ran ahead, and its steps are not theirs."""
    ops, host = timeline.gpu_ops, timeline.cpu_ops
    return bool(len(ops)) and float(ops.ends.max()) - float(host.ends.max(initial=end_us)) > step_us


def _steps_from(basis: Basis, detail: str, edges: Floats, host_edges: Floats, clock: Literal["gpu", "host"], closes_us: float) -> Steps | None:
    periods = np.diff(edges)
    skip = 0
    while len(periods) - skip > FEWEST_REPEATS and periods[skip] > OUTLIER * np.median(periods):
        skip += 1
    if skip:
        detail += f"; the first {skip} left out as start-up"
    edges, host_edges = edges[skip:], host_edges[skip:]
    return Steps(basis, detail, float(edges[0]), float(edges[-1]), host_edges, len(edges) - 1, np.diff(edges), clock, closes_us=closes_us)


def _warmed(timeline: Timeline, launches: Launches, steps: Steps) -> Steps:
    """The steps after the last early step that takes device memory, if the program's own marks define steps. An allocator with a cache requests memory
    only once.
    """
    calls = timeline.api_calls
    rows = launches.calls_with(ApiRole.ALLOCATION)
    of = steps.of_host_time(calls["start_us"][rows])
    inside = (of >= 0) & (of < steps.steps)
    spent = np.bincount(of[inside], weights=calls["dur_us"][rows[inside]], minlength=steps.steps)
    takes = np.flatnonzero(spent >= TAKES_MEMORY * np.median(steps.periods_us))
    skip = int(takes[-1]) + 1 if len(takes) else 0
    if not skip or steps.steps - skip < max(FEWEST_AFTER, skip):
        return _without_the_one_that_takes(timeline, rows, steps)
    first = "the first step" if skip == 1 else f"the first {skip} steps"
    left = steps.part(skip, steps.steps)
    return replace(
        left, detail=f"{steps.detail}; {first} left out: {duration(float(spent[:skip].sum()))} went into taking device memory, which later steps hardly do"
    )


def _without_the_one_that_takes(timeline: Timeline, rows: Ints, steps: Steps) -> Steps:
    """A short window without the step that is longer because it takes or frees device memory, and without the steps on its shorter side. The closing
    step counts too if it was recorded that far, since two others show the usual time. rows: calls that take or free memory.
    """
    if not 1 < steps.steps <= FEW:
        return steps
    calls = timeline.api_calls
    # By the device's steps: what the host takes before a step's first launch makes the one before it longer.
    start, dur = calls["start_us"][rows], calls["dur_us"][rows]
    spent = np.histogram(start, steps.edges_us, weights=dur)[0]
    at = int(np.argmax(spent))
    usual_us, usually = (float(np.delete(of, at).max()) for of in (steps.periods_us, spent))
    longer_us = float(steps.periods_us[at]) - usual_us
    if steps.periods_us[at] <= OUTLIER * usual_us or spent[at] - usually < 0.5 * longer_us:
        return steps
    if steps.steps - 1 < FEWEST_AFTER and not _closed_alike(timeline, rows, steps, usually + 0.5 * longer_us):
        return steps
    left = steps.part(at + 1, steps.steps) if steps.steps - at - 1 >= at else steps.part(0, at)
    which, kept = ("first", "second", "third")[at], "a single step is" if left.steps == 1 else "two steps are"
    told = f"{duration(float(spent[at]))} of the {which} of {steps.steps} went into device memory, {duration(usually)} at most of any other: {kept} left"
    return replace(left, detail=f"{steps.detail}; {told}")


def _closed_alike(timeline: Timeline, rows: Ints, steps: Steps, most_us: float) -> bool:
    """Whether the step that closes the window was recorded for as long as the shortest in it, and spends less than that on device memory."""
    calls = timeline.api_calls
    start, dur = calls["start_us"], calls["dur_us"]
    edges = np.r_[steps.host_edges_us, steps.host_end_us + float(np.diff(steps.host_edges_us).min())]
    made = np.histogram(start, edges)[0]
    inside = (start[rows] >= edges[-2]) & (start[rows] < edges[-1])
    return bool(made[-1] >= 0.5 * made[:-1].min()) and float(dur[rows][inside].sum()) < most_us


def first_kernel_of_steps(timeline: Timeline, launches: Launches, edges: Floats) -> Floats:
    """Start of the first kernel that each step launched, on the stream that computes most of the device with most of them; NaN for a step without."""
    ops = timeline.gpu_ops
    n = len(edges) - 1
    found = np.full(n, np.nan)
    if not len(ops):
        return found
    step = np.searchsorted(edges, launches.start_us, side="right") - 1
    step[np.isnan(launches.start_us)] = -1
    kernels = ops["kind"].isin([GpuKind.KERNEL.value, GpuKind.GRAPH.value])
    chosen = (step >= 0) & (step < n) & (kernels if kernels.any() else True)
    if chosen.any():
        device = ops["device"]
        values, counts = np.unique(device[chosen], return_counts=True)
        chosen &= device == values[counts.argmax()]
        chosen = _on_main_stream(ops, chosen, step, n)
        start = ops["start_us"]
        np.fmin.at(found, step[chosen], start[chosen])
    return found


def _on_main_stream(ops: Table, chosen: Mask, step: Ints, steps: int) -> Mask:
    """Chosen ops of the stream that computes most, if it works in each step with chosen ops. A less busy stream may start a step's work while the device
    still runs earlier steps.
    """
    waits = ops["name"].matching(lambda name: family(name) is Family.COMMUNICATION)
    computes = np.flatnonzero(chosen & ~waits)
    if not len(computes):
        return chosen
    streams, of = np.unique(ops["stream"][computes], return_inverse=True)
    main = streams[np.bincount(of, ops["dur_us"][computes]).argmax()]
    on_main: Mask = chosen & (ops["stream"] == main)
    works, any_works = (np.bincount(step[some], minlength=steps) > 0 for some in (on_main, chosen))
    return on_main if (works == any_works).all() else chosen


def _single(timeline: Timeline, launches: Launches, startup: StartUp, basis: Basis, detail: str, start: float, end: float) -> Steps:
    """A single marked step, from its mark to the end of its work; from its first kernel if earlier work still ran at the mark."""
    ops = timeline.gpu_ops
    launched = launches.start_us
    inside = (launched >= start) & (launched < end)
    window_start, window_end, ran_ahead = start, end, False
    clock: Literal["gpu", "host"] = "host"
    if inside.any():
        op_start, op_end = ops.bounds()
        backlog = (launched < start) & (op_end > start)
        if backlog.any():
            window_start = float(op_start[inside].min())
        window_end = max(end, float(op_end[inside].max()))
        clock = "gpu" if window_end > end else "host"
        if ran_ahead := window_start < startup.earlier_us < window_end:
            window_start = startup.earlier_us
            detail += _after_earlier(startup)
    return Steps(
        basis,
        detail + "; a single whole step was recorded",
        window_start,
        window_end,
        np.array([start, end]),
        1,
        np.array([window_end - window_start]),
        clock,
        ran_ahead=ran_ahead,
    )


def _after_earlier(startup: StartUp) -> str:
    return f"; begun after the device finished work from before the recording, {duration(startup.earlier_for_us)} of it"


FEWEST_LEFT, LEAST_LEFT = 8, 0.2
"""What stays of a recording that begins with start-up must still be a program: so many GPU ops, and this share of their time."""


def _whole(timeline: Timeline, launches: Launches, startup: StartUp, detail: str) -> Steps:
    """From the first launch, or the batch that was made for it, to the end of the last GPU op, less what happens once; without GPU work, all that the host did."""
    if not len(timeline.gpu_ops):
        frames = [f for f in (timeline.cpu_ops, timeline.api_calls, timeline.python_calls) if len(f)]
        start = min(float(f["start_us"].min()) for f in frames)
        end = max(float(f.ends.max()) for f in frames)
        return Steps("whole", detail, start, end, np.array([start, end]), 1, np.array([end - start]), "host")
    first, end = float(timeline.gpu_ops["start_us"].min()), float(timeline.gpu_ops.ends.max())
    launched = launches.start_us[~np.isnan(launches.start_us)]
    start = host_start = min(first, float(launched.min())) if len(launched) else first
    batch = _batch_before(timeline, start)
    if startup.earlier_us > start:
        batch = None
        detail += _after_earlier(startup)
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


def _batch_before(timeline: Timeline, start: float) -> float | None:
    """Start of the main process's last batch before the first launch, None if it made none. A loop makes a batch per pass; the first batch of worker
    processes waits for their start.
    """
    notes = timeline.annotations
    if not len(notes):
        return None
    begun, end = notes.bounds(matches(notes, _MADE_HERE))
    # One that was made long before was for something else.
    before = begun[(end <= start) & (start - end <= end - begun)]
    return float(before.max()) if len(before) else None


def _after_startup(timeline: Timeline, launches: Launches, startup: StartUp, start: float) -> float | None:
    """The first launch after start-up: after the last one-time call that leaves enough of the program behind it, or earlier if the program already worked
    at that call. None without such a call.
    """
    ops = timeline.gpu_ops
    op_start, dur = ops["start_us"], ops["dur_us"]
    ends = startup.ends_us[startup.ends_us > start]
    enough = [(left := launches.start_us >= end).sum() >= FEWEST_LEFT and dur[left].sum() >= LEAST_LEFT * dur.sum() for end in ends]
    if not any(enough):
        return None
    bounds, busy = np.r_[start, ends[: sum(enough)]], union(op_start, op_start + dur)
    begun = next((bound for bound in bounds[:-1] if _at_work(bound, bounds[-1], startup, busy)), bounds[-1])
    left = launches.start_us >= begun
    return None if begun == start else float(min(launches.start_us[left].min(), op_start[left].min()))


AT_WORK, LOADS = CONSIDERABLE, HARDLY_ANY
"""A span in which the device works a quarter of the time, and one-time calls take less than a twentieth, is not start-up: programs load libraries when
they first need them.
"""


def _at_work(start_us: float, end_us: float, startup: StartUp, busy: Spans) -> bool:
    length_us = max(end_us - start_us, 1e-9)
    return 1 - length(complement(busy, start_us, end_us)) / length_us >= AT_WORK and startup.once_share(start_us, end_us) < LOADS
