"""Whether a memory snapshot and a timeline are of one program: when both were recorded, and what sizes and files they share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from pathlib import PurePath

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.library_files import IN_LIBRARY
from advisor.knowledge.op_costs.arguments import DTYPE_BYTES
from advisor.knowledge.shares import LITTLE
from advisor.recordings.timeline import Timeline
from advisor.report.numbers import percent
from advisor.views.groups import Groups
from advisor.views.memory.allocator import MIN_BLOCK
from advisor.views.memory.attached_snapshot import MemoryBeside
from advisor.views.memory.attribution import Attribution
from advisor.views.trace import arguments
from advisor.views.trace.program import Program
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.source_lines import user_frame
from advisor.views.trace.steps import Steps

TELLING = FEWEST_REPEATS
"""Sizes at the peak that are no powers of two, as tensors of any program are: fewer say nothing of a program."""

SHARED = LITTLE
"""Share of equal sizes: a program's own tensors have most; of 264 pairs of unrelated programs one in nine has more."""

_LIBRARY = re.compile(IN_LIBRARY)


class MemoryJoined(msgspec.Struct, frozen=True):
    """same_run: whether both were recorded at the same time, None if a time is missing. sizes: share of the sizes at the snapshot's peak that the timeline's
    tensors have. files: program files that both name. Each is None if either side lacks it. differ: their contradiction about training, or "".
    """

    same_run: bool | None
    sizes: float | None
    files: frozenset[str] | None
    differ: str

    @property
    def looked_for(self) -> str:
        """What was held against each other, and how much of it they share, in words."""
        sizes = "" if self.sizes is None else f"of the sizes of tensors at its peak the trace has {percent(self.sizes)}"
        files = "" if self.files is None else f"they share {', '.join(sorted(self.files)[:4]) or 'no file of the program'}"
        return "; ".join(filter(None, (sizes, files)))

    @property
    def shared(self) -> bool:
        """Whether anything says that they are of one program."""
        return bool(self.same_run or self.files or (self.sizes or 0.0) >= SHARED)

    @property
    def strangers(self) -> bool:
        """Whether they are of two programs: what can be held against each other says so, and nothing else."""
        return not self.shared and bool(self.looked_for or self.differ)

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, program: Program, beside: MemoryBeside) -> MemoryJoined:
        start_us = timeline.base_ns / 1000
        same = beside.start_us < start_us + steps.end_us and beside.end_us > start_us
        attribution, differ = beside.workspace.get(Attribution), ""
        if len(timeline.cpu_ops) and beside.trains is not None and beside.trains != program.training:
            one, other = ("snapshot", "timeline") if beside.trains else ("timeline", "snapshot")
            differ = f"the {one} shows training, the {other} does not"
        return cls(
            same if start_us > 0 and beside.start_us > 0 else None,
            _shared_sizes(_sizes(timeline, program), attribution),
            _shared_files(timeline, attribution),
            differ,
        )


def _sizes(timeline: Timeline, program: Program) -> Ints:
    """Sizes of a timeline's tensors: of all allocations, or else of op inputs, which are few in compiled code."""
    allocated = timeline.memory["bytes"][timeline.memory["device"] >= 0]
    known = allocated if len(allocated) or program.compiled else np.array([*_tensors(timeline)], np.int64)
    return np.unique(_in_blocks(np.abs(known)))


def _tensors(timeline: Timeline) -> Iterator[int]:
    """The bytes of each tensor among the inputs of ops. Of a list of them no type is recorded: it is of 32 or of 16 bits."""
    columns = timeline.cpu_ops["dims"], timeline.cpu_ops["types"]
    first = Groups.by_keys(*(column.codes for column in columns)).first
    for dims, types in zip(*(column[first] for column in columns), strict=True):
        for shape, kind in zip(arguments.numbers(dims), arguments.names(types), strict=False):
            if shape and isinstance(shape[0], list):
                sizes = [prod(one) * item for one in shape for item in (2, 4)]
            else:
                sizes = [prod(shape) * DTYPE_BYTES[kind]] if kind in DTYPE_BYTES else []
            yield from (size for size in sizes if 0 < size < 1 << 48)


def _in_blocks(size: Ints) -> Ints:
    return -(-size // MIN_BLOCK) * MIN_BLOCK


def _shared_sizes(sizes: Ints, attribution: Attribution) -> float | None:
    held = np.unique(_in_blocks(attribution.device.allocations.size[attribution.device.at_peak]))
    held = held[held & (held - 1) != 0]
    return float(np.isin(held, sizes).mean()) if len(held) >= TELLING and len(sizes) >= TELLING else None


def _shared_files(timeline: Timeline, attribution: Attribution) -> frozenset[str] | None:
    """By their names alone: one recorder cuts directories off, another does not."""
    traced = {PurePath(frame.file).name for name in timeline.python_calls["name"].categories if (frame := user_frame(str(name)))}
    stacked = {PurePath(origin.file).name for origin in attribution.origins.of if origin.file and not _LIBRARY.search(origin.file)}
    return frozenset(traced & stacked) if traced and stacked else None
