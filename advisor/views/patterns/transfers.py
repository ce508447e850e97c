"""Copies between host and device: which belong together, which a runtime stages first, which the host makes wider than they need be."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Floats, Ints, Mask, Spans, clip, intersect, joined, length
from advisor.knowledge.measured_costs import cost
from advisor.recordings.timeline import CopyKind, Timeline
from advisor.report.numbers import duration
from advisor.views.groups import Groups
from advisor.views.replay.edits import Edit
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.program import Program
from advisor.views.trace.repeats import FEWEST_REPEATS, ONE_BY_ONE
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches, spans_of


class HostCopies(msgspec.Struct, frozen=True):
    """Copies between host and device (positions), the bytes of every op, and which of all ops move pageable memory."""

    at: Ints
    bytes: Floats
    pageable: Mask

    def repeated(self, work: GpuWork) -> Mask:
        """(n,) whether as many copies of the same direction and size run in the window."""
        kind = work.column("copy_kind")[self.at]
        keys = [f"{k} {n:.0f}" for k, n in zip(kind.tolist(), self.bytes[self.at].tolist(), strict=True)]
        _, group, count = np.unique(keys, return_inverse=True, return_counts=True)
        return count[group] >= FEWEST_REPEATS

    def to_device(self, work: GpuWork) -> Ints:
        """The copies (positions) that go to the device."""
        return self.at[work.column("copy_kind")[self.at] == CopyKind.HTOD.value]

    def to_host(self, work: GpuWork) -> Ints:
        """The copies (positions) that come to the host."""
        return self.at[work.column("copy_kind")[self.at] == CopyKind.DTOH.value]

    def returning(self, work: GpuWork) -> float:
        """Of the bytes that are copied, the share of those that come to the host and, as many at once, go back to the device later in their step, to be worked on
        there: what goes back last may be the next batch."""
        last = {int(step): int(np.flatnonzero(work.kernel & (work.step == step)).max(initial=-1)) for step in np.unique(work.step)}
        came: Counter[tuple[int, float]] = Counter()
        back = 0.0
        for at, down in zip(self.at.tolist(), np.isin(self.at, self.to_host(work)).tolist(), strict=True):
            key = int(work.step[at]), float(self.bytes[at])
            if down:
                came[key] += 1
            elif came[key] and at < last[key[0]]:
                came[key] -= 1
                back += 2 * key[1]
        return back / max(float(self.bytes[self.at].clip(min=0).sum()), 1e-9)

    def read_at_once(self, work: GpuWork, calls: HostCalls) -> Ints:
        """The copies to the host (positions) that the program reads there and then: once the host has them it works by itself for longer than
        they took, before it calls anything."""
        down, schedule = self.to_host(work), work.schedule
        call = schedule.op_call[down]
        waited = call + np.isin(call + 1, calls.held_by_copies(call))
        own = np.roll(schedule.host_us - schedule.dispatch_us, -1)[waited]  # the repeat after this one begins with the first call
        return down[np.isin(waited, calls.held_by_copies(call)) & (own > work.dur_us[down])]

    def host_us(self, calls: HostCalls, spans: Spans) -> float:
        """Time a step, inside these spans, in which the host waits for them or moves pageable memory itself."""
        of = calls.schedule.op_call
        return calls.us_a_step_inside(np.union1d(calls.held_by_copies(of[self.at]), of[self.at[self.pageable[self.at]]]), spans)

    def spare(self, work: GpuWork, small_bytes: int) -> Ints:
        """Small copies (positions) that a single copy per step and direction could carry, without that copy. Data sent after a host read may depend on it, and
        joins later copies."""
        small = self.at[self.bytes[self.at] < small_bytes]
        kind = work.column("copy_kind")
        up = kind[small] == CopyKind.HTOD.value
        read = np.where(up, np.cumsum(kind == CopyKind.DTOH.value)[small], -1)
        groups = Groups.by_keys(work.step[small], read)
        together = [small[groups.of == group] for group in range(len(groups.first))]
        return np.concatenate([small[:0], *(part[1:] for part in together if len(part) >= ONE_BY_ONE)])


def us_a_step_inside(work: GpuWork, steps: Steps, rows: Ints, spans: Spans) -> float:
    """Time a step in which these GPU ops run and these spans are."""
    running = clip(spans_of(work.timeline.gpu_ops, rows), steps.start_us, steps.end_us)
    return length(intersect(running, spans)) / steps.steps


# Ranges of XLA's runtime (PjRt): copying into its staging buffers, on the caller's thread or one of its own, and running a program, which
# waits for its arguments.
_STAGES = re.compile(r"^H2D Dispatch$|^Transpose::Execute|BufferFromHost(Buffer|Literal)|::Linearize|TransferLiteralToBuffer")
_RUNS = re.compile(r"LoadedExecutable::Execute\b")

FILL_BYTES_PER_US = cost("host-fill")


class StagedCopies(msgspec.Struct, frozen=True):
    """spans: in which the program waits while its arrays are staged, disjoint and sorted. us: of a step. same: whether these can only be the
    arrays of the step before, since the host had no time to make others."""

    spans: Spans
    us: float
    same: bool
    step_us: float
    host_time: HostTime

    @property
    def text(self) -> str:
        """What the program waits for, in words; "" if it does not."""
        return f"staged on the host first, for {duration(self.us)}" if self.us else ""

    @property
    def ahead(self) -> Edit:
        """Staged while the step before runs, on a thread of its own: hidden as far as the rest of the step is long."""
        rest = max(self.step_us - self.us, 0.0)
        return self.host_time.cut_time(self.spans, min(1.0, rest / self.us) if self.us else 0.0)

    @property
    def gone(self) -> Edit:
        """Nothing is staged."""
        return self.host_time.cut_time(self.spans)

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, host: HostActivity, host_time: HostTime, program: Program) -> StagedCopies:
        notes, ops = timeline.annotations, timeline.cpu_ops
        runs = matches(notes, _RUNS) & host.on_threads(notes)
        stages = matches(notes, _STAGES)
        if program.framework != "jax" or not stages.any():
            return cls(EMPTY, 0.0, False, steps.step_us, host_time)
        running = set(zip(notes["pid"][runs].tolist(), notes["tid"][runs].tolist(), strict=True))
        here = stages & np.array([thread in running for thread in zip(notes["pid"].tolist(), notes["tid"].tolist(), strict=True)], bool)
        spans = joined(intersect(spans_of(notes, stages), spans_of(notes, runs)), spans_of(notes, here))
        calls = joined(spans_of(ops, host.on_threads(ops)), host.sync, spans)
        window = clip(calls, steps.host_start_us, steps.host_end_us)
        free_us = (steps.host_end_us - steps.host_start_us - length(window)) / steps.steps
        gpu = timeline.gpu_ops
        inside = (gpu["copy_kind"] == CopyKind.HTOD.value) & (gpu["start_us"] >= steps.start_us) & (gpu["start_us"] <= steps.end_us)
        moved = float(gpu["bytes"][inside].clip(min=0).sum()) / steps.steps
        same = not len(host.data_loading[0]) and free_us < moved / FILL_BYTES_PER_US
        return cls(spans, host_time.spent_us(spans), same, steps.step_us, host_time)
