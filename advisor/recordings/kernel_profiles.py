"""Kernels that Nsight Compute measured separately: its counters by its own names, in base units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from advisor.errors import TraceError

Dim = tuple[int, int, int]

DURATION = "gpu__time_duration.sum"


LARGEST = 2.0**63
"""The least value out of range: counters have 64 bits, and no rate comes near. Results computed from smaller numbers are finite."""


def counted(number: float) -> float | None:
    """A metric's value, None if no counter gives it: as if it had not been collected."""
    return number if number == 0 or 1 / LARGEST <= abs(number) <= LARGEST else None


class Flags(msgspec.Struct, frozen=True):
    """How ptxas compiled a kernel: architecture (`sm_90`, "" if unknown), optimisation level, debugger, line numbers, and register limit per thread; None if
    unknown.
    """

    arch: str = ""
    level: int = 3
    debug: bool = False
    lines: bool = False
    max_registers: int | None = None


class KernelProfile(msgspec.Struct, frozen=True):
    """One launch, or the mean of several. `metrics`: numbers that are `counted`, by ncu's name; times in ns, bytes, rates a second, shares in percent (0 to 100).

    ncu locks the clocks and replays the kernel, so its durations compare with each other and with no timeline's.
    """

    name: str
    """Demangled, with template arguments and parameters if they were recorded."""
    grid: Dim
    block: Dim
    """(0, 0, 0) where a dimension was not recorded."""
    device: int = 0
    capability: tuple[int, int] = (0, 0)
    """Compute capability; (0, 0) if it was not recorded."""
    stream: int = 0
    process: int = 0
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)
    page: str = ""
    """"details" if only that page's counters are known, which are fewer than collected."""
    source: tuple[str, int] | None = None
    """File and line that its binary names first, as Triton's do; None if it names none."""
    flags: Flags | None = None
    """Of its compiler; None if its binary is not there, as in a CSV page, or does not say."""
    launches: int = 1
    """Launches that it represents: more than one if a profiler kept sums; `metrics` are then means."""

    def get(self, *names: str) -> float | None:
        """The first of these metrics that was collected (versions of ncu name some differently), None if none was."""
        return next((self.metrics[name] for name in names if name in self.metrics), None)

    @property
    def duration_us(self) -> float | None:
        """What it took under the profiler, µs."""
        ns = self.get(DURATION, "gpu__time_duration.avg", "gpu__time_duration.max")
        return None if ns is None else ns / 1000

    @property
    def blocks(self) -> int:
        """Blocks of the grid, 0 if they were not recorded."""
        return math.prod(self.grid) or int(self.get("launch__grid_size") or 0)

    @property
    def threads(self) -> int:
        """Threads of a block, 0 if they were not recorded."""
        return math.prod(self.block) or int(self.get("launch__block_size") or 0)


class KernelProfiles(msgspec.Struct, frozen=True):
    """Contents of a report of Nsight Compute, or of a tree of Proton. Raises TraceError without kernels."""

    part_of: ClassVar[Literal["kernels"]] = "kernels"

    path: str
    format: Literal["ncu-rep", "ncu-csv", "proton"]
    bytes: int
    kernels: tuple[KernelProfile, ...]
    devices: Mapping[int, str] = msgspec.field(default_factory=dict)
    """Names by id, those that were recorded."""
    damage: str = ""
    """Problems of the file, if parts could not be read."""

    def __post_init__(self) -> None:
        if not self.kernels:
            raise TraceError(
                f"{self.path} holds no kernel" + (f": {self.damage}" if self.damage else ""),
                "Did the filter (--kernel-name, --launch-skip, --profile-from-start) match any? Record with: ncu --set full -o report COMMAND",
            )
