"""Limits of a measured kernel, and its time after a fix reduces the load on a resource."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from advisor.knowledge.measured_costs import costs
from advisor.knowledge.shares import NO_DIFFERENCE, WELL_USED
from advisor.recordings.kernel_profiles import KernelProfile

DRAM, L2, L1, COMPUTE = "dram", "l2", "l1", "compute"

_METRICS = {
    DRAM: ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    L2: ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    L1: ("l1tex__throughput.avg.pct_of_peak_sustained_elapsed",),
    COMPUTE: ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
}


def _l1_of_all(kernel: KernelProfile) -> float | None:
    """L1's share of its peak, of the whole time and device: the details page gives it of the cycles in which each worked."""
    pct = kernel.get("l1tex__throughput.avg.pct_of_peak_sustained_active")
    active, elapsed = kernel.get("sm__cycles_active.avg"), kernel.get("gpc__cycles_elapsed.max")
    return pct if pct is None or not active or not elapsed else pct * min(active / elapsed, 1.0)


_LOADS = ("lsu", "tex")
"""Pipes of an SM that issue loads and stores, to L1 and shared memory; all others compute or steer."""

SAME = 1 - NO_DIFFERENCE
"""A pipe this near to the rate of the whole SM is the one that it was taken from."""

_PIPE = re.compile(r"^sm__(?:pipe_(?P<unit>\w+?)_cycles_active|inst_executed_pipe_(?P<pipe>\w+?)|instruction_throughput)\.avg\.pct_of_peak_sustained_\w+$")


def _loading(kernel: KernelProfile) -> float | None:
    """How busy the busiest pipe is that issues loads and stores, in percent; None if that was not collected."""
    known = [kernel.get(f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_elapsed") for pipe in _LOADS]
    return max((pct for pct in known if pct is not None), default=None)


def _computing(kernel: KernelProfile) -> float | None:
    """How busy the busiest pipe is that computes, in percent; None if none was collected."""
    pipes = ((_PIPE.match(name), pct) for name, pct in kernel.metrics.items())
    return max((pct for found, pct in pipes if found and (found["unit"] or found["pipe"]) not in _LOADS), default=None)


_MEMORY = ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed")

REACHED = costs("reached-limit")


class Limits(msgspec.Struct, frozen=True):
    """How busy each resource is, 0 to 1 of its peak; only those that were collected."""

    busy: Mapping[str, float]
    known: bool
    """Whether compute and all of memory were collected: a part that was not may be what is busy."""

    @classmethod
    def create(cls, kernel: KernelProfile) -> Limits:
        """From its counters; a pipe that issues loads and stores is L1's, though ncu counts it to the SM."""
        busy = {name: kernel.get(*metrics) for name, metrics in _METRICS.items()}
        if busy[L1] is None:
            busy[L1] = _l1_of_all(kernel)
        loading, whole = _loading(kernel), busy[COMPUTE]
        if loading and whole and loading >= SAME * whole:
            busy[COMPUTE], busy[L1] = _computing(kernel), max(loading, busy[L1] or 0.0)
        # ncu's figure of memory as a whole stands for DRAM or L1, if it alone was not collected. L2 comes above that figure: of it this says nothing.
        missing, memory = [part for part in (DRAM, L2, L1) if busy[part] is None], kernel.get(_MEMORY[0])
        if missing in ([DRAM], [L1]) and memory is not None:
            busy[missing.pop()] = memory
        known = busy[COMPUTE] is not None and not missing
        return cls({name: min(pct / 100, 1.0) for name, pct in busy.items() if pct is not None and pct >= 0}, known)

    @property
    def highest(self) -> float:
        """How near the kernel comes to any limit."""
        return max(self.busy.values(), default=0.0)

    @property
    def limiter(self) -> str:
        """The busiest resource; "latency" if none is busy (ncu: below 0.6 of its peak); "" if unknown, since a resource without counters may be the busiest."""
        if self.highest >= BUSY:
            return max(self.busy, key=lambda name: self.busy[name])
        return "latency" if self.known else ""

    def left(self, factors: Mapping[str, float]) -> float:
        """How busy the busiest would be if the kernel still took as long and each resource had that part of its load."""
        return max((busy * factors.get(name, 1.0) for name, busy in self.busy.items()), default=0.0)


BUSY = WELL_USED
"""Share of its peak from which a resource bounds the kernel."""


class Gain(msgspec.Struct, frozen=True):
    """Share of the kernel's time that a fix saves, 0 to 1: low <= expected <= high."""

    low: float
    expected: float
    high: float

    @classmethod
    def of_time(cls, best: float, likely: float, worst: float) -> Gain:
        """From the time that is left, as shares of what it takes now."""
        low, expected, high = sorted(min(max(1 - left, 0.0), 1.0) for left in (worst, likely, best))
        return cls(low, expected, high)


def reach(limits: Limits) -> tuple[float, float, float]:
    """Share of its limit's peak that a kernel reaches once its fault is gone (`REACHED`), at worst no more than it does today."""
    best, likely, worst = REACHED
    now = limits.highest
    return best, (min(now, likely) + likely) / 2, min(now, worst) or worst


def relieved(
    limits: Limits, factors: Mapping[str, float], best: Mapping[str, float] | None = None, floor: tuple[float, float, float] = (0.0, 0.0, 0.0)
) -> Gain:
    """The gain where each resource keeps that part (0 to 1) of its load, `best` at best: a bound model.

    The kernel then takes as long as the resource that is busiest of all takes at the share of its peak that it can `reach`.
    `floor`: shares of today's time that stay in any case, at best, likely and at worst.
    """
    parts = (factors if best is None else best, factors, factors)
    ends = zip(parts, reach(limits), floor, strict=True)
    return Gain.of_time(*(min(max(limits.left(part) / reached, least), 1.0) for part, reached, least in ends))


def in_part(gain: Gain, part: float) -> Gain:
    """The gain where the resource that a fix relieves explains only that part of the time: less is likely, no less is possible."""
    return Gain(gain.low * part, gain.expected * part, gain.high)


def memory_busy(kernel: KernelProfile, limits: Limits) -> float | None:
    """Speed of light of memory: the busiest of the memory system, 0 to 1."""
    pct = kernel.get(*_MEMORY)
    found = [busy for name, busy in limits.busy.items() if name != COMPUTE]
    return pct / 100 if pct is not None else max(found, default=None)
