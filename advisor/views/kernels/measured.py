"""The kernels of a report of Nsight Compute, each once however often it was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.knowledge import devices, occupancy
from advisor.knowledge.demangled import plain_name
from advisor.knowledge.devices import Peaks
from advisor.recordings.kernel_profiles import Dim, KernelProfile, KernelProfiles
from advisor.views.device_rates import DeviceRates
from advisor.views.kernels.counters import issue_busy, shared_bytes
from advisor.views.kernels.join import EVERY, Join
from advisor.views.kernels.limits import BUSY, COMPUTE, Limits
from advisor.views.replay.gpu_work import GpuWork


class Occupancy(msgspec.Struct, frozen=True):
    """theoretical: warps that fit on an SM over those that it holds, 0 to 1. achieved: on average, of those that it
    holds. limiter: what keeps more from fitting, of `occupancy.LIMITERS`. blocks: those that fit at once, by limiter in `limits`.
    """

    theoretical: float
    achieved: float | None
    limiter: str
    blocks: int
    limits: tuple[int, ...]


class MeasuredKernel(msgspec.Struct, frozen=True):
    """Launches of a kernel with the same grid and block: `profile` has the median duration.

    turn: its place among a step's launches in the joined timeline; `EVERY` if unknown.
    """

    profile: KernelProfile
    launches: int
    total_us: float
    """What all of them took under the profiler, 0 if that was not collected."""
    limits: Limits
    occupancy: Occupancy | None
    sm_count: int
    """Multiprocessors of its device, 0 if neither the report nor the device's data says."""
    peaks: Peaks | None
    turn: int = EVERY

    @property
    def name(self) -> str:
        """Without return type and parameters."""
        return plain_name(self.profile.name)

    @property
    def grid(self) -> Dim:
        return self.profile.grid

    @property
    def block(self) -> Dim:
        return self.profile.block

    @property
    def issues(self) -> bool:
        """Whether arithmetic, or issuing instructions, holds it up: fewer of them make it shorter, whatever else it waits for."""
        return max(self.limits.busy.get(COMPUTE, 0.0), issue_busy(self.profile) or 0.0) >= BUSY

    @property
    def waves(self) -> float | None:
        """Blocks over the places for them on the whole device."""
        recorded = self.profile.get("launch__waves_per_multiprocessor")
        if recorded is not None:
            return recorded
        places = self.sm_count * (self.occupancy.blocks if self.occupancy else 0)
        return self.profile.blocks / places if places and self.profile.blocks else None


class MeasuredKernels(msgspec.Struct, frozen=True):
    """All kernels, most time first. join: their places in an attached timeline."""

    kernels: tuple[MeasuredKernel, ...]
    source: KernelProfiles
    join: Join | None = None

    builds: ClassVar[tuple[Callable[..., Any], ...]] = ()

    @classmethod
    def joined(cls, profiles: KernelProfiles, work: GpuWork, rates: DeviceRates) -> MeasuredKernels:
        """With the launches of a timeline that they are."""
        join = Join.create(work, profiles.kernels)
        return cls(_grouped(profiles, join.turns, rates), profiles, join)

    @classmethod
    def without_timeline(cls, profiles: KernelProfiles, rates: DeviceRates) -> MeasuredKernels:
        """Where no timeline was given."""
        return cls(_grouped(profiles, (EVERY,) * len(profiles.kernels), rates), profiles)

    def positions(self, kernel: MeasuredKernel) -> Ints:
        """Where in the schedule of the timeline a kernel runs; empty if it does not, or no timeline was given."""
        return np.empty(0, np.int64) if self.join is None else self.join.positions(kernel.profile, kernel.turn)

    @property
    def total_us(self) -> float:
        """What all of them took under the profiler."""
        return sum(k.total_us for k in self.kernels)


MeasuredKernels.builds = (MeasuredKernels.joined, MeasuredKernels.without_timeline)


def _grouped(profiles: KernelProfiles, turns: Sequence[int], rates: DeviceRates) -> tuple[MeasuredKernel, ...]:
    """Groups launches by name, grid, block, device and turn, most time first."""
    groups: dict[tuple[str, Dim, Dim, int, int], list[KernelProfile]] = {}
    for profile, turn in zip(profiles.kernels, turns, strict=True):
        groups.setdefault((profile.name, profile.grid, profile.block, profile.device, turn), []).append(profile)
    made = (_measured(group, profiles, key[-1], rates) for key, group in groups.items())
    return tuple(sorted(made, key=lambda k: -k.total_us))


def _measured(launches: list[KernelProfile], profiles: KernelProfiles, turn: int, rates: DeviceRates) -> MeasuredKernel:
    by_time = sorted(launches, key=lambda p: p.duration_us or 0.0)
    profile = by_time[len(by_time) // 2]
    name = profiles.devices.get(profile.device, "")
    sms = profile.get("launch__sm_count", "device__attribute_multiprocessor_count")
    return MeasuredKernel(
        profile=profile,
        launches=sum(p.launches for p in launches),
        total_us=sum((p.duration_us or 0.0) * p.launches for p in launches),
        limits=Limits.create(profile),
        occupancy=_occupancy(profile),
        sm_count=int(sms or 0),
        peaks=rates.named(name) or devices.find(name),
        turn=turn,
    )


_LIMITS = {
    occupancy.REGISTERS: "launch__occupancy_limit_registers",
    occupancy.SHARED: "launch__occupancy_limit_shared_mem",
    occupancy.WARPS: "launch__occupancy_limit_warps",
    occupancy.BLOCKS: "launch__occupancy_limit_blocks",
}


def _occupancy(profile: KernelProfile) -> Occupancy | None:
    """As ncu computed it, else from the launch."""
    achieved = profile.get("sm__warps_active.avg.pct_of_peak_sustained_active")
    achieved = None if achieved is None else achieved / 100
    registers = profile.get("launch__registers_per_thread")
    shared = shared_bytes(profile)
    fit = None
    if registers is not None and profile.threads:
        fit = occupancy.fit(profile.capability, [profile.threads], [registers], [shared])
    theoretical = profile.get("sm__maximum_warps_per_active_cycle_pct")
    recorded = [profile.get(_LIMITS[name]) for name in occupancy.LIMITERS]
    known = [int(r) for r in recorded if r is not None]
    if len(known) == len(recorded):
        return Occupancy(
            theoretical / 100 if theoretical is not None else float(fit.occupancy[0]) if fit else 0.0,
            achieved,
            occupancy.lowest(known),
            min(known),
            tuple(known),
        )
    if fit is None:
        return None
    limits = tuple(int(n) for n in fit.limits[:, 0])
    return Occupancy(float(fit.occupancy[0]), achieved, fit.limiter[0], min(limits), limits)


def unlike(kernels: Iterable[MeasuredKernel]) -> dict[str, list[MeasuredKernel]]:
    """Kernels by name, in order: one kernel may have been launched with several grids."""
    found: dict[str, list[MeasuredKernel]] = {}
    for kernel in kernels:
        found.setdefault(kernel.name, []).append(kernel)
    return found
