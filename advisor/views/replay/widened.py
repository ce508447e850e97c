"""What the host makes wider before it sends it: pictures of bytes that become floats, then are copied as floats."""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np

from advisor.intervals import Floats, Ints, Spans, within
from advisor.knowledge.op_costs.arguments import DTYPE_BYTES, INTEGRAL
from advisor.recordings.timeline import CopyKind
from advisor.views.replay.edits import Edit, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.ops import thread_ids
from advisor.views.trace.shapes import Shapes
from advisor.views.trace.steps import Steps

_CONVERTS = re.compile(r"aten::copy_$")

LEAST_BYTES = 65536
"""Of a copy: less takes its latency, however wide it is."""


@dataclass(frozen=True, eq=False)
class Widened:
    """copies: positions of copies to the device of as many bytes as an op on the CPU had made before in that step, of integers of a narrower type:
    `narrow`, as Kineto names it, by copy. Floats that become wider ones are not among them: gradients and weights are, on their way through an optimizer
    on the CPU. share: (n_copies,) what the narrow ones are of the bytes. converted_us: when each was made."""

    copies: Ints
    narrow: tuple[str, ...]
    share: Floats
    converted_us: Floats
    work: GpuWork

    @property
    def sent_narrow(self) -> Edit:
        """Sent as they were, and converted on the device."""
        return WithDurations(self.copies, self.work.dur_us[self.copies] * self.share)

    @property
    def largest(self) -> int:
        """Which of them moves most bytes, -1 where there is none."""
        return int(np.argmax(self.work.column("bytes")[self.copies])) if len(self.copies) else -1

    def inside(self, spans: Spans) -> Widened:
        """Those that were made within disjoint, sorted spans of host time."""
        chosen = within(self.converted_us, spans)
        narrow = tuple(name for name, kept in zip(self.narrow, chosen.tolist(), strict=True) if kept)
        return Widened(self.copies[chosen], narrow, self.share[chosen], self.converted_us[chosen], self.work)

    @classmethod
    def build(cls, work: GpuWork, shapes: Shapes, steps: Steps) -> Widened:
        cpu, size = work.timeline.cpu_ops, work.column("bytes")
        copies = np.flatnonzero((work.column("copy_kind") == CopyKind.HTOD.value) & (size >= LEAST_BYTES) & (work.op >= 0))
        start, threads = cpu["start_us"].to_numpy(), thread_ids(cpu)
        found: list[tuple[int, str, float, float]] = []
        step = steps.of_host_time(start)
        made = _conversions(work, shapes, threads, step) if len(copies) else {}
        for copy in copies[np.argsort(work.launched_us[copies], kind="stable")].tolist():
            op = work.op[copy]
            candidates = made.get((int(threads[op]), int(step[op]), int(size[copy])), deque())
            if candidates and start[candidates[0][0]] < start[op]:
                row, narrow, wide = candidates.popleft()
                found.append((copy, narrow, DTYPE_BYTES[narrow] / DTYPE_BYTES[wide], float(start[row])))
        at, names, share, when = zip(*found, strict=True) if found else ((), (), (), ())
        return cls(np.array(at, np.int64), names, np.array(share, float), np.array(when, float), work)


def _conversions(work: GpuWork, shapes: Shapes, threads: Ints, step: Ints) -> dict[tuple[int, int, int], deque[tuple[int, str, str]]]:
    """Ops that launch nothing, nor any inside them, and copy integers into a tensor of as many elements of a wider type, by thread, step and the bytes
    that they make: rows of `cpu_ops`, in order, with the narrower type and the wider."""
    made = defaultdict[tuple[int, int, int], deque[tuple[int, str, str]]](deque)
    on_host = work.ops.named(_CONVERTS)
    launching = np.unique(work.ops.of_call[work.ops.of_call >= 0])
    while len(launching):
        on_host[launching] = False
        launching = np.unique(work.ops.parent[launching])
        launching = launching[launching >= 0]
    for row in np.flatnonzero(on_host).tolist():
        match shapes.inputs(row):
            case [(shape, wide), (source, narrow), *_] if shape == source and narrow in INTEGRAL and DTYPE_BYTES[narrow] < DTYPE_BYTES.get(wide, 0):
                made[int(threads[row]), int(step[row]), math.prod(shape) * DTYPE_BYTES[wide]].append((row, narrow, wide))
    return made
