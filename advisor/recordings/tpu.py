"""A TPU profile: ops of each core with times in µs from the profile's start, and their descriptions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import msgspec
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


class Runs(msgspec.Struct, frozen=True):
    """Runs of what a core has a line for. what: a row of `TpuProfile.ops` for ops, of `TpuProfile.programs` for programs."""

    start_us: Floats = msgspec.field(default_factory=lambda: np.empty(0))
    end_us: Floats = msgspec.field(default_factory=lambda: np.empty(0))
    what: Ints = msgspec.field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.start_us)


class TpuCore(msgspec.Struct, frozen=True):
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


class TpuProfile(msgspec.Struct, frozen=True):
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
    metadata: Mapping[str, object] = msgspec.field(default_factory=dict)
