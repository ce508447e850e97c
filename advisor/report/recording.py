"""A recording: file, devices and window, their time, and whether it can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from advisor.knowledge.how_to_record import Missing


class Recorded(msgspec.Struct, frozen=True):
    """Options of the profiler besides events; `steps`: whole steps in the window, 0 if none repeats."""

    shapes: bool
    stacks: bool
    steps: int
    memory: bool = False
    syncs: bool = False


class SourceInfo(msgspec.Struct, frozen=True):
    """The file that was read. bytes: of its uncompressed text; events: of every kind."""

    path: str
    format: str
    bytes: int
    events: int
    recorded: Recorded


class DeviceInfo(msgspec.Struct, frozen=True):
    """A device that did something. sm_count: its SMs, 0 if they were not recorded."""

    id: int
    name: str
    sm_count: int
    rates: dict[str, float] = {}
    """Peak rates that the analysis used, if they are not those of the table of known devices: TFLOP/s by precision, GB/s of memory."""
    rates_from: str = ""
    """Where these come from: the user's settings, or an estimate by generation."""


def matrix_units(devices: Sequence[DeviceInfo]) -> str:
    """What the makers of these devices call the units that multiply matrices."""
    amd = {"AMD" in device.name or "Instinct" in device.name for device in devices}
    return "Matrix Cores" if amd == {True} else "Tensor Cores"


class Prediction(msgspec.Struct, frozen=True):
    """A figure with the interval that it lies in."""

    low: float
    expected: float
    high: float


class Window(msgspec.Struct, frozen=True):
    """The analysed part of the trace. `basis` says what a step is; `step_us` is its steady period."""

    start_us: float
    end_us: float
    steps: int
    step_us: float
    basis: Literal["profiler-step", "nvtx", "detected", "whole"]
    detail: str = ""
    true_step_us: Prediction | None = None
    """The step as it runs without a profiler; None if that was not worked out."""
    recording_us: float = 0.0
    """What recording added to a step."""
    true_step_basis: Literal["measured", "estimated", "recorded"] = "recorded"
    """Whether `true_step_us` was timed without a profiler, follows from the trace, or is the recorded step for want of better."""
    unused_step_us: float = 0.0
    """A step time that was measured and is not used, as the trace's step cannot take so little or so much; 0 if there is none."""


class UnseenWork(msgspec.Struct, frozen=True):
    """Work of a kind that was requested, or is in the file, and that no figure of the report includes. us: its duration, None if unknown."""

    kind: Literal["launch", "graph-launch", "failed-call", "left-out"]
    what: str
    count: int
    us: float | None = None


class Idle(msgspec.Struct, frozen=True):
    """Idle device time by cause; the causes sum to `DeviceTime.idle_us`."""

    sync: float = 0.0
    data_loading: float = 0.0
    launch: float = 0.0
    allocator: float = 0.0
    host: float = 0.0
    dependency: float = 0.0
    profiler: float = 0.0
    unknown: float = 0.0


class DeviceTime(msgspec.Struct, frozen=True):
    """Parts of a device's window; the five classes sum to `window_us`."""

    device: int
    window_us: float
    compute_us: float
    exposed_comm_us: float
    exposed_copy_us: float
    exposed_memset_us: float
    idle_us: float
    idle: Idle


TOUCHES = ("host", "kernels", "counters", "memory", "ranks")
"""Aspects that checks may find wrong and rules rely on: host activity, durations of device ops, counters of a kernel, memory contents, and matching of ranks.
"""


READ_INSTEAD = ("fuller-file", "latest-recording", "one-process")
"""Checks that something is told by though nothing is wrong: which file was read in place of another."""

LOOK_AT_EACH = "advisor analyze --each looks at each"
"""What to do where the latest of several was read."""


Unit = Literal["", "share", "us", "bytes", "count"]
"""Of a measured value and its threshold."""

HealthReason = Literal[
    "", "absent", "within-threshold", "beyond-threshold", "nothing-to-check", "not-recorded", "recording-cut", "other-recording", "disagreement"
]
"""Why a check has its status. The problem does not occur, is within its threshold, or is beyond it. The recording holds nothing of the kind, lacks
something, or ends early. The check needs another recording or rank. Two sources of the same figure disagree."""


class Health(msgspec.Struct, frozen=True):
    """One question asked of the trace before any advice."""

    check: str
    status: Literal["ok", "degraded", "failed"]
    detail: str
    touches: tuple[str, ...] = ("host", "kernels")
    """Aspects that cannot be trusted if it fails, such as host activity or durations of device ops."""
    record_with: str = ""
    """How to record again so that it holds."""
    missing: Missing = ""
    """What `record_with` records, if other programs take another tool for it."""
    reason: HealthReason = ""
    measured: float | None = None
    threshold: float | None = None
    unit: Unit = ""
    """The measured value, and the value at which the check stops to hold."""


class FrameworkInfo(msgspec.Struct, frozen=True):
    """The framework that words the fixes: version "" if unknown, sure 0 to 1."""

    name: str
    version: str = ""
    sure: float = 1.0
