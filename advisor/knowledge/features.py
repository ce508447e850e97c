"""Features that code needs: training, a dataloader, or a framework, by the names in it."""

from __future__ import annotations

import re

from advisor.knowledge.expressions import expression

_NAMES = {
    "training": expression(
        r"\bbackward\b|\bgradients?\b|\.grad\b|\boptimi[sz]er\b|DistributedDataParallel|GradScaler|gradient_as_bucket_view|zero_grad|no_sync|value_and_grad",
        re.IGNORECASE,
    ),
    "loader": expression(r"\bDataLoader\b|num_workers"),
    "torch": expression(r"\btorch\b|\bnn\.|\bautocast\b|\bInductor\b|\bDataLoader\b|\bnon_blocking\b|\bpin_memory\b"),
    "jax": expression(r"\bjax\b|\bjnp\b|\blax\b|\bXLA_"),
    "cuda": expression(r"<<<|\bcuda[A-Z]\w+\(|\bcublas[A-Z]|\bnvcc\b"),
}


def needs(code: str) -> frozenset[str]:
    """Features that a program needs to contain this code: `training`, `loader`, or a framework."""
    return frozenset(name for name, pattern in _NAMES.items() if pattern.search(code))
