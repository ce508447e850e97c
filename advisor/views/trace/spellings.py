"""Ways of writing a program that PyTorch has one call for, as the ops that it dispatched show them."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.timeline import Timeline
from advisor.views.trace import arguments
from advisor.views.trace.ops import Ops
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.steps import Steps

CELL = names_of("recurrent_cell")
_LOG_SOFTMAX = names_of("log_softmax")
_PICKED = names_of("pick_label")
_JOINED = names_of("concatenate")
_PATTERNS = CELL, _LOG_SOFTMAX, _PICKED, _JOINED

FEWEST = FEWEST_REPEATS
"""A pattern that comes less often in a step is no loop that is worth a call of its own."""

NEAR = 6
"""Outermost ops between a log-softmax and the pick of the target's probability that still belong together: squeezes, views, negation."""


class Spellings(msgspec.Struct, frozen=True):
    """cell: the recurrent cell that a Python loop calls, or ""; cells: calls per step. picked: losses per step that are a log-softmax and a pick of the
    target's value. grows: first and last size of a tensor that grows by concatenation, or None; a list of single values, such as chosen words, is none.
    """

    cell: str = ""
    cells: float = 0.0
    picked: float = 0.0
    grows: tuple[int, int] | None = None

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops, steps: Steps) -> Spellings:
        frame = timeline.cpu_ops
        start = frame["start_us"]
        roots = np.flatnonzero((ops.parent < 0) & steps.issued_at(start))
        if not len(roots):
            return cls()
        codes = ops.names[roots]
        named = [np.array([pattern.match(name) is not None for name in ops.categories], bool)[codes] for pattern in _PATTERNS]
        cell, log_softmax, picked, joined = named
        cells = [match["kind"] for code in codes[cell].tolist() if (match := CELL.match(ops.categories[code]))]
        per_step = len(cells) / steps.steps
        return cls(
            cell=max(set(cells), key=cells.count) if per_step >= FEWEST else "",
            cells=per_step,
            picked=sum(bool(picked[i + 1 : i + 1 + NEAR].any()) for i in np.flatnonzero(log_softmax).tolist()) / steps.steps,
            grows=max(_grown(timeline, roots[joined]), key=lambda pair: pair[1] - pair[0], default=None),
        )


def _mostly_grows(sizes: list[int]) -> bool:
    """Whether sizes grow, except where they start again, as for the next generated text."""
    falls = sum(later < size for size, later in pairwise(sizes))
    rises = sum(later > size for size, later in pairwise(sizes))
    return falls * FEWEST_REPEATS <= rises


def _grown(timeline: Timeline, joins: Ints) -> list[tuple[int, int]]:
    """The smallest and largest size of each axis along which a repeated concatenation grows; not of one that adds single values: along the only axis, or
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
            if len(tensors[0]) > 2 or axis < len(tensors[0]) - 1:
                rest = (axis, *(n for i, n in enumerate(tensors[0]) if i != axis))
                sizes.setdefault(rest, []).append(tensors[0][axis])
    return [(min(found), max(found)) for found in sizes.values() if len(set(found)) >= FEWEST_REPEATS and _mostly_grows(found)]
