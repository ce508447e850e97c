"""Recorded inputs of an op, as lists of the right types, whatever the trace contains."""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import Any

import msgspec

from advisor.errors import Unavailable
from advisor.knowledge.how_to_record import RECORD_BOTH, RECORD_SHAPES
from advisor.recordings.timeline import Timeline


class Arguments(msgspec.Struct, frozen=True):
    """The inputs of each row of `cpu_ops`. Unavailable where shapes were not recorded."""

    timeline: Timeline

    def text(self, op: int) -> str:
        """The shapes as recorded."""
        return self.timeline.cpu_ops["dims"][op]

    def shapes(self, op: int) -> list[list[Any]]:
        """A list per input: [] for anything but a tensor, a list of lists for a list of tensors."""
        return numbers(self.text(op))

    def strides(self, op: int) -> list[list[Any]]:
        """As `shapes`."""
        return numbers(self.timeline.cpu_ops["strides"][op])

    def types(self, op: int) -> list[str]:
        """One an input; "" if none was recorded."""
        return names(self.timeline.cpu_ops["types"][op])

    @classmethod
    def build(cls, timeline: Timeline) -> Arguments:
        if not timeline.source.shapes:
            raise Unavailable("input shapes were not recorded", *RECORD_SHAPES)
        return cls(timeline)


def need_shapes(timeline: Timeline) -> None:
    """Raises Unavailable if framework ops or shapes of their inputs were not recorded."""
    if not len(timeline.cpu_ops):
        raise Unavailable("no framework ops were recorded", *RECORD_BOTH)
    Arguments.build(timeline)


@lru_cache(maxsize=1 << 14)
def numbers(text: str) -> list[list[Any]]:
    """Shapes or strides, a list per input: [] for anything but a tensor, a list of lists for a list of tensors."""
    return [item if _is_numbers(item) else [] for item in _list(text)]


@lru_cache(maxsize=1 << 14)
def names(text: str) -> list[str]:
    """Types, one an input; "" if none was recorded."""
    return [item if isinstance(item, str) else "" for item in _list(text)]


def largest(text: str) -> str:
    """The largest tensor among shapes, as people write it: `24 × 4096`; "" if there is none."""
    found = [shape for shape in numbers(text) if shape and _are_ints(shape)]
    return " × ".join(map(str, max(found, key=prod, default=[])))


def _list(text: str) -> list[Any]:
    made = json.loads(text) if text else []
    return made if isinstance(made, list) else []


def _is_numbers(item: Any) -> bool:
    return isinstance(item, list) and (_are_ints(item) or all(isinstance(n, list) and _are_ints(n) for n in item))


def _are_ints(item: list[Any]) -> bool:
    return all(isinstance(n, int) and not isinstance(n, bool) for n in item)
