"""Attention scores that were formed: N × N tensors around a softmax."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.views.memory.attribution import Attribution, Category
from advisor.views.memory.history import Bools

_SOFTMAX = re.compile(r"^_?(safe_)?softmax$|^softmax$|^_softmax_backward_data$")
_PRODUCT = re.compile(r"^(bmm|baddbmm|matmul|einsum|_unsafe_view|scaled_dot_product)")
ITEM_RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Sizes that tensors of one shape have: a mask of bytes beside scores of two or four."""
SQUARE_LIKE = 4 << 20
"""Bytes below which a softmax is of something small: a router, a pooling."""


@dataclass(frozen=True)
class Scores:
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
        backward = np.array([bool(re.search(r"Softmax|Bmm|MaskedFill|Dropout|Div|Mul|Tril|Where|ToCopy|Baddbmm|Unsafe", o.node)) for o in origins])[a.stack]
        rows = np.zeros(len(a), bool)
        for size in np.unique(a.requested[softmax & (a.requested >= SQUARE_LIKE)]).tolist():
            around = np.unique(place[softmax & (a.requested == size)])
            inside = np.isin(place, around)
            # Beside a product of the same size: the softmax of logits has none.
            if not (product & inside & np.isin(a.requested, _sizes(size))).any():
                continue
            alike = np.isin(a.requested, _sizes(size))
            rows |= alike & (inside | backward)
        return cls(rows, bool((rows & attribution.of(Category.ACTIVATIONS)).any()))


def _sizes(size: int) -> list[int]:
    return [int(size * ratio) for ratio in ITEM_RATIOS]
