"""A Python loop over a recurrent cell, and the step with one call of the library for all of its passes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask, Spans
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.shares import LITTLE, MOST
from advisor.views.replay.edits import Edit, Fused, WithHostTime, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.repeats import ALIKE, repeats
from advisor.views.trace.shapes import Shapes
from advisor.views.trace.spellings import CELL, FEWEST, Spellings

_PRODUCT = names_of("mm_or_addmm")
_CELL_BACKWARD = names_of("recurrent_cell_backward")

OTHER = LITTLE
"""Share of a loop's kernels outside cells: slices of the input, and their concatenation. With more, such as attention over earlier inputs, no library call
covers the recurrence."""

HEAD = MOST
"""Share of GEMMs on the cells' state and their activations, if the loop has nothing else and their width excludes a way back into a cell: all passes can run
together after it. A head and its activation next to a cell of three kernels are two fifths."""

KERNELS_A_CELL = 2
"""cuDNN launches a product and an elementwise kernel for each pass where it keeps none of the state on the chip."""

OF_THE_TIME = cost("library-recurrence")

LAUNCH_US = cost("library-recurrence-launch")


class RecurrentLoop(msgspec.Struct, frozen=True, eq=False):
    """cells: per step, 0 without such a loop. edit: the effect of a single call for all passes."""

    cells: float
    edit: Edit

    @classmethod
    def build(cls, work: GpuWork, spellings: Spellings, host_time: HostTime, shapes: Shapes) -> RecurrentLoop:
        none = cls(0.0, combine())
        if not spellings.cell:
            return none
        of_cell = work.ops.enclosing(work.op, CELL)
        # A forward and a backward pass each; a step that accumulates gradients has several.
        cuts = np.flatnonzero((np.diff(work.step) != 0) | (np.diff(work.backward) != 0)) + 1
        passes = [at for at in np.split(np.arange(len(work.rows)), cuts) if len(at)]
        found = [loop for at in passes if not work.backward[at[0]] for loop in _loops(work, shapes, of_cell >= 0, at, True)]
        edges = _backward_of(work, np.concatenate([np.arange(0), *(at for at, _ in found)]))
        found += [loop for at in passes if work.backward[at[0]] for loop in _loops(work, shapes, edges, at, False)]
        if not found or work.backward[found[0][0][0]]:
            return none
        members = [at for at, _ in found]
        cells_at = (of_cell >= 0) | work.backward
        kept = np.concatenate([at[: KERNELS_A_CELL * passes] for at, passes in found])
        cells = sum(passes for at, passes in found if not work.backward[at[0]])
        return cls(
            cells / work.schedule.steps,
            combine(
                host_time.cut_time(_spans(work, members)),
                Fused.chains(members, np.array([_library_us(work, cells_at, at) for at, _ in found]), [KERNELS_A_CELL * passes for _, passes in found]),
                WithHostTime(kept, LAUNCH_US),
            ),
        )


def _backward_of(work: GpuWork, forward: Ints) -> Mask:
    """(n,) kernels of the backward pass of cells, but for such as are told to be of other cells than those of these positions."""
    found = work.launched_by(_CELL_BACKWARD.match)
    sequence = work.timeline.cpu_ops["sequence"]
    of_forward = sequence[work.op[forward]]
    backward = np.flatnonzero(found)
    of_backward = sequence[work.ops.outermost[work.op[backward]]]
    found[backward] = (of_backward < 0) | np.isin(of_backward, of_forward)
    return found


def _loops(work: GpuWork, shapes: Shapes, cells: Mask, part: Ints, only: bool) -> Iterator[tuple[Ints, int]]:
    """Of some positions in a row those of each loop, from the first to the last kernel of its cells, and how many passes it has.
    only: whether it must be of cells alone, which the backward pass of such a loop is too."""
    at = part[cells[part]]
    if not len(at):
        return
    first = np.flatnonzero(np.diff(work.ops.outermost[work.op[at]], prepend=-1))
    for loop in np.split(at, first[1:][_loop_ends(np.diff(at)[first[1:] - 1])]):
        passes = len(np.unique(work.ops.outermost[work.op[loop]]))
        inside = part[work.kernel[part] & (part >= loop[0]) & (part <= loop[-1])]
        if passes >= FEWEST and not (only and not _only_cells(work, shapes, inside, cells[inside])):
            yield inside, passes


def _loop_ends(between: Ints) -> Mask:
    """The place between two loops: more ops than between any two cells in the usual periods."""
    for found in repeats(np.unique(between, return_inverse=True)[1]):
        if found.length >= ALIKE * len(between):
            inside = np.concatenate([between[first:end] for first, end in found.stretches.tolist()])
            return np.asarray(between > inside.max())
    return np.zeros(len(between), bool)


def _library_us(work: GpuWork, cells: Mask, at: Ints) -> float:
    """Time of a loop's kernels in the library; what is no cell's takes as long as it does."""
    return float(np.where(cells[at], OF_THE_TIME, 1.0) @ work.dur_us[at])


def _only_cells(work: GpuWork, shapes: Shapes, inside: Ints, cells: Mask) -> bool:
    """Whether a loop's kernels are those of cells, and of what can wait until the loop is over."""
    others = inside[~cells]
    if len(others) <= OTHER * len(inside):
        return True
    taken, made = (_widths(work, shapes, at) for at in (inside[cells], others))
    widths = {width for _, width in made}
    return (
        len(others) <= HEAD * len(inside)
        and bool(made)
        and not widths & {width for width, _ in taken}
        and all(_of_head(work, shapes, at, widths) for at in others.tolist())
    )


def _of_head(work: GpuWork, shapes: Shapes, at: int, widths: set[int]) -> bool:
    """Whether it is a head's product, its activation, or fills what it makes."""
    if work.launched_by(_PRODUCT.match)[at] or work.in_families(Family.FILL)[at]:
        return True
    inputs = shapes.inputs(int(work.op[at]))
    return bool(work.in_families(Family.ELEMENTWISE)[at]) and bool(inputs) and inputs[0][0][-1:] in [(width,) for width in widths]


def _widths(work: GpuWork, shapes: Shapes, at: Ints) -> set[tuple[int, int]]:
    """What each product takes in and puts out for each row."""
    products = np.unique(work.op[at[work.launched_by(_PRODUCT.match)[at]]]).tolist()
    weights = [shapes.inputs(op)[-1][0] for op in products if shapes.inputs(op)]
    return {(weight[0], weight[1]) for weight in weights if len(weight) == 2}


def _spans(work: GpuWork, members: list[Ints]) -> Spans:
    """Host time from the first to the last launch of each loop."""
    ends = np.array([[work.launched_us[at[0]], work.launched_us[at[-1]]] for at in members])
    order = np.argsort(ends[:, 0])
    return ends[order, 0], ends[order, 1]
