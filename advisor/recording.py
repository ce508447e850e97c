"""What one run left behind, whatever recorded it: one of four kinds, and the parts that views are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from advisor.report.model import Kind

Progress = Callable[[int, int | None], None]
"""Called with the bytes that were read so far, and how many there are, None where that is not known."""


@dataclass(frozen=True)
class Recording:
    """kind: what it is, and so which rules can speak of it. parts: one of each type, as a `Timeline`, each saying
    what it is `part_of`; a view that names such a type in the annotations of its `build` is made of it, and a rule runs where
    all that its views come from is here."""

    kind: Kind
    path: str
    parts: tuple[object, ...]
