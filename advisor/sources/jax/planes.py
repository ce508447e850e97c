"""What a profile of JAX holds, in whichever of its two files: planes of lines of events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

Stat = int | float | str
Stats = dict[str, Stat]


class Event(NamedTuple):
    """start_ns: from the profile's start, or absolute; one profile has one of them. stats: by name."""

    name: str
    start_ns: float
    dur_ns: float
    stats: Stats


@dataclass(frozen=True)
class Line:
    """A thread of the host, or a stream of a device. events: read once."""

    id: int
    name: str
    events: Iterable[Event]


@dataclass(frozen=True)
class Plane:
    """A device, the host's threads (`/host:CPU`), or what describes them (`/host:metadata`)."""

    name: str
    lines: Iterable[Line] = ()
    stats: Stats = field(default_factory=dict)
