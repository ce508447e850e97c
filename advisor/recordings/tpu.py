"""What the profile of TPUs holds: what each core ran and when, in µs from the profile's start, and what each op is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.recordings.timeline import ReadIssue


class TpuOp(NamedTuple):
    """An HLO op, with what one run of it does: FLOPs and bytes of the memory, NaN if the profile does not say.

    scope: the op of the program that it comes from, `jit(step)/mlp/dot_general`. source: `file.py:12`."""

    name: str
    category: str
    flops: float = math.nan
    bytes: float = math.nan
    scope: str = ""
    source: str = ""


@dataclass(frozen=True)
class Runs:
    """Runs of what a core has a line for. what: a row of `TpuProfile.ops` for ops, of `TpuProfile.programs` for programs."""

    start_us: Floats = field(default_factory=lambda: np.empty(0))
    end_us: Floats = field(default_factory=lambda: np.empty(0))
    what: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.start_us)


@dataclass(frozen=True)
class TpuCore:
    """One core. peak_flops: a second, as the profile has it, 0 if it does not. ops: in sequence, loops around what they
    hold. beside: asynchronous ops, from their start to their end, whether or not the core waits. waits: for other cores."""

    number: int
    name: str = ""
    peak_flops: float = 0.0
    steps: Runs = Runs()
    programs: Runs = Runs()
    ops: Runs = Runs()
    beside: Runs = Runs()
    waits: Runs = Runs()


@dataclass(frozen=True)
class TpuProfile:
    """The cores of one host that ran anything. unread: planes of a TPU's other units, which nothing is made of."""

    part_of: ClassVar[Literal["tpu"]] = "tpu"
    path: str
    bytes: int
    events: int
    cores: tuple[TpuCore, ...]
    ops: tuple[TpuOp, ...]
    programs: tuple[str, ...]
    unread: int = 0
    stacks: bool = False
    issues: tuple[ReadIssue, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)
