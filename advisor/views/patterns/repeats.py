"""Loops of the program's own, by the kernels that come again in each pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.op_tokens.families import PRODUCTS, Family
from advisor.knowledge.shares import NEARLY_ALL
from advisor.views.replay.gpu_work import GpuWork

FEWEST_PASSES = 8
"""As often a loop goes over the same few kernels at least."""

LONGEST_BODY = 64
"""Kernels of a loop's body at most: what repeats after more is a layer."""

ALIKE = NEARLY_ALL
"""Share of a run's kernels that come again one pass later where a loop launched it: now and then gradients are added up between."""

_BETWEEN = *PRODUCTS, Family.COMMUNICATION
"""What ends a loop over the same few kernels."""


def kinds(work: GpuWork) -> Ints:
    """(n,) the op that launched each, or where none was recorded the kernel's name, as numbers."""
    kind = np.where(work.op >= 0, work.ops.names[work.op], -1) if len(work.ops.names) else np.full(len(work.op), -1)
    codes = work.timeline.gpu_ops["name"].cat.codes.to_numpy()[work.rows].astype(np.int64)
    found: Ints = np.where(kind >= 0, kind, -1 - codes)
    return found


def passes(run: Ints, kind: Ints) -> list[Ints]:
    """A run of kernels, cut into the passes of the loop that launched it: a result of one pass is not kept on the chip for the next, and a
    compiler that is given the whole loop still makes kernels of each pass. One op again and again is a chain."""
    for period in range(1, min(len(run) // FEWEST_PASSES, LONGEST_BODY) + 1):
        again = kind[period:] == kind[:-period]
        if again.mean() >= ALIKE:
            if period == 1:
                return [run]
            first = int(np.argmax(np.convolve(again, np.ones(period), "valid")))  # where a whole pass, or most of one, comes again
            return [piece for piece in np.split(run, np.arange(first, len(run), period)) if len(piece)]
    return [run]


def looped(work: GpuWork, several: Sequence[Ints]) -> Ints:
    """Which of several sets of positions come again and again, alike, in one step of a stream, with no product between."""
    products, kind = np.cumsum(work.of(*_BETWEEN)), kinds(work)
    keys = [(work.schedule.stream[at[0]], work.step[at[0]], products[at[0]], *kind[at].tolist()) for at in several]
    often = Counter(keys)
    return np.array([i for i, key in enumerate(keys) if often[key] >= FEWEST_PASSES], np.int64)
