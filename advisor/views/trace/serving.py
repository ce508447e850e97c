"""What an inference server did, step by step: which phase, on how many requests and tokens, how much of it from CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.cuda_api import ApiRole
from advisor.knowledge.server_marks import A_BLOCK_A_ROW, DECODE, MIXED, PHASES, PREFILL, ServerMark, engine_of, server_mark
from advisor.knowledge.shares import MOST
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Timeline
from advisor.views.trace.launches import Launches
from advisor.views.trace.marked_ranges import outermost, server_rows
from advisor.views.trace.startup import StartUp
from advisor.views.trace.steps import Steps, first_kernel_of_steps
from advisor.views.trace.table_filters import matches
from advisor.views.trace.unexecuted_launches import lost_launches


class ServedStep(msgspec.Struct, frozen=True):
    """A step that a server marks.

    start_us, end_us: its mark on the host. begins_us, lasts_us: start of its first op on the device, and time from there to the next step's first op;
    the last step ends with its own work, and `whole` is false. graph_launches, eager_launches: calls inside the mark that launch a graph, or a kernel.
    graph_us, eager_us: time of their ops, copies in the latter; graph_us is NaN if graphs left no op in the trace. gap_us: idle time of the device before
    it, NaN if the work before was not recorded. padded_to: rows that its graphs compute, -1 if unknown.
    """

    mark: ServerMark
    start_us: float
    end_us: float
    begins_us: float
    lasts_us: float
    whole: bool
    graph_launches: int
    eager_launches: int
    graph_us: float
    eager_us: float
    gap_us: float
    padded_to: int

    @property
    def gpu_us(self) -> float:
        """Time of all that it launched."""
        return self.graph_us + self.eager_us


class ServedPhase(msgspec.Struct, frozen=True):
    """Steps of the same phase and number of requests: their median, since a step before a pause of requests is not usual.

    requests, query_tokens, kv_tokens, padded_to: -1 if neither marks nor graphs give them. graph_coverage: share of the device's time in graphs, NaN if
    unknown. tokens_per_s: generated tokens of decode phases, else computed tokens; NaN for phases that do neither.
    """

    phase: str
    requests: int
    steps: tuple[ServedStep, ...]
    step_us: float
    query_tokens: float
    kv_tokens: float
    graph_launches: float
    eager_launches: float
    graph_coverage: float
    padded_to: int
    tokens_per_s: float


class Serving(msgspec.Struct, frozen=True):
    """engine: the server, "" without marked steps. steps: in order. phases: the steps by phase and requests."""

    engine: str = ""
    steps: tuple[ServedStep, ...] = ()
    phases: tuple[ServedPhase, ...] = ()

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, startup: StartUp, steps: Steps) -> Serving:
        rows, process = server_rows(timeline, launches)
        if not len(rows):
            return cls()
        rows, outer = outermost(rows)
        marks = _marks(rows, outer)
        of_phases = np.array([mark.phase in PHASES for mark in marks])
        start, end = (side[outer] for side in rows.bounds())
        made = _steps(timeline, launches.of_process(timeline, process), process, marks, start, end, startup, steps)
        served = tuple(step for step, known in zip(made, of_phases, strict=True) if known)
        return cls(engine_of(dict.fromkeys(rows["name"])), served, phases(served))

    def judged(self, steps: Steps) -> tuple[ServedStep, ...]:
        """Its steps in the window that are of the kind which is judged."""
        begun = steps.issued_at(np.array([step.start_us for step in self.steps]))
        return tuple(step for step, inside in zip(self.steps, begun, strict=True) if inside and steps.kind in ("", step.mark.phase))


def _marks(rows: Table, outer: np.ndarray) -> list[ServerMark]:
    """Fields of each outer range, completed by fields of ranges inside it for the same kind of step."""
    found: list[ServerMark] = []
    for name, is_outer in zip(rows["name"], outer.tolist(), strict=True):
        mark = server_mark(name)
        if mark is None:
            continue
        if is_outer:
            found.append(mark)
        elif found and found[-1].phase == mark.phase and found[-1].requests in (-1, mark.requests):
            found[-1] = found[-1].filled_by(mark)
    return found


def _steps(
    timeline: Timeline, launches: Launches, process: int, marks: Sequence[ServerMark], start: Floats, end: Floats, startup: StartUp, steps: Steps
) -> list[ServedStep]:
    ops, calls = timeline.gpu_ops, timeline.api_calls
    op_start, dur = ops["start_us"], ops["dur_us"]
    of_call = _range_of(calls["start_us"], start, end)
    if process >= 0:
        of_call[calls["pid"] != process] = -1
    launching, _ = lost_launches(timeline, launches)
    graphs = np.isin(launching, launches.calls_with(ApiRole.GRAPH_LAUNCH))
    n = len(marks)
    made = [_count(of_call[launching[chosen]], n) for chosen in (graphs, ~graphs)]
    by_graph = launches.replayed
    of_op = np.r_[of_call, -1][launches.call]
    took = [_count(of_op[chosen], n, dur[chosen]).astype(float) for chosen in (by_graph, ~by_graph)]
    took[0][(made[0] > 0) & (took[0] == 0)] = np.nan
    begins, lasts, whole = _periods(timeline, launches, start, end, of_op, steps)
    gap = np.where(begins > startup.earlier_us, _gaps_before(op_start, op_start + dur, begins), np.nan)
    padded = _padded(timeline, by_graph, of_op, marks)
    return [
        ServedStep(
            mark,
            start_us=float(start[k]),
            end_us=float(end[k]),
            begins_us=float(begins[k]),
            lasts_us=float(lasts[k]),
            whole=bool(whole[k]),
            graph_launches=int(made[0][k]),
            eager_launches=int(made[1][k]),
            graph_us=float(took[0][k]),
            eager_us=float(took[1][k]),
            gap_us=float(gap[k]),
            padded_to=mark.padded_to if mark.padded_to >= 0 else padded[k],
        )
        for k, mark in enumerate(marks)
    ]


def _range_of(times_us: Floats, start: Floats, end: Floats) -> Ints:
    """(n,) which of these ranges, sorted and apart, each time lies in; -1 for none."""
    at = np.searchsorted(start, times_us, side="right") - 1
    return np.where((at >= 0) & (times_us < end[at]), at, -1)


def _count(of_step: Ints, n: int, weights: Floats | None = None) -> np.ndarray:
    known = of_step >= 0
    return np.bincount(of_step[known], None if weights is None else weights[known], n)


def _periods(timeline: Timeline, launches: Launches, start: Floats, end: Floats, of_op: Ints, steps: Steps) -> tuple[Floats, Floats, np.ndarray]:
    """Where each step begins, how long it lasts, and whether to the beginning of the next."""
    if len(start) == 1 and steps.repeats and steps.steps == 1:
        return np.array([steps.start_us]), np.array([steps.step_us]), np.array([False])
    begins = first_kernel_of_steps(timeline, launches, np.r_[start, max(end[-1], start[-1])])
    begins = np.where(np.isnan(begins), start, begins)
    ops = timeline.gpu_ops
    ended = end.copy()
    np.maximum.at(ended, of_op[of_op >= 0], ops.ends[of_op >= 0])
    following = np.r_[begins[1:], np.nan]
    whole = following > begins
    return begins, np.where(whole, following - begins, ended - begins), whole


def _gaps_before(op_start: Floats, op_end: Floats, begins: Floats) -> Floats:
    """For how long nothing ran before each time."""
    until = np.r_[np.nan, np.maximum.accumulate(op_end)][np.searchsorted(op_start, begins)]
    return np.maximum(begins - until, 0.0)


def _padded(timeline: Timeline, by_graph: np.ndarray, of_op: Ints, marks: Sequence[ServerMark]) -> list[int]:
    """Rows that each step's graphs compute, by the grids of kernels that launch a block a row; -1 if they do not say, or fewer than its tokens. Grids
    of a block or more for each SM are as large whatever there is to do; some kernels norm the heads of each row."""
    ops = timeline.gpu_ops
    grids, full = ops["grid_blocks"], np.maximum(timeline.sm_counts(ops["device"]), 1)
    rows = np.flatnonzero(by_graph & (of_op >= 0) & (grids > 0) & ((grids % full > 0) | (full == 1)) & matches(ops, A_BLOCK_A_ROW))
    found = [-1] * len(marks)
    for step in np.unique(of_op[rows]).tolist():
        sizes, times = np.unique(grids[rows[of_op[rows] == step]], return_counts=True)
        size, tokens = int(sizes[times.argmax()]), marks[step].query_tokens
        if times.max() >= MOST * times.sum() and size >= tokens >= 0:
            found[step] = size
    return found


def phases(steps: Sequence[ServedStep]) -> tuple[ServedPhase, ...]:
    """Steps that are alike, by phase and by requests."""
    groups: dict[tuple[int, int], list[ServedStep]] = {}
    for step in steps:
        groups.setdefault((PHASES.index(step.mark.phase), step.mark.requests), []).append(step)
    return tuple(_phase(PHASES[at], requests, tuple(alike)) for (at, requests), alike in sorted(groups.items()))


def _phase(phase: str, requests: int, steps: tuple[ServedStep, ...]) -> ServedPhase:
    step_us = float(np.median([step.lasts_us for step in steps if step.whole] or [step.lasts_us for step in steps]))
    tokens, cached = (_mean([getattr(step.mark, name) for step in steps]) for name in ("query_tokens", "kv_tokens"))
    gpu_us, graph_us = (float(np.sum([getattr(step, name) for step in steps])) for name in ("gpu_us", "graph_us"))
    padded = [step.padded_to for step in steps if step.padded_to >= 0]
    made = {DECODE: requests, PREFILL: tokens, MIXED: tokens}.get(phase, -1)
    return ServedPhase(
        phase=phase,
        requests=requests,
        steps=steps,
        step_us=step_us,
        query_tokens=tokens,
        kv_tokens=cached,
        graph_launches=float(np.mean([step.graph_launches for step in steps])),
        eager_launches=float(np.mean([step.eager_launches for step in steps])),
        graph_coverage=graph_us / gpu_us if gpu_us > 0 else np.nan,
        padded_to=max(set(padded), key=padded.count) if padded else -1,
        tokens_per_s=1e6 * made / step_us if made >= 0 and step_us > 0 else np.nan,
    )


def _mean(values: Sequence[int]) -> float:
    """-1 where any of them is not known."""
    return float(np.mean(values)) if min(values) >= 0 else -1.0
