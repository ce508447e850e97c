"""The table of interventions, as `advisor try` plans with it. Nothing of this is loaded inside a program."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from advisor.errors import unknown_name
from advisor.knowledge.data import read

Numerics = Literal["exact", "rounding", "tf32", "bf16", "other"]
Need = Literal["cuda", "ampere", "training", "loader", "ranks", "transformers", "accelerate"]


class Intervention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An intervention that can be applied to a program from outside. The head of catalogue.toml describes the fields."""

    what: str
    code: str
    unseen: str
    advice: str
    numerics: Numerics
    name: str = ""
    options: Mapping[str, Any] = {}
    needs: tuple[Need, ...] = ()
    group: str = ""
    environment: Mapping[str, str] = {}
    what_if: bool = False
    batch: float = 1.0
    part: Literal["", "loader", "optimizer", "model"] = ""
    """The part of a step that it can shorten; "" if that is none of these."""
    cost: float = 1.0
    """Cost of a run with it, in runs without: compiling takes long."""
    apart: bool = False
    """Whether numbers that differ are compared again in a run of their own, in which only the arithmetic is changed."""
    draws: bool = False
    """Whether it can make the program draw other random numbers, though it computes the same."""

    instead: tuple[str, ...] = ()
    """Other ways to the same, tried after it."""

    def excludes(self, other: Intervention) -> bool:
        """Whether the two cannot go together."""
        return self.name == other.name or bool(self.group and self.group == other.group)


@cache
def interventions() -> dict[str, Intervention]:
    """All by name, in the order in which they are applied."""
    found = msgspec.convert(read(Path(__file__).with_name("catalogue.toml")), dict[str, Intervention])
    return {name: msgspec.structs.replace(one, name=name) for name, one in found.items()}


def intervention(name: str) -> Intervention:
    """Raises UsageError if there is none of that name."""
    if name not in interventions():
        raise unknown_name("intervention", name, interventions())
    return interventions()[name]
