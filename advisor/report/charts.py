"""What charts draw beyond the JSON report: columns as arrays, made by `views.picture`, drawn by the formats.

It rides on a `Report` and stays out of its JSON: a saved report has numbers and no timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints

PIXELS = 400
"""About as wide as a chart is: of more points or parts nobody sees each."""

ROWS = 200
"""Rows of a table that anybody looks through; the rest is counted together."""


class Lane(msgspec.Struct, frozen=True):
    """A host thread, a GPU stream, or the idle time of a GPU."""

    label: str
    side: Literal["host", "gpu", "idle"]
    process: int
    """The host's process, or the device."""
    track: int
    """The thread, or the stream."""


class Cut(msgspec.Struct, frozen=True, eq=False):
    """Activity of hosts and devices from `start_us` to `end_us`: a row per slice, by lane, then start.

    lane, depth, kind, name, op: (n,) codes; `kind` of `kinds`, `name` and `op` (the framework op that launched a GPU slice, or -1) of `names`. launched_by:
    (n,) row of the call that launched a GPU slice, -1 if outside.
    """

    start_us: float
    end_us: float
    lanes: tuple[Lane, ...]
    lane: Ints
    depth: Ints
    slice_start_us: Floats
    slice_dur_us: Floats
    kind: Ints
    kinds: tuple[str, ...]
    name: Ints
    op: Ints
    names: tuple[str, ...]
    launched_by: Ints
    left_out: int
    """Slices that were too many: the shortest."""


class Mark(msgspec.Struct, frozen=True, eq=False):
    """A part of a section that shows the problem, on a lane, or on all if `lane` is -1."""

    lane: int
    start_us: float
    end_us: float


class Moment(msgspec.Struct, frozen=True, eq=False):
    """The surroundings of a finding's largest evidence."""

    cut: Cut
    marks: tuple[Mark, ...]
    label: str


class StepTimes(msgspec.Struct, frozen=True, eq=False):
    """(n,) each step's period and its parts on the busiest device, in µs; `middle` is the step drawn whole."""

    period_us: Floats
    compute_us: Floats
    communication_us: Floats
    copy_us: Floats
    memset_us: Floats
    idle_us: Floats
    outlier: np.ndarray
    middle: int


class Leaf(msgspec.Struct, frozen=True):
    """GPU time of one kernel, or the host's own time of an op, under its modules and ops, outermost first."""

    path: tuple[str, ...]
    family: str
    total_us: float
    calls: int
    line: str = ""
    """Of the program, `file.py:12`; it stands between modules and ops."""
    modules: int = 0
    """How many of the path are modules."""


class CopyRow(msgspec.Struct, frozen=True):
    """Copies or memsets of one direction and kind of memory in the window. `exposed_us` overlaps no other work."""

    what: str
    calls: int
    bytes: int
    total_us: float
    exposed_us: float


class MemoryCurve(msgspec.Struct, frozen=True, eq=False):
    """(n,) the allocator's totals of one device over the window, the most within each stretch."""

    device: int
    time_us: Floats
    allocated_bytes: Ints
    reserved_bytes: Ints
    peak_bytes: int
    summed: bool = False
    """Whether they sum requests to the driver since recording began, so earlier memory is missing."""


class QueueCurve(msgspec.Struct, frozen=True, eq=False):
    """Launched GPU ops of a device that have not started: (n,) `length` from each `time_us` to the next, over the whole trace. Over the window: maximum, median
    over time, share of time with none, and the median time from launch to start.
    """

    device: int
    time_us: Floats
    length: Ints
    most: int
    median: int
    empty_share: float
    ahead_us: float


class Launched(msgspec.Struct, frozen=True, eq=False):
    """(n,) launches of one kernel in the window: when each ran, from the window's start, and for how long."""

    start_us: Floats
    dur_us: Floats


class Picture(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Charts' data: a step drawn whole, the moment of each finding, and tables that the JSON has no room for."""

    cut_whole: Callable[[], Cut | None]
    """Makes `whole`, which only a page asks for."""
    step: Cut | None
    step_span_us: tuple[float, float]
    """Of the step on the GPU; `step` also shows where its host part ran."""
    steps: StepTimes
    moments: tuple[Moment | None, ...]
    """By the position of the finding; None if it has none."""
    leaves: tuple[Leaf, ...]
    host_leaves: tuple[Leaf, ...]
    copies: tuple[CopyRow, ...]
    memory: tuple[MemoryCurve, ...]
    launched: Mapping[str, Launched] = msgspec.field(default_factory=dict)
    """Of kernels that were also measured separately, by their name in the timeline."""
    queues: tuple[QueueCurve, ...] = ()
    """How far the host runs ahead of each device."""
    window_us: tuple[float, float] = (0.0, 0.0)

    @cached_property
    def whole(self) -> Cut | None:
        """The whole trace, or as much of it around the window as a viewer opens at once."""
        return self.cut_whole()
