"""The content of a JAX profile, from either of its two files: planes of lines of events, a few ten thousand events at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from advisor.intervals import Ints
from advisor.sources.jax.texts import Texts

Stat = int | float | str
Stats = dict[str, Stat]

NUMBERS = ("correlation_id", "cuda_graph_id", "cuda_graph_node_id", "program_id", "step_num")
TEXTS = ("kernel_details", "memcpy_details", "memset_details", "hlo_op", "hlo_module", "name")
"""Event fields that are read besides name and time; all others are skipped."""

OF_OPS = ("hlo_category", "flops", "model_flops", "bytes_accessed", "tf_op", "source")
"""Fields that are read of a TPU's op; they are given once for all its events."""


class Events(NamedTuple):
    """Columns of some events of a line. name: codes of `Line.texts`. start_ps, dur_ps: the start from `Line.start_ns`.

    stats: by the names in NUMBERS (-1 if absent) and TEXTS (codes, -1 if absent). A stat without any event is left out."""

    name: Ints
    start_ps: Ints
    dur_ps: Ints
    stats: dict[str, Ints]

    def stat(self, name: str) -> Ints:
        """A stat's column."""
        found = self.stats.get(name)
        return found if found is not None else self.name * 0 - 1


class Line(msgspec.Struct, frozen=True):
    """A thread of the host, or a stream of a device. start_ns: zero of its events' starts. events: read once, in turn."""

    id: int
    name: str
    start_ns: int
    events: Iterable[Events]
    texts: Texts


class Plane(msgspec.Struct, frozen=True):
    """A device, the host's threads (`/host:CPU`), or descriptions (`/host:metadata`). lines: read once, in turn.

    programs: XLA's compiled programs, by name and number, as serialised `HloProto`. titles: properties of a TPU's ops, by their names."""

    name: str
    lines: Iterable[Line] = ()
    stats: Stats = msgspec.field(default_factory=dict)
    programs: dict[str, memoryview] = msgspec.field(default_factory=dict)
    titles: dict[str, Stats] = msgspec.field(default_factory=dict)


def agreeing(said: Stats, more: Stats) -> Stats:
    """Common properties of two ops with the same name: programs give theirs the same names."""
    return {key: value for key, value in said.items() if more.get(key) == value} if said else more
