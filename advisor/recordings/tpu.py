"""A TPU profile: ops of each core with times in µs from the profile's start, and their descriptions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from advisor.intervals import Floats, Ints
from advisor.recordings.timeline import ReadIssue


class TpuOp(NamedTuple):
    """An HLO op with the work of a run: FLOPs and bytes of memory, NaN if missing.

    scope: its op in the program, `jit(step)/mlp/dot_general`. source: `file.py:12`.
    """

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
    """A core. peak_flops: per second by the profile, 0 if missing. ops: in sequence, loops around their contents. beside: asynchronous ops from start to end,
    whether or not the core waits. waits: for other cores.
    """

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
