"""Python loops over a model's parameters outside the optimizer: each tensor is zeroed, clipped or updated by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Ints, Mask, Spans, union
from advisor.knowledge.op_tokens import has_token, names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.shares import MOST, NEARLY_ALL
from advisor.recordings.timeline import Timeline
from advisor.views.patterns.optimizer import MOST_IN_ITS_RANGE, OptimizerStep
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace import arguments
from advisor.views.trace.optimizer_ranges import update_spans
from advisor.views.trace.repeats import ONE_BY_ONE, rounds
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches

COVERED = MOST
"""A loop goes over at least this share of the parameters: some leave out biases and norms."""

OF_PARAMETERS = NEARLY_ALL
"""Share of the tensors that an op of the loop takes which have a parameter's shape."""

_POINTWISE = (Family.ELEMENTWISE, Family.REDUCTION, Family.NORM, Family.COPY, Family.FILL)

_OPTIMIZER = names_of("optimizer_step_or_zero_grad")

Shape = tuple[int, ...]


class ParameterLoop(msgspec.Struct, frozen=True):
    """ops: positions of the GPU ops that loops launched. spans: their time on the host. waits: positions of the calls there that wait
    for the GPU. tensors: how many they go over in a step."""

    ops: Ints
    spans: Spans
    waits: Ints
    tensors: int


class ParameterLoops(msgspec.Struct, frozen=True):
    """zeroing: loops that only fill, each gradient that the backward pass then adds to. updating: all others.

    Parameters are known by the shapes that autograd accumulates gradients of. A run of elementwise work and reductions outside the backward
    pass, not interrupted by any other kernel, that does the same to tensors of these shapes is a loop over them. None if shapes were
    not recorded: untold are then the positions of runs behind a backward pass that may be such loops.
    """

    zeroing: ParameterLoop
    updating: ParameterLoop
    untold: Ints

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, work: GpuWork, update: OptimizerStep) -> ParameterLoops:
        parameters = _parameters(timeline, steps, work)
        own = (work.op >= 0) & ~work.backward & _outside_ranges(timeline, work, update)
        own &= ~work.kernel | work.in_families(*_POINTWISE)
        root = np.where(work.op >= 0, work.ops.outermost[work.op] if len(work.ops.outermost) else -1, -1)
        name = np.where(root >= 0, work.ops.names[root], -1) if len(work.ops.names) else root
        named = [*work.ops.categories, ""]
        own &= ~np.array(["_foreach_" in text for text in named], bool)[name]
        fills = np.array([has_token(text, "fill") for text in named], bool)[name]
        return cls(
            _loop(timeline, work, [run for run in _runs(work, own & fills) if _zeroes(work, run, parameters)], parameters),
            _loop(
                timeline,
                work,
                [run for whole in _runs(work, own & ~fills) if _goes_over(work, run := _of_parameters(work, whole, parameters), parameters)],
                parameters,
            ),
            np.zeros(0, np.int64) if timeline.source.shapes else _behind_backward(work, _runs(work, own & ~fills)),
        )


def _outside_ranges(timeline: Timeline, work: GpuWork, update: OptimizerStep) -> Mask:
    notes = timeline.annotations
    found = ~work.launched_inside(update_spans(timeline, matches(notes, _OPTIMIZER))) if len(notes) else np.ones(len(work.rows), bool)
    found[update.ops] = False
    return found


def _parameters(timeline: Timeline, steps: Steps, work: GpuWork) -> Counter[Shape]:
    """How many parameters have each shape, by the gradients that a step accumulates."""
    ops = timeline.cpu_ops
    if not len(ops) or not timeline.source.shapes:
        return Counter()
    at = np.flatnonzero(work.ops.names == _category(work, "torch::autograd::AccumulateGrad"))
    at = at[np.isin(steps.of_host_time(ops["start_us"][at]), work.step)]
    counts = Counter(shape for op in at.tolist() if (shape := _shape(work, op)))
    # Each backward pass accumulates the gradient of a parameter once; between two of them other work is launched.
    other = np.sort(work.launched_us[work.kernel & (work.op >= 0) & ~work.backward])
    passes = len(np.unique(np.searchsorted(other, ops["start_us"][at])))
    return Counter({shape: round(n / passes) for shape, n in counts.items()})


def _category(work: GpuWork, name: str) -> int:
    return work.ops.categories.index(name) if name in work.ops.categories else -1


