"""Ways of writing a program that PyTorch has one call for, as the ops that it dispatched show them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import msgspec
import numpy as np

from advisor.intervals import Ints, Mask
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.columns import Categorical
from advisor.recordings.timeline import Timeline
from advisor.views.trace import arguments
from advisor.views.trace.ops import Ops
from advisor.views.trace.repeats import FEWEST_REPEATS, runs
from advisor.views.trace.steps import Steps

CELL = names_of("recurrent_cell")
_PRODUCT = names_of("matrix_product_or_einsum")
_SLICE = names_of("slice")
_LOG_SOFTMAX = names_of("log_softmax")
_PICKED = names_of("pick_label")
_JOINED = names_of("concatenate")
_PATTERNS = CELL, _SLICE, _PRODUCT, _LOG_SOFTMAX, _PICKED, _JOINED

FEWEST = FEWEST_REPEATS
"""A pattern that comes less often in a step is no loop that is worth a call of its own."""

NEAR = 6
"""Outermost ops between a log-softmax and the pick of the target's probability that still belong together: squeezes, views, negation."""


class Spellings(msgspec.Struct, frozen=True):
    """cell: the recurrent cell that a Python loop calls, or ""; cells: calls per step. sliced: GEMMs per step of slices of the same tensor in a row, such as
    a head or expert at a time. picked: losses per step that are a log-softmax and a pick of the target's value. grows: first and last size of a tensor
    that grows by concatenation, or None. grows_values: the same for a list of single values, such as chosen words.
    """

    cell: str = ""
    cells: float = 0.0
    sliced: float = 0.0
    picked: float = 0.0
    grows: tuple[int, int] | None = None
    grows_values: tuple[int, int] | None = None

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops, steps: Steps) -> Spellings:
        frame = timeline.cpu_ops
        start = frame["start_us"]
        roots = np.flatnonzero((ops.parent < 0) & steps.issued_at(start))
        if not len(roots):
            return cls()
        codes = ops.names[roots]
        named = [np.array([pattern.match(name) is not None for name in ops.categories], bool)[codes] for pattern in _PATTERNS]
        cell, sliced, product, log_softmax, picked, joined = named
        cells = [match["kind"] for code in codes[cell].tolist() if (match := CELL.match(ops.categories[code]))]
        per_step = len(cells) / steps.steps
        # Only what cuts a tensor and what multiplies makes a run.
        told = sliced | product
        grown = _grown(timeline, roots[joined])
        return cls(
            cell=max(set(cells), key=cells.count) if per_step >= FEWEST else "",
            cells=per_step,
            sliced=_sliced(sliced[told], frame["dims"][roots[told]]) / steps.steps if sliced.any() else 0.0,
            picked=sum(bool(picked[i + 1 : i + 1 + NEAR].any()) for i in np.flatnonzero(log_softmax).tolist()) / steps.steps,
            grows=_widest(sizes for of_values, sizes in grown if not of_values),
            grows_values=_widest(sizes for of_values, sizes in grown if of_values),
        )


def _sliced(cuts: Mask, dims: Categorical) -> int:
    """GEMMs in runs of FEWEST or more, each of a fresh slice of a larger tensor, with the shapes of one of the two GEMMs before (scores and values
    alternate). cuts: whether each op slices; the others multiply.
    """
    products = np.flatnonzero(~cuts)
    fresh = np.diff(products, prepend=-1) > 1
    shape = dims.codes[products]
    again = fresh & dims.matching(bool)[products] & ((shape == np.r_[-1, shape][:-1]) | (shape == np.r_[-1, -1, shape][:-2]))
    found = runs(again)
    lengths = found[:, 1] - found[:, 0] + fresh[found[:, 0] - 1]
    return int(lengths[lengths >= FEWEST].sum())


def _mostly_grows(sizes: list[int]) -> bool:
    """Whether sizes grow, except where they start again, as for the next generated text."""
    falls = sum(later < size for size, later in pairwise(sizes))
    rises = sum(later > size for size, later in pairwise(sizes))
    return falls * FEWEST_REPEATS <= rises


def _widest(grown: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    return max(grown, key=lambda pair: pair[1] - pair[0], default=None)


def _grown(timeline: Timeline, joins: Ints) -> list[tuple[bool, tuple[int, int]]]:
    """The smallest and largest size of each axis along which a repeated concatenation grows, and whether it adds single values: along the only axis, or
    the last of two.
    """
    sizes: dict[tuple[int, ...], list[int]] = {}
    for text in timeline.cpu_ops["dims"][joins]:
        tensors = next((item for item in arguments.numbers(text) if item and isinstance(item[0], list)), [])
        if len(tensors) != 2 or len(tensors[0]) != len(tensors[1]):
            continue
        differing = [axis for axis, (a, b) in enumerate(zip(*tensors, strict=True)) if a != b]
        if len(differing) == 1 and tensors[1][differing[0]] < tensors[0][differing[0]]:
            axis = differing[0]
            rest = (axis, *(n for i, n in enumerate(tensors[0]) if i != axis))
            sizes.setdefault(rest, []).append(tensors[0][axis])
    return [
        (len(rest) <= 2 and rest[0] == len(rest) - 1, (min(found), max(found)))
        for rest, found in sizes.items()
        if len(set(found)) >= FEWEST_REPEATS and _mostly_grows(found)
    ]
