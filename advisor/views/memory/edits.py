"""What fixes do to the lives of allocations. Each returns edited lives to replay."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from advisor.knowledge.shares import HARDLY_ANY, MOST, NO_DIFFERENCE
from advisor.recordings.snapshot import Ints
from advisor.views.memory.attribution import Attribution, Category
from advisor.views.memory.history import Bools
from advisor.views.memory.origins import Phase
from advisor.views.memory.replay import Lives
from advisor.views.trace.repeats import repeats

TINY = NO_DIFFERENCE
"""Of the largest activation of a layer: below it a tensor is a statistic or a flag, not what the next layer gets."""
TURN = HARDLY_ANY
"""Share of a step's events: shorter lives start at the end of the forward pass and end at the start of the backward pass, like a loss's logits. Checkpointing
does not free them.
"""
REPEATED = MOST
"""Share of a forward pass's activation bytes that must lie in layers that repeat."""


class Layers(NamedTuple):
    """The parts of a forward pass that repeat: one row an activation, in order of birth."""

    row: Ints
    """Its allocation."""
    layer: Ints
    """Counted through all passes of the window."""
    passes: Ints
    """The backward pass that it waits for."""
    boundary: Bools
    """Whether it is what the next layer gets, which checkpointing keeps."""
    alike: bool
    """Whether the layers are equal, so that their bounds are known."""

    @property
    def per_pass(self) -> int:
        """Layers of one pass."""
        return int(self.layer.max(initial=-1) + 1) // max(len(np.unique(self.passes)), 1)


class ForwardLayers(msgspec.Struct, frozen=True):
    """The layers of each forward pass; None where too little is kept."""

    found: Layers | None

    @classmethod
    def build(cls, attribution: Attribution) -> ForwardLayers:
        return cls(layers_of(attribution))


def layers_of(attribution: Attribution) -> Layers | None:
    """The layers of each forward pass, as they repeat or in stretches of equal bytes; None where too little is kept."""
    a, runs = attribution.device.allocations, attribution.runs
    length = float(np.median(np.diff(runs.starts_of(Phase.BACKWARD), prepend=0))) if attribution.backwards else 0.0
    turns = a.freed - a.born < TURN * length
    kept = np.flatnonzero(attribution.in_categories(Category.ACTIVATIONS) & (attribution.phase == Phase.FORWARD) & (a.born >= 0) & ~turns)
    kept = kept[np.argsort(a.born[kept], kind="stable")]
    if not len(kept):
        return None
    backward = runs.starts_of(Phase.BACKWARD)
    waits_for = np.searchsorted(backward, a.born[kept], side="right")
    parts, layers, alike = [], 0, True
    known: dict[bytes, tuple[Ints, Ints] | None] = {}
    for one, rows in zip(np.unique(waits_for).tolist(), np.split(kept, np.flatnonzero(np.diff(waits_for)) + 1), strict=True):
        # Passes are alike: what one is made of is worked out once.
        key = a.stack[rows].tobytes() + a.requested[rows].tobytes()
        if key not in known:
            known[key] = _repeating(a.stack[rows].astype("i8"), a.requested[rows])
        found = known[key]
        alike &= found is not None
        inside, layer = found or _stretches(a.requested[rows])
        if not len(inside):
            continue
        boundary = _boundaries(a.requested[rows[inside]], layer) if found else np.r_[np.diff(layer) > 0, True]
        parts.append((rows[inside], layer + layers, np.full(len(layer), one), boundary))
        layers += int(layer.max()) + 1
    return Layers(*_joined(parts), alike) if parts else None


def _joined(parts: list[tuple[Ints, Ints, Ints, Bools]]) -> tuple[Ints, Ints, Ints, Bools]:
    rows, layers, passes, boundaries = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(layers), np.concatenate(passes), np.concatenate(boundaries)


STRETCHES = 12
"""Parts that a network of unlike layers is cut into: about the square root of the tensors that it keeps, where checkpoints cost least."""


def _stretches(size: Ints) -> tuple[Ints, Ints]:
    """All positions that are no mere statistics, in stretches of about equal bytes."""
    inside = np.flatnonzero(size >= TINY * size.max(initial=0))
    if len(inside) < 2 * STRETCHES:
        return np.empty(0, "i8"), np.empty(0, "i8")
    done = np.cumsum(size[inside]) / size[inside].sum()
    _, stretch = np.unique(np.minimum((done * STRETCHES).astype(int), STRETCHES - 1), return_inverse=True)
    return inside, stretch.reshape(-1)


def _repeating(stack: Ints, size: Ints) -> tuple[Ints, Ints] | None:
    """Positions in the part of a sequence that repeats by stacks and sizes, and the repeat of each. None if it holds few bytes.

    Both stack and size are evidence, so two repeats are enough.
    """
    for found in repeats(np.unique(np.stack([stack, size]), axis=1, return_inverse=True)[1].reshape(-1), fewest=2):
        first, end = found.longest
        layer = np.arange((end - first) // found.period * found.period) // found.period
        if size[first : first + len(layer)].sum() >= REPEATED * size.sum():
            return first + np.arange(len(layer)), layer
    return None


def _boundaries(size: Ints, layer: Ints) -> Bools:
    """One a layer: the smallest that is no mere statistic, the last of its size."""
    found = np.zeros(len(size), bool)
    for one in range(int(layer.max()) + 1):
        inside = np.flatnonzero(layer == one)
        real = inside[size[inside] >= TINY * size[inside].max()]
        found[real[size[real] == size[real].min()][-1]] = True
    return found


def checkpointed(attribution: Attribution, lives: Lives, layers: Layers, together: int = 1) -> Lives:
    """Layers dropped as they end and made again when the backward pass reaches them, `together` at a time."""
    a = attribution.device.allocations
    group = layers.layer // together
    n = len(lives.row)
    dropped, born, ended = np.zeros(n, bool), np.zeros(n, "i8"), lives.freed.copy()
    place = np.full(len(a), -1)
    place[lives.row[:n]] = np.arange(n)
    for members in np.split(np.arange(len(group)), np.flatnonzero(np.diff(group)) + 1):
        rows = layers.row[members]
        inner = rows[~layers.boundary[members]]
        at = place[inner]
        at = at[at >= 0]
        dropped[at] = True
        ended[at] = a.born[rows].max() + 1
        born[at] = max(int(a.freed[rows].min()) - 1, int(a.born[rows].max()) + 2)
    # What is dropped before it is made leaves no trace.
    ended = np.maximum(ended, np.minimum(lives.born + 1, lives.freed))
    shorter = lives.freed_at(dropped, ended)
    return shorter.repeat_rows(dropped & (born < lives.freed), born, lives.freed)
