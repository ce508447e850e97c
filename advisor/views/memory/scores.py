"""Attention scores that were formed: N × N tensors around a softmax."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.knowledge.op_tokens import names_of
from advisor.views.memory.attribution import Attribution, Category
from advisor.views.memory.history import Bools

_SOFTMAX = names_of("frame_softmax")
_PRODUCT = names_of("frame_product")
_BACKWARD = names_of("frame_attention_backward")
_BACKWARD_BY_HAND = names_of("frame_softmax_backward_by_hand")
ITEM_BYTES = (1, 2, 4)
"""Of elements of tensors of the same shape: a mask of bytes next to scores of two or four."""
SQUARE_LIKE = 4 << 20
"""Bytes below which a softmax is of something small: a router, a pooling."""


class Scores(msgspec.Struct, frozen=True):
    """The allocations that a fused attention never makes."""

    rows: Bools
    kept: bool
    """Whether some of them are kept for the backward pass."""

    @classmethod
    def build(cls, attribution: Attribution) -> Scores:
        a = attribution.device.allocations
        origins = attribution.origins.of
        softmax = np.array([bool(_SOFTMAX.match(o.op)) for o in origins])[a.stack]
        product = np.array([bool(_PRODUCT.match(o.op)) for o in origins])[a.stack]
        place = np.array([f"{o.file}:{o.function}" if o.file else f"~{o.node}" for o in origins])[a.stack]
        caller = np.array([o.caller for o in origins])[a.stack]
        backward, backward_by_hand = (np.array([bool(p.search(o.node)) for o in origins])[a.stack] for p in (_BACKWARD, _BACKWARD_BY_HAND))
        rows = np.zeros(len(a), bool)
        by_hand = _written_out(attribution, place)
        for size in np.unique(a.requested[(softmax | by_hand) & (a.requested >= SQUARE_LIKE)]).tolist():
            of_size, alike = a.requested == size, np.isin(a.requested, _sizes(size))
            around, written = np.unique(place[softmax & of_size]), np.unique(place[by_hand & of_size])
            # A softmax of the program's own is called where the products are.
            inside = np.isin(place, around) | np.isin(place, written) | np.isin(place, np.unique(caller[by_hand & of_size]))
            # Beside a product of the same size: the softmax of logits has none.
            if not (product & inside & alike).any():
                continue
            rows |= alike & (inside | (backward_by_hand if len(written) else backward))
        return cls(rows, bool((rows & attribution.in_categories(Category.ACTIVATIONS)).any()))


def _written_out(attribution: Attribution, place: np.ndarray) -> Bools:
    """Exponentials of a softmax in the program's code: a difference, its exponential and a quotient of the same shape in a function."""
    a = attribution.device.allocations
    op = np.array([o.op for o in attribution.origins.of])[a.stack]
    file = np.array([bool(o.file) for o in attribution.origins.of])[a.stack]
    found = np.zeros(len(a), bool)
    seen = set()
    for row in np.flatnonzero((op == "exp") & file & (a.requested >= SQUARE_LIKE)).tolist():
        key = str(place[row]), int(a.requested[row])
        if key not in seen:
            seen.add(key)
            here = (place == place[row]) & np.isin(a.requested, _sizes(int(a.requested[row])))
            if {"sub", "div"} <= {*op[here].tolist()}:
                found |= here & (op == "exp") & (a.requested == a.requested[row])
    return found


def _sizes(size: int) -> list[int]:
    return sorted({size * one // other for one in ITEM_BYTES for other in ITEM_BYTES})
