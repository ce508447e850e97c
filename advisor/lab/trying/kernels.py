"""The kernels that a step launches, counted by a profiler in a few steps after the timed steps: they show the intervention's effect."""

from __future__ import annotations

from typing import Any

COUNTED = 2
"""Steps."""

WARMUP = 1
"""Steps before them, which the profiler's start slows."""

MOST_NAMES = 2000  # distinct kernels counted: a program has some hundreds

PARTS = {"loader": "enumerate(DataLoader)", "optimizer": "Optimizer."}
"""Parts of a step by the beginning of the marks that torch makes."""

RUNTIME = ("cudaGraphLaunch", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaLaunchKernel", "cudaMemcpyAsync", "cuLaunchKernel")


class KernelCount:
    """Counts by name over a few steps: what ran on the device, and the runtime's calls; of a program without a device, its ops."""

    def __init__(self) -> None:
        self.started = False
        self.counts: dict[str, float] = {}
        self.spent_us: dict[str, float] = {}
        """Host time per step by torch's marks: the dataloader, the optimizer, and the time between the first and the last event."""
        self._left = WARMUP + COUNTED
        self._profiler: Any = None

    def step(self) -> bool:
        """A step ended; whether all are counted."""
        from torch.profiler import ProfilerActivity, profile

        self._left -= 1
        if self._left == COUNTED:
            activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
            self._profiler = profile(activities=[a for a in activities if a in _supported()])
            self._profiler.start()
            self.started = True
        if self._left > 0:
            return False
        self.stop()
        return True

    def stop(self) -> None:
        """End, and count what there is."""
        if self._profiler is None:
            return
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        steps = max(COUNTED - max(self._left, 0), 1)
        results = profiler.profiler.kineto_results
        events = results.events() if results is not None else []
        self._parts(events, steps)
        device = [one for one in events if "CPU" not in str(one.device_type())]
        names = [one.name() for one in device or events]
        names += [one.name() for one in events if device and one.name() in RUNTIME]
        for name in names:
            if name in self.counts or len(self.counts) < MOST_NAMES:
                self.counts[name] = self.counts.get(name, 0.0) + 1 / steps

    def _parts(self, events: Any, steps: int) -> None:
        host = [one for one in events if "CPU" in str(one.device_type())]
        if not host:
            return
        for part, mark in PARTS.items():
            self.spent_us[part] = sum(one.duration_ns() for one in host if one.name().startswith(mark)) / 1e3 / steps
        starts = [one.start_ns() for one in host]
        self.spent_us["step"] = (max(start + one.duration_ns() for start, one in zip(starts, host, strict=True)) - min(starts)) / 1e3 / steps


def _supported() -> Any:
    import torch

    return torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
