"""What a profile of JAX holds, in whichever of its two files: planes of lines of events, a few ten thousand events at a time."""

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
"""What is read of an event next to its name and time; all else is passed over."""

OF_OPS = ("hlo_category", "flops", "model_flops", "bytes_accessed", "tf_op", "source")
"""What is read of a TPU's op, which says it once for all its events."""


class Events(NamedTuple):
    """Columns of some events of one line. name: codes of `Line.texts`. start_ps, dur_ps: the start from `Line.start_ns`.
    stats: by the names in NUMBERS (-1 where an event has none) and TEXTS (codes, -1 if it has none); a stat that no event has is left out."""

    name: Ints
    start_ps: Ints
    dur_ps: Ints
    stats: dict[str, Ints]

    def stat(self, name: str) -> Ints:
        """A stat's column."""
        found = self.stats.get(name)
        return found if found is not None else self.name * 0 - 1


class Line(msgspec.Struct, frozen=True):
    """A thread of the host, or a stream of a device. start_ns: what its events' starts count from. events: read once, in turn."""

    id: int
    name: str
    start_ns: int
    events: Iterable[Events]
    texts: Texts


class Plane(msgspec.Struct, frozen=True):
    """A device, the host's threads (`/host:CPU`), or what describes them (`/host:metadata`). lines: read once, in turn.
    programs: what XLA compiled, by name and number, as serialised `HloProto`. titles: what a TPU's ops say of themselves, by their names."""

    name: str
    lines: Iterable[Line] = ()
    stats: Stats = msgspec.field(default_factory=dict)
    programs: dict[str, memoryview] = msgspec.field(default_factory=dict)
    titles: dict[str, Stats] = msgspec.field(default_factory=dict)


def agreeing(said: Stats, more: Stats) -> Stats:
    """What two ops of one name both say: programs name theirs alike."""
    return {key: value for key, value in said.items() if more.get(key) == value} if said else more
