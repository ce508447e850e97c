"""A snapshot of a GPU memory allocator: current allocations, and the events before.

Sizes in bytes, times in microseconds of the program's clock. Events and blocks are columns; a stack is a tuple of frames, innermost first. Each distinct
stack is stored once and named by its index.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Action(IntEnum):
    """What the allocator did."""

    ALLOC = 0
    FREE_REQUESTED = 1
    """The program gave the block back; work of another stream may still use it."""
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    """A cudaMalloc."""
    SEGMENT_FREE = 4
    """A cudaFree."""
    SEGMENT_MAP = 5
    """Pages added to an expandable segment."""
    SEGMENT_UNMAP = 6
    OOM = 7
    OTHER = 8


class Frame(NamedTuple):
    """One call of a stack. `file` is "" or "??" and `line` 0 if the compiler left no trace of it."""

    name: str
    file: str
    line: int

    @property
    def python(self) -> bool:
        """Whether it is Python's. Frames of the interpreter and of C libraries have lines and plain names too, and tell themselves by their files' suffix;
        a script needs none."""
        if self.file.endswith(".py") or self.file.startswith("<"):
            return True
        return self.line > 0 and "." not in self.file.rsplit("/", 1)[-1] and "::" not in self.name and "(" not in self.name


Stack = tuple[Frame, ...]


class Block(NamedTuple):
    """A part of a segment as the snapshot found it."""

    address: int
    size: int
    requested: int
    allocated: bool
    """Given to the program and not given back."""
    active: bool
    """Allocated, or given back and still in use by a stream."""
    stack: int


class Segment(NamedTuple):
    """Memory that the allocator holds from the driver, in blocks that fill it."""

    address: int
    size: int
    stream: int
    large: bool
    """Of the pool for requests above 1 MiB."""
    pool: tuple[int, int]
    """(0, 0) for the common pool; another for a private one, as a CUDA graph's."""
    expandable: bool
    blocks: tuple[Block, ...]


class Events(msgspec.Struct, frozen=True):
    """Actions of the allocator in order: columns of equal length."""

    action: npt.NDArray[np.int8]
    address: Ints
    size: Ints
    """As requested, before rounding."""
    stream: Ints
    time_us: Ints
    stack: npt.NDArray[np.int32]
    """Index into the snapshot's stacks, -1 if none was recorded."""

    def __len__(self) -> int:
        return len(self.action)


class Mark(NamedTuple):
    """A range that the program or PyTorch marked, as `Optimizer.step#AdamW.step`."""

    name: str
    start_us: int
    end_us: int
    device: int


class DeviceSnapshot(msgspec.Struct, frozen=True):
    """One device's segments as they were found, and the events before that."""

    device: int
    segments: tuple[Segment, ...]
    events: Events

    @property
    def reserved_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)


class MemorySnapshot(msgspec.Struct, frozen=True):
    """Everything that one snapshot file holds."""

    part_of: ClassVar[Literal["memory"]] = "memory"

    path: str
    format: str
    bytes: int
    devices: tuple[DeviceSnapshot, ...]
    stacks: tuple[Stack, ...]
    marks: tuple[Mark, ...] = ()
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
    tells_reserved: bool = True
    """Whether it includes memory held from the driver; if not, segments are the allocations."""
    ranks: bool = False
    """Whether the devices are those of a job's ranks, by their numbers."""

    @property
    def events(self) -> int:
        """Events of all devices."""
        return sum(len(device.events) for device in self.devices)


class SnapshotBeside(msgspec.Struct, frozen=True):
    """A snapshot that was given with a timeline of the same program."""

    part_of: ClassVar[Literal["trace"]] = "trace"

    snapshot: MemorySnapshot
