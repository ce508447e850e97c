"""What the replayed steps launch on the GPU, position by position of the schedule."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from advisor.errors import Unavailable
from advisor.intervals import Floats, Ints, Mask, Spans, in_spans
from advisor.knowledge.how_to_record import RECORD_BOTH, RECORD_ON_A_GPU
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.op_tokens import AUTOGRAD
from advisor.knowledge.op_tokens.families import Family
from advisor.recordings.timeline import Device, GpuKind, MemoryKind, Timeline
from advisor.views.groups import Groups
from advisor.views.replay.replay import Replay
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.steps import Steps

HELD_UP = cost("held-up-kernel")


class GpuWork(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The n GPU ops of the recorded schedule, in order of their launches. Unavailable if the trace has none.

    rows: (n,) of `gpu_ops`. op: (n,) of `cpu_ops`, the launching op, -1 if not recorded. launched_us: (n,) start of its launch, NaN if unknown. step: (n,)
    the launching step. kernel: (n,) neither copy nor memset nor a whole graph. step_us: the step without a profiler in the trace's own times
    (`TrueStep.in_trace_us`), of which shares and texts speak.
    """

    schedule: Schedule
    rows: Ints
    op: Ints
    launched_us: Floats
    step: Ints
    kernel: Mask
    timeline: Timeline
    ops: Ops
    kernels: Kernels
    step_us: float

    @property
    def dur_us(self) -> Floats:
        """(n,) how long each took."""
        return self.schedule.dur_us

    @property
    def busy_us(self) -> float:
        """Time of all of them, overlaps counted twice; never 0."""
        return max(float(self.dur_us.sum()), 1e-9)

    def us_a_step(self, at: Ints) -> float:
        """Time that those at some positions take in a step."""
        return float(self.dur_us[at].sum()) / self.schedule.steps

    def a_step(self, at: Sequence[object] | Ints) -> float:
        """How many of them a step launches."""
        return len(at) / self.schedule.steps

    def in_families(self, *families: Family) -> Mask:
        """(n,) whether each is a kernel of one of these families."""
        return self.kernels.in_families(*families)[self.rows]

    def named(self, pattern: re.Pattern[str]) -> Mask:
        """(n,) whether the kernel's name matches."""
        names, codes = self._names
        return np.array([bool(pattern.search(name)) for name in names], bool)[codes]

    def launched_by(self, wanted: Callable[[str], object]) -> Mask:
        """(n,) whether the op that launched it is one of those wanted by name; not if none was recorded."""
        matching = np.array([*(bool(wanted(name)) for name in self.ops.categories), False], bool)
        return matching[self.ops.codes(self.op)]

    def launched_inside(self, spans: Spans) -> Mask:
        """(n,) whether each was launched inside disjoint, sorted spans of host time."""
        return in_spans(self.launched_us, spans)

    @cached_property
    def parts(self) -> list[Ints]:
        """Positions of the kernels of each stream in each step, in their order."""
        at = np.flatnonzero(self.kernel)
        at = at[np.argsort(self.schedule.stream[at], kind="stable")]
        ends = np.flatnonzero((np.diff(self.schedule.stream[at]) != 0) | (np.diff(self.step[at]) != 0)) + 1
        return np.split(at, ends) if len(at) else []

    @property
    def first_of_steps(self) -> Ints:
        """Position of the first op of each step."""
        return np.unique(self.step, return_index=True)[1].astype(np.int64)

    @cached_property
    def backward(self) -> Mask:
        """(n,) whether autograd launched it; not where no op was recorded."""
        nodes = np.array([*(name.startswith(AUTOGRAD) for name in self.ops.categories), False], bool)
        return nodes[self.ops.codes(np.r_[self.ops.outermost, -1][self.op])]

    @cached_property
    def pageable(self) -> Mask:
        """(n,) whether each copies from or to pageable memory; not where the kind was not recorded."""
        return (self.column("src_kind") == MemoryKind.PAGEABLE.value) | (self.column("dst_kind") == MemoryKind.PAGEABLE.value)

    @cached_property
    def held_up(self) -> Mask:
        """(n,) kernels that took much longer than the median for the same dims, for an unknown reason other than their work. None without recorded dims,
        since a
        larger tensor takes longer.
        """
        dims = self.timeline.cpu_ops["dims"]
        known = np.r_[dims.matching(lambda text: any(map(str.isdigit, text))), False][self.op]
        of_op = np.r_[dims.codes, -1][self.op]
        groups = Groups.by_keys(self._names[1], of_op)
        usual = groups.medians(self.dur_us)[groups.of]
        return self.kernel & known & (groups.rows[groups.of] >= FEWEST_REPEATS) & (self.dur_us > HELD_UP * usual)

    def kernel_name(self, position: int) -> str:
        """The name on the GPU."""
        categories, codes = self._names
        return categories[int(codes[position])]

    def name(self, position: int) -> str:
        """The op that launched it, else the kernel."""
        return self.ops.name(int(self.op[position])) or self.kernel_name(position)[:80]

    def device_at(self, position: int) -> Device:
        """The device that an op runs on."""
        return self.timeline.device(int(self._devices[position]))

    @cached_property
    def _devices(self) -> np.ndarray:
        return self.column("device")

    @cached_property
    def _names(self) -> tuple[list[str], np.ndarray]:
        # As a list and an array: taking one value out of a table costs tens of microseconds.
        names = self.timeline.gpu_ops["name"]
        return list(map(str, names.categories)), names.codes[self.rows]

    @cached_property
    def kind(self) -> Ints:
        """(n,) the op that launched each, or if none was recorded the kernel's name, as numbers."""
        codes = self.timeline.gpu_ops["name"].codes[self.rows].astype(np.int64)
        return np.where(self.op >= 0, self.ops.codes(self.op), -1 - codes)

    def column(self, name: str) -> Any:
        """(n,) a column of `gpu_ops`."""
        return self.timeline.gpu_ops[name][self.rows]

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, launches: Launches, ops: Ops, kernels: Kernels, replay: Replay) -> GpuWork:
        if not len(timeline.gpu_ops):
            # Where steps were timed advisor is at hand, whose own recordings leave out no device.
            raise Unavailable("the trace holds no GPU work", *(RECORD_ON_A_GPU if timeline.source.unprofiled_step_us else RECORD_BOTH))
        schedule = replay.recorded
        rows = schedule.op_row
        return cls(
            schedule=schedule,
            rows=rows,
            op=ops.of_gpu[rows],
            launched_us=launches.start_us[rows],
            step=steps.of_host_time(launches.start_us[rows]),
            kernel=(timeline.gpu_ops["kind"] == GpuKind.KERNEL.value)[rows],
            timeline=timeline,
            ops=ops,
            kernels=kernels,
            step_us=max(replay.true_step.in_trace_us, 1e-9),
        )
