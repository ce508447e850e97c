"""Where a device's window went: compute, exposed communication, exposed copies, exposed memsets, idle."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Floats, Spans, clip, complement, joined, length, subtract, union
from advisor.recordings.timeline import Timeline
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.steps import Steps


class DevicePartition(msgspec.Struct, frozen=True):
    """Disjoint, sorted spans that together are the window. A lower class counts only while no higher one runs."""

    device: int
    compute: Spans
    communication: Spans
    copy: Spans
    memset: Spans
    idle: Spans

    @property
    def busy_us(self) -> float:
        """Time in which the device did anything."""
        return sum(length(s) for s in (self.compute, self.communication, self.copy, self.memset))


class Partition(msgspec.Struct, frozen=True):
    """One partition a device that did anything; `main` is the busiest."""

    devices: tuple[DevicePartition, ...]

    @property
    def main(self) -> DevicePartition | None:
        """The busiest device, whose window the rules speak of."""
        return max(self.devices, key=lambda d: d.busy_us, default=None)

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, kernels: Kernels) -> Partition:
        frame = timeline.gpu_ops
        start, end = frame.bounds()
        device = frame["device"]
        window = steps.start_us, steps.end_us
        classes = (kernels.compute, kernels.communication, kernels.copy, kernels.memset)
        made = []
        for number in np.unique(device):
            here = device == number
            covered = EMPTY
            exposed: list[Spans] = []
            for chosen in classes:
                rows = here & chosen
                spans = clip(union(start[rows], end[rows]), *window)
                exposed.append(subtract(spans, covered))
                covered = joined(covered, spans)
            compute, communication, copy, memset = exposed
            made.append(DevicePartition(int(number), compute, communication, copy, memset, complement(covered, *window)))
        return cls(tuple(made))


def total(spans: Spans) -> Floats:
    """Lengths of disjoint spans. Shape (n,)."""
    return spans[1] - spans[0]
