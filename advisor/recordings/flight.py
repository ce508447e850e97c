"""What a flight recorder of collectives holds: of each rank the last that it called, and how far each came."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import msgspec

State = Literal["scheduled", "started", "completed"]


class Call(NamedTuple):
    """A collective of a rank. group: its process group. sequence: its number in the group. name: by the framework. bytes, elements: of its inputs, 0 if sizes
    or types were not recorded. dur_us: on the device, NaN if not timed. line: of the program, `train.py:12`, "" without a stack. to_one: whether it is a
    message between two ranks.
    """

    group: str
    sequence: int
    name: str
    elements: int = 0
    bytes: int = 0
    state: State = "completed"
    dur_us: float = math.nan
    line: str = ""
    to_one: bool = False


class FlightRank(msgspec.Struct, frozen=True):
    """A single rank's dump. groups: members of each process group by its name, as far as they are said; descriptions: of groups."""

    rank: int
    label: str
    calls: tuple[Call, ...]
    groups: Mapping[str, tuple[int, ...]]
    descriptions: Mapping[str, str]


class FlightRecords(msgspec.Struct, frozen=True):
    """The dumps of a job's ranks. notes: about how they were read."""

    part_of: ClassVar[Literal["collectives"]] = "collectives"

    path: str
    bytes: int
    ranks: tuple[FlightRank, ...]
    notes: tuple[str, ...] = ()
