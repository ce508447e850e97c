"""Words of advice that mean something only to some programs: to those that train, that have a loader, or that are written with one framework."""

from __future__ import annotations

import re

from advisor.knowledge.expressions import expression

_WORDS = {
    "training": expression(
        r"\bbackward\b|\bgradients?\b|\.grad\b|\boptimi[sz]er\b|DistributedDataParallel|GradScaler|gradient_as_bucket_view|zero_grad|no_sync|value_and_grad",
        re.IGNORECASE,
    ),
    "loader": expression(r"\bDataLoader\b|num_workers"),
    "torch": expression(r"\btorch\b|\bnn\.|\bautocast\b|\bInductor\b|\bDataLoader\b|\bnon_blocking\b|\bpin_memory\b"),
    "jax": expression(r"\bjax\b|\bjnp\b|\blax\b|\bXLA_"),
    "cuda": expression(r"<<<|\bcuda[A-Z]\w+\(|\bcublas[A-Z]|\bnvcc\b"),
}
TRAINING, LOADER = "training", "loader"
FRAMEWORKS = ("torch", "jax", "cuda")


def needs(text: str) -> frozenset[str]:
    """Features that a program needs for a text to apply: `training`, `loader`, or a name of `FRAMEWORKS`."""
    return frozenset(name for name, words in _WORDS.items() if words.search(text))
