"""Device memory that a call needs, and device memory of the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from advisor.lab.clock import device_in_use, synchronize
from advisor.lab.measured import theirs

GB = 1e9  # bytes, as devices are sold by


@dataclass(frozen=True)
class MemoryUsage:
    """peak_bytes: most bytes of tensors at once while the function ran, including earlier tensors.

    current_bytes: bytes after it. cached_bytes: memory that the allocator reserves on the device; None on a CPU."""

    peak_bytes: int
    current_bytes: int
    cached_bytes: int | None
    device: str

    def __str__(self) -> str:
        cached = "" if self.cached_bytes is None else f", cached {self.cached_bytes / GB:.3f} GB"
        return f"peak {self.peak_bytes / GB:.3f} GB, current {self.current_bytes / GB:.3f} GB{cached}"

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


def measure_memory_usage(fn: Callable[..., object], args: Sequence[Any] = ()) -> MemoryUsage:
    """Reset the peak, run `fn(*args)` once, and read peak, current and cached memory in bytes.

    On a CPU, if no allocator keeps count, the profiler's record of allocations is replayed: bytes above those held before.
    """
    device = device_in_use()
    if device == "cpu":
        return _on_cpu(fn, args)
    import torch

    module = torch.get_device_module(device)
    synchronize(device)
    module.reset_peak_memory_stats()
    with theirs():
        held = fn(*args)
        synchronize(device)
    used = MemoryUsage(module.max_memory_allocated(), module.memory_allocated(), module.memory_reserved(), device)
    del held
    return used


def _on_cpu(fn: Callable[..., object], args: Sequence[Any]) -> MemoryUsage:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, theirs():
        held = fn(*args)
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    held_bytes = np.cumsum([event.nbytes() for event in events]) if events else np.zeros(1)
    del held
    return MemoryUsage(int(max(held_bytes.max(), 0)), int(held_bytes[-1]), None, "cpu")


def memory_now() -> MemoryUsage:
    """Bytes that this process holds on the current device, and the peak so far."""
    device = device_in_use()
    if device == "cpu":
        return MemoryUsage(0, 0, None, device)
    import torch

    module = torch.get_device_module(device)
    return MemoryUsage(module.max_memory_allocated(), module.memory_allocated(), module.memory_reserved(), device)


def profile_memory() -> None:
    """Print the current, peak and cached memory of the device in GB (10⁹ bytes)."""
    now = memory_now()
    print(f"Current memory: {now.current_bytes / GB:.2f} GB")
    print(f"Peak memory: {now.peak_bytes / GB:.2f} GB")
    print(f"Cached memory: {(now.cached_bytes or 0) / GB:.2f} GB")
