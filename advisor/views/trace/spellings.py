"""Ways of writing a program that PyTorch has one call for, as the ops that it dispatched show them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.intervals import Ints
from advisor.recordings.timeline import Timeline
from advisor.views.trace import arguments
from advisor.views.trace.ops import Ops
from advisor.views.trace.steps import Steps

_CELL = re.compile(r"^aten::(?P<kind>lstm|gru|rnn_tanh|rnn_relu)_cell$")
_PRODUCT = re.compile(r"^aten::(mm|bmm|matmul|addmm|baddbmm|linear|einsum)$")
_SLICE = re.compile(r"^aten::(select|slice|narrow|index_select|chunk|split|unbind)$")
_LOG_SOFTMAX = re.compile(r"^aten::_?log_softmax$")
_PICKED = re.compile(r"^aten::(gather|index|take_along_dim|one_hot)$")
_JOINED = re.compile(r"^aten::cat$")

FEWEST = 4
"""A pattern that comes less often in a step is no loop that is worth a call of its own."""

FEWEST_SIZES = 3
"""A tensor that grows is seen at so many sizes."""

NEAR = 6
"""Outermost ops between a log-softmax and the pick of the target's probability that still belong together: squeezes, views, negation."""


@dataclass(frozen=True)
class Spellings:
    """cell: the recurrent cell that a Python loop steps, "" where none does; cells: how often in a step. sliced: products a step of
    slices of one tensor, alike and in a row, as one head or expert at a time. picked: losses a step that are a log-softmax and a pick of
    the target's. grows: sizes from and to which a tensor grows by concatenation, None where none does."""

    cell: str = ""
    cells: float = 0.0
    sliced: float = 0.0
    picked: float = 0.0
    grows: tuple[int, int] | None = None

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops, steps: Steps) -> Spellings:
        frame = timeline.cpu_ops
        start = frame["start_us"].to_numpy()
        roots = np.flatnonzero((ops.parent < 0) & (start >= steps.host_start_us) & (start < steps.host_end_us))
        if not len(roots):
            return cls()
        names = [ops.categories[code] for code in ops.names[roots].tolist()]
        cells = [match["kind"] for name in names if (match := _CELL.match(name))]
        per_step = len(cells) / steps.steps
        return cls(
            cell=max(set(cells), key=cells.count) if per_step >= FEWEST else "",
            cells=per_step,
            sliced=_sliced(names, frame["dims"].iloc[roots].astype(str).tolist()) / steps.steps,
            picked=_picked(names) / steps.steps,
            grows=_grows(timeline, roots[[bool(_JOINED.match(name)) for name in names]]),
        )


def _sliced(names: list[str], dims: list[str]) -> int:
    """Products in runs of FEWEST or more, each of what was just cut out of a larger tensor, in the shapes of one of the two products before
    it: scores and values alternate."""
    lengths, length, before, cut = [], 0, ("", ""), False
    for name, shape in zip(names, dims, strict=True):
        if _SLICE.match(name):
            cut = True
        elif _PRODUCT.match(name):
            if cut and shape and shape in before:
                length += 1
            else:
                lengths.append(length)
                length = int(cut)
            before, cut = (before[1], shape), False
    return sum(run for run in (*lengths, length) if run >= FEWEST)


def _picked(names: list[str]) -> int:
    """Log-softmaxes that a gather or an index follows."""
    found = 0
    for i, name in enumerate(names):
        if _LOG_SOFTMAX.match(name):
            found += any(_PICKED.match(later) for later in names[i + 1 : i + 1 + NEAR])
    return found


def _grows(timeline: Timeline, joins: Ints) -> tuple[int, int] | None:
    """The smallest and largest size of the axis along which a concatenation of the same two ranks of tensor grows by what it adds."""
    sizes: dict[tuple[int, ...], list[int]] = {}
    for text in timeline.cpu_ops["dims"].iloc[joins].astype(str):
        tensors = next((item for item in arguments.numbers(text) if item and isinstance(item[0], list)), [])
        if len(tensors) != 2 or len(tensors[0]) != len(tensors[1]):
            continue
        differing = [axis for axis, (a, b) in enumerate(zip(*tensors, strict=True)) if a != b]
        if len(differing) == 1 and tensors[1][differing[0]] < tensors[0][differing[0]]:
            axis = differing[0]
            rest = (axis, *(n for i, n in enumerate(tensors[0]) if i != axis))
            sizes.setdefault(rest, []).append(tensors[0][axis])
    grown = [(min(found), max(found)) for found in sizes.values() if len(set(found)) >= FEWEST_SIZES and found == sorted(found)]
    return max(grown, key=lambda pair: pair[1] - pair[0], default=None)
