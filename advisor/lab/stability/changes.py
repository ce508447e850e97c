"""The changes, each with the answers that a report may give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from advisor.lab.stability import exporters, extra, spelling, times
from advisor.lab.stability.events import Recorded


@dataclass(frozen=True)
class Change:
    """apply: makes the changed trace, None if there is nothing to change.

    takes: the part of the recording that is gone, "" if none is. A finding that abstains without it does not flip.
    slower: how much slower the machines of the changed trace are. Known costs of machines are scaled by it.
    """

    name: str
    apply: Callable[[Recorded, Random], Recorded | None]
    takes: str = ""
    slower: float = 1.0

    @property
    def told(self) -> str:
        """Its effect, in a line."""
        return " ".join((self.apply.__doc__ or "").split()).rstrip(".")


CHANGES = (
    Change("overload-names", spelling.overloads),
    Change("call-names", spelling.call_suffixes),
    Change("kernel-names", spelling.bare_kernels),
    Change("step-names", spelling.own_ranges),
    Change("cupti-exporter", exporters.by_cupti),
    Change("python-exporter", exporters.by_python),
    Change("graph-lanes", exporters.graph_lanes),
    Change("event-order", spelling.shuffled),
    Change("renumbered", spelling.renumbered),
    Change("no-external-id", spelling.no_external_id),
    Change("one-step-fewer", times.one_step_fewer, takes="steps"),
    Change("durations", times.uneven),
    Change("device-later", times.device_later),
    Change("device-earlier", times.device_earlier),
    Change("times-doubled", times.doubled, slower=2.0),
    Change("side-stream", extra.side_stream),
    Change("python-thread", extra.watching_thread),
    Change("one-tf32-convolution", extra.one_convolution_in_tf32),
    Change("no-shapes", spelling.no_shapes, takes="shapes"),
    Change("no-stacks", spelling.no_stacks, takes="stacks"),
)
