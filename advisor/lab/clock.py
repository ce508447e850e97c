"""Times steps without a profiler: by events on the device if a device is used, else by the host's clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..errors import require
from ..knowledge.counts import ENOUGH
from ..knowledge.shares import LITTLE, UNUSUAL

SETTLED_STEPS = ENOUGH
"""Number of steps that are compared with as many earlier steps: few enough to show a slow trend, many enough to hide an outlier."""

MAX_TIMED = 500  # steps: a mean of more gains nothing
MAX_TIMED_S = 20.0  # nobody waits longer for a mean
FEWEST_TIMED = ENOUGH  # steps, however slow

SETTLED_WITHIN = LITTLE
"""Step times vary by some 5 % from run to run of five; twice that is still a change."""


def median(values: Sequence[float]) -> float:
    """The median. Python's `statistics` is not used: torch does not load it, so a program may have a module of that name."""
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def device_in_use() -> str:
    """The kind of device that torch already works with in this process, "cpu" if it has touched no other."""
    require("torch", extra="lab")
    import torch

    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available() and module.is_initialized():
            return kind
    return "cpu"


def device_name(kind: str) -> str:
    """The name of the current device of that kind."""
    import platform

    import torch

    if kind == "cpu":
        return platform.processor() or platform.machine() or "cpu"
    return str(torch.get_device_module(kind).get_device_name())


def synchronize(kind: str) -> None:
    """Wait until the device has done all it was given."""
    import torch

    if kind != "cpu":
        torch.get_device_module(kind).synchronize()


def reset_peak_memory(kind: str) -> None:
    """From here on the peak counts; a CPU's process keeps its own."""
    import torch

    if kind != "cpu":
        torch.get_device_module(kind).reset_peak_memory_stats()


def peak_memory(kind: str) -> int:
    """Most bytes that tensors on the device held at once since the reset; of a CPU, the process's resident memory at its peak."""
    import torch

    if kind != "cpu":
        return int(torch.get_device_module(kind).max_memory_allocated())
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def compilations() -> int:
    """How many graphs torch.compile has made in this process so far; 0 if it was never used."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


class StepClock:
    """Marks between steps, and the times between them.

    On a device a mark is an event on the current stream, which the device reaches when it has done the step's work.
    The period between two marks is the step time, whether host or device is the bound. Marking does not wait."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Ends the current step and begins the next."""
        if self.device == "cpu":
            self._marks.append(time.perf_counter())
            return
        import torch

        event = torch.get_device_module(self.device).Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def __len__(self) -> int:
        """Steps between marks so far."""
        return max(len(self._marks) - 1, 0)

    def step_us(self, last: int | None = None) -> list[float]:
        """Times of all steps, or of the `last` steps, in µs. Waits for the device to reach the last mark."""
        marks = self._marks if last is None else self._marks[-last - 1 :]
        if self.device == "cpu":
            return [(b - a) * 1e6 for a, b in pairwise(marks)]
        if marks:
            marks[-1].synchronize()
        return [a.elapsed_time(b) * 1e3 for a, b in pairwise(marks)]


def settled(step_us: list[float]) -> bool:
    """Whether the last steps took as long as those before them: the medians of two runs of `SETTLED_STEPS` agree."""
    if len(step_us) < 2 * SETTLED_STEPS:
        return False
    before, after = median(step_us[-2 * SETTLED_STEPS : -SETTLED_STEPS]), median(step_us[-SETTLED_STEPS:])
    return abs(after - before) <= SETTLED_WITHIN * max(before, after)


START_UP = UNUSUAL
"""Leading steps above this many times the median are start-up: allocation, choice of algorithms, compilation."""


def without_start_up(step_us: list[float]) -> list[float]:
    """The steps without leading steps that took far longer than most."""
    usual = median(step_us) if step_us else 0.0
    first = next((i for i, us in enumerate(step_us) if us <= START_UP * usual), 0)
    return step_us[first:]
