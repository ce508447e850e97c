"""ComplEx of torch_geometric, 300,000 things, Adam on all of them, gradients filled with zeros, triplets listed in Python, loss read."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, How, _public, training


def complex_goods(s: Setup, *, drawn: bool = False, **how: Any) -> Step:
    """ComplEx learns which of 300,000 customers, goods and brands of a shop belong together, 16,384 triplets at a time."""
    from torch_geometric.nn import ComplEx

    way, things, kinds, facts, count = How(**how), s.size(300_000, 60), s.size(24, 3), s.size(2_000_000, 100), s.size(16_384, 10)
    model: Any = ComplEx(things, kinds, s.size(128, 8))
    one, other = torch.randint(things, (2, facts), device=s.device)
    kind = torch.randint(kinds, (facts,), device=s.device)
    loader = model.loader(one, kind, other, batch_size=count, shuffle=True, drop_last=True)
    stream = (batch for _ in iter(int, 1) for batch in loader)

    def loss(model: Any) -> Tensor:
        if drawn:
            at = torch.randint(facts, (count,), device=s.device)
            return model.loss(one[at], kind[at], other[at])  # type: ignore[no-any-return]
        return model.loss(*next(stream))  # type: ignore[no-any-return]

    return training(s, way, model, loss, partial(torch.optim.Adam, weight_decay=1e-6))


PROGRAM = _public(
    "complex_goods",
    "ComplEx of torch_geometric, 300,000 things, Adam on all of them, gradients filled with zeros, triplets listed in Python, loss read.",
    complex_goods,
    {"zero": True, "read_loss": True},
    {
        "optimizer-foreach": {"optimizer": "fused"},
        "grad-zeroing": {"zero": False},
        "host-bound": {"drawn": True},
        "sync-stall": {"read_loss": False},
        "precision": {"autocast": BF16},
    },
)