def _shape(work: GpuWork, op: int) -> Shape:
    """Of an op's first input; () if it is no tensor, or one of a single number."""
    first = next(iter(arguments.numbers(work.timeline.cpu_ops["dims"][op])), [])
    return tuple(first) if all(isinstance(n, int) for n in first) else ()


def _behind_backward(work: GpuWork, runs: Iterator[Ints]) -> Ints:
    """Positions of runs of several kernels for each of so many tensors as a loop goes over, behind the last of the backward pass in their step."""
    last = np.full(int(work.step.max(initial=-1)) + 1, len(work.step), np.int64)
    at = np.flatnonzero(work.backward)
    last[work.step[at]] = at
    return np.concatenate([np.zeros(0, np.int64), *(run for run in runs if len(run) >= 2 * ONE_BY_ONE and run[0] > last[work.step[run[0]]])])


def _runs(work: GpuWork, chosen: Mask) -> Iterator[Ints]:
    """Positions that follow each other in one step."""
    at = np.flatnonzero(chosen)
    for run in np.split(at, np.flatnonzero((np.diff(at) > 1) | (np.diff(work.step[at]) != 0)) + 1):
        if len(run) >= ONE_BY_ONE:
            yield run


def _of_parameters(work: GpuWork, run: Ints, parameters: Counter[Shape]) -> Ints:
    """A run without what comes before the first op that takes a parameter and behind the last: metrics, and what reads them."""
    at = np.flatnonzero([_shape(work, op) in parameters for op in work.op[run].tolist()])
    return run[at[0] : at[-1] + 1] if len(at) else run[:0]


def _taken(work: GpuWork, run: Ints) -> dict[str, Counter[Shape]]:
    """What each op of a run takes first, by its name; an op that launches several kernels counts once. Copies alone are no work on
    parameters: collectives take and leave gradients in flat buffers."""
    found: dict[str, Counter[Shape]] = {}
    for op in np.unique(work.op[run]).tolist():
        if (shape := _shape(work, op)) and not has_token(name := work.ops.name(op), "copy"):
            found.setdefault(name, Counter())[shape] += 1
    return found


def _tensors(work: GpuWork, run: Ints, parameters: Counter[Shape]) -> int:
    """How many parameters a run goes over; 0 if it does something else."""
    over = [taken.total() for taken in _taken(work, run).values() if sum(n for s, n in taken.items() if s in parameters) >= OF_PARAMETERS * taken.total()]
    # Some ops come more often a tensor than others, and some only for those tensors that need them.
    tensors = rounds(over)
    return tensors if tensors >= max(ONE_BY_ONE, COVERED * parameters.total()) else 0


def _goes_over(work: GpuWork, run: Ints, parameters: Counter[Shape]) -> bool:
    if (work.schedule.after[run[1:]] != -1).any():
        # Each tensor comes from another stream, as from a collective of its own: all at once would wait for the last.
        return False
    tensors = _tensors(work, run, parameters)
    shapes = {shape for taken in _taken(work, run).values() for shape in taken if shape in parameters}
    # The same op on many tensors of one shape may be a model's.
    return tensors > 0 and len(shapes) > 1 and len(run) <= MOST_IN_ITS_RANGE * tensors


def _zeroes(work: GpuWork, run: Ints, parameters: Counter[Shape]) -> bool:
    filled = Counter(_shape(work, op) for op in np.unique(work.op[run]).tolist())
    return filled.total() >= max(1, OF_PARAMETERS * parameters.total()) and filled <= parameters


def _loop(timeline: Timeline, work: GpuWork, runs: list[Ints], parameters: Counter[Shape]) -> ParameterLoop:
    none = np.zeros(0, np.int64)
    calls, schedule = timeline.api_calls, work.schedule
    if not runs or not len(calls):
        return ParameterLoop(none, EMPTY, none, 0)
    start, dur = calls["start_us"], calls["dur_us"]
    ends = [schedule.call_row[schedule.op_call[run[[0, -1]]]] for run in runs]
    spans = union(np.array([start[first] for first, _ in ends]), np.array([start[last] + dur[last] for _, last in ends]))
    waits = np.flatnonzero(schedule.waits_for != -1)
    began = start[schedule.call_row[waits]]
    at = np.searchsorted(spans[0], began, side="right") - 1
    waits = waits[(at >= 0) & (began < spans[1][at])]
    tensors = sum(_tensors(work, run, parameters) for run in runs)
    return ParameterLoop(np.concatenate(runs), spans, waits, round(tensors / schedule.steps))
