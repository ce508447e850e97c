"""Where two reports differ, read as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

DIGITS = 6
"""Significant ones of every number: versions of numpy, and processors, add up in other orders."""

EXACT_DIGITS = 12
"""To which sums in any order agree: rounded to these first, a half of the last digit kept falls to the same side everywhere."""


def steady(number: float, digits: int = DIGITS) -> float:
    """A number to so many significant digits, the same in whatever order it was added up."""
    return float(f"{float(f'{number:.{EXACT_DIGITS}g}'):.{digits}g}")


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """The same with every number steady."""
    if isinstance(value, float):
        return steady(value, digits)
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    return {key: rounded(item, digits) for key, item in value.items()} if isinstance(value, dict) else value


def differences(kept: Any, made: Any, where: str = "") -> Iterator[str]:
    """Each field that differs, with both values."""
    if isinstance(kept, dict) and isinstance(made, dict):
        for key in [*kept, *(key for key in made if key not in kept)]:
            yield from differences(kept.get(key), made.get(key), f"{where}.{key}" if where else key)
    elif isinstance(kept, list) and isinstance(made, list) and len(kept) == len(made):
        for at, (before, after) in enumerate(zip(kept, made, strict=True)):
            yield from differences(before, after, f"{where}[{at}]")
    elif kept != made:
        yield f"{where}: {json.dumps(kept)} → {json.dumps(made)}"
