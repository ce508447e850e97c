"""Arrays that a runtime stages on the host: what lies in the program's own memory it first copies into pinned memory, then to the device."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.intervals import EMPTY, Spans, clip, intersect, joined, length
from advisor.recordings.timeline import CopyKind, Timeline
from advisor.report.numbers import duration
from advisor.views.replay.edits import Edit
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.frames import matches, spans_of
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps

# Ranges of XLA's runtime (PjRt): copying into its staging buffers, on the caller's thread or one of its own, and running a program, which
# waits for its arguments.
_STAGES = re.compile(r"^H2D Dispatch$|^Transpose::Execute|BufferFromHost(Buffer|Literal)|::Linearize|TransferLiteralToBuffer")
_RUNS = re.compile(r"LoadedExecutable::Execute\b")

FILL_BYTES_PER_US = 20e3
"""One thread writes memory no faster: a host that has less time than this beside its calls did not make the array anew. 20 GB/s."""


@dataclass(frozen=True)
class StagedCopies:
    """spans: in which the program waits while its arrays are staged, disjoint and sorted. us: of a step. same: whether these can only be the
    arrays of the step before, since the host had no time to make others."""

    spans: Spans
    us: float
    same: bool
    step_us: float
    host_time: HostTime

    @property
    def text(self) -> str:
        """What the program waits for, in words; "" where it does not."""
        return f"staged on the host first, for {duration(self.us)}" if self.us else ""

    @property
    def ahead(self) -> Edit:
        """Staged while the step before runs, on a thread of its own: hidden as far as the rest of the step is long."""
        rest = max(self.step_us - self.us, 0.0)
        return self.host_time.without(self.spans, min(1.0, rest / self.us) if self.us else 0.0)

    @property
    def gone(self) -> Edit:
        """Nothing is staged."""
        return self.host_time.without(self.spans)

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
        copied = timeline.gpu_ops.loc[(timeline.gpu_ops["copy_kind"] == CopyKind.HTOD.value).to_numpy(), ["start_us", "bytes"]]
        inside = copied["start_us"].between(steps.start_us, steps.end_us).to_numpy()
        moved = float(copied["bytes"].to_numpy()[inside].clip(min=0).sum()) / steps.steps
        same = not len(host.data_loading[0]) and free_us < moved / FILL_BYTES_PER_US
        return cls(spans, host_time.spent_us(spans), same, steps.step_us, host_time)
