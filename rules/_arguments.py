"""What was recorded of an op's inputs, as lists that hold what they must, whatever the trace holds."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1 << 14)
def numbers(text: str) -> list[list[Any]]:
    """Shapes or strides, one list an input: [] for what is no tensor, a list of lists for a list of tensors."""
    return [item if _is_numbers(item) else [] for item in _list(text)]


@lru_cache(maxsize=1 << 14)
def names(text: str) -> list[str]:
    """Types, one an input; "" where none was recorded."""
    return [item if isinstance(item, str) else "" for item in _list(text)]


def _list(text: str) -> list[Any]:
    made = json.loads(text) if text else []
    return made if isinstance(made, list) else []


def _is_numbers(item: Any) -> bool:
    return isinstance(item, list) and all(
        (isinstance(n, int) and not isinstance(n, bool)) or (isinstance(n, list) and all(isinstance(m, int) for m in n)) for n in item
    )
