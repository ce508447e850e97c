"""Times functions on the device that they use: alone, in turn, and back to back."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from advisor.errors import require
from advisor.knowledge import devices
from advisor.lab.clock import device_in_use, device_name, settled, synchronize
from advisor.lab.intensity import bound
from advisor.lab.measured import ran, theirs
from advisor.lab.timing import Timing

MIN_S = 0.2
"""Each way of timing takes about this long: enough calls for a median, short enough to wait for."""

FEWEST, MOST = 20, 1000
"""Calls timed, whatever they take."""

WARMUP_S = 0.5
"""After the first call, which compiles, calls are made until their times settle (`clock.settled`), but not for longer."""

OUTLIER_IQRS = 3.0
"""Beyond so many interquartile ranges from the quartiles (Tukey's far out), an interruption rather than the function."""

_SPIN_CYCLES = 2_000_000
"""About 1 ms on current devices: long enough to read a clock from, and for the host to get ahead."""

_FLUSH_BYTES = 256 << 20
"""Well above any L2; triton.testing.do_bench overwrites as much."""


def bench(
    fn: Callable[..., object],
    *args: Any,
    name: str | None = None,
    flush_l2: bool = False,
    flops: float | None = None,
    bytes: float | None = None,
    min_s: float = MIN_S,
) -> Timing:
    """Time `fn(*args)` after warm-up until steady (compilation included).

    flush_l2: overwrite the L2 cache before each call, to give it the cache of a call in a large program.

    flops, bytes: of a call. By default FLOPs come from torch's `FlopCounterMode`, and bytes are those of the arguments and results, each once."""
    with theirs():
        result = fn(*args)
    ran(result)
    device = device_of(result)
    call = waited_for(fn, args, device)
    steady = warm_up(call)
    kind = _dtype_of((args, result))
    del result
    estimate = max(min(host_times(call, 3)), 1e-7)
    calls = int(min(MOST, max(FEWEST, min_s / estimate)))
    latency = np.array(host_times(call, calls)) * 1e6
    if device in ("cpu", "jax"):
        times, back_to_back, clock = latency, float(latency.mean()), None
    else:
        back_to_back = _queued_seconds(fn, args, calls, device) * 1e6
        times = np.array(_on_device(fn, args, calls, device, flush_l2, estimate)) * 1e6
        clock = clock_mhz() if device == "cuda" else None
    low, high = _interval(times)
    moved = bytes
    if device != "jax" and (flops is None or moved is None):
        counted, touched = _work(fn, args)
        flops, moved = flops or counted, moved or touched
    known = bound(flops or 0.0, moved, kind, devices.find(device_name(device))) if moved and device not in ("cpu", "jax") else None
    q1, q3 = np.quantile(times, (0.25, 0.75))
    far = OUTLIER_IQRS * (q3 - q1)
    return Timing(
        name=name or str(getattr(fn, "__name__", type(fn).__name__)),
        device=device,
        device_us=float(np.median(times)),
        low_us=low,
        high_us=high,
        p95_us=float(np.quantile(times, 0.95)),
        latency_us=float(np.median(latency)),
        throughput_us=back_to_back,
        calls=len(times),
        outliers=int(((times < q1 - far) | (times > q3 + far)).sum()),
        settled=steady,
        flushed=flush_l2 and device not in ("cpu", "jax"),
        flops=flops,
        moved_bytes=moved,
        least_us=known.least_us if known else None,
        limit=known.limit if known else "",
        clock_mhz=clock,
    )


def device_of(result: object) -> str:
    """The device of a result: jax's own, else the device that torch works with."""
    if any(type(leaf).__module__.split(".")[0] in ("jax", "jaxlib") for leaf in _leaves(result)):
        return "jax"
    return device_in_use()


def _leaves(tree: object) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        tree = tuple(tree.values())
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _leaves(item)
    else:
        yield tree


def waited_for(fn: Callable[..., object], args: Sequence[Any], device: str) -> Callable[[], object]:
    """A call that returns when its work is done."""
    if device == "jax":
        require("jax", extra="jax")
        import jax

        return lambda: jax.block_until_ready(fn(*args))
    if device == "cpu":
        return lambda: fn(*args)

    def call() -> None:
        fn(*args)
        synchronize(device)

    return call


def host_times(call: Callable[[], object], count: int) -> list[float]:
    """Seconds that each of so many calls takes."""
    times = []
    with theirs():
        for _ in range(count):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return times


def warm_up(call: Callable[[], object]) -> bool:
    """Call until times settle; whether they did."""
    end = time.perf_counter() + WARMUP_S
    times: list[float] = []
    while time.perf_counter() < end or len(times) < 2:
        times += host_times(call, 1)
        if settled(times):
            return True
    return False


def _queued_seconds(fn: Callable[..., object], args: Sequence[Any], calls: int, device: str) -> float:
    """Seconds per call if the host waits only for the last call; median of five."""
    times = []
    with theirs():
        for _ in range(5):
            synchronize(device)
            start = time.perf_counter()
            for _ in range(calls):
                fn(*args)
            synchronize(device)
            times.append((time.perf_counter() - start) / calls)
    return float(np.median(times))


def measure_calls(fn: Callable[[], object]) -> Callable[[float], list[float]]:
    """Warm a function up; returns what measures it for so many seconds: µs a call, each of some 1 ms of calls back to back."""
    result = fn()
    ran(result)
    device = device_of(result)
    del result
    once = waited_for(fn, (), device)
    warm_up(once)
    calls = max(1, round(1e-3 / max(min(host_times(once, 5)), 1e-7)))

    def several() -> None:
        for _ in range(calls - 1):
            fn()
        once()

    def measure(seconds: float) -> list[float]:
        end = time.perf_counter() + seconds
        times: list[float] = []
        while len(times) < 3 or time.perf_counter() < end:
            times += [1e6 * s / calls for s in host_times(several, 1)]
        return times

    return measure


def _on_device(fn: Callable[..., object], args: Sequence[Any], calls: int, device: str, flush: bool, call_s: float) -> list[float]:
    """Seconds between events around each call, while earlier work keeps the device from waiting for the host."""
    import torch

    module = torch.get_device_module(device)
    cache = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device) if flush else None
    pairs = [(module.Event(enable_timing=True), module.Event(enable_timing=True)) for _ in range(calls)]
    # What the host issues during one spin: calls of a single short kernel take it about 10 µs each.
    batch = max(1, min(calls, 50, int(1e-3 / max(call_s, 1e-5)) or 1))
    with theirs():
        for first in range(0, calls, batch):
            if cache is None and hasattr(module, "_sleep"):
                module._sleep(_SPIN_CYCLES)
            for start, end in pairs[first : first + batch]:
                if cache is not None:
                    cache.zero_()
                start.record()
                fn(*args)
                end.record()
        module.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairs]


def clock_mhz() -> float | None:
    """The SMs' clock now, from a kernel that spins for a known number of cycles; None on other devices."""
    import torch

    if device_in_use() != "cuda" or torch.version.hip:  # HIP counts the cycles of another, constant clock
        return None
    cuda: Any = torch.cuda
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    start.record()
    cuda._sleep(_SPIN_CYCLES)
    end.record()
    end.synchronize()
    return float(_SPIN_CYCLES / start.elapsed_time(end) / 1e3)


def _interval(times: np.ndarray) -> tuple[float, float]:
    """95 % interval of the median without an assumption on the distribution: order statistics (Conover 1999, section 3.2)."""
    ordered, n = np.sort(times), len(times)
    half = 0.98 * math.sqrt(n)
    return float(ordered[max(0, math.floor(n / 2 - half) - 1)]), float(ordered[min(n - 1, math.ceil(n / 2 + half))])


def _work(fn: Callable[..., object], args: Sequence[Any]) -> tuple[float | None, float | None]:
    """FLOPs that torch counts in a call, None if it counts none, and the bytes of what goes in and comes out, each tensor once."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    # torch.compile passes over code that a counter watches, and would leave it uncompiled for good.
    stance = getattr(torch.compiler, "set_stance", None)  # from 2.6 on
    with stance("force_eager") if stance else nullcontext(), FlopCounterMode(display=False) as counter, theirs():
        result = fn(*args)
    tensors = {leaf.data_ptr(): leaf for leaf in _leaves((args, result)) if isinstance(leaf, torch.Tensor)}
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return float(counter.get_total_flops()) or None, float(moved) or None


def _dtype_of(tree: object) -> str:
    """Type of the first floating tensor, in the precision that products of it run in."""
    torch = sys.modules.get("torch")
    for leaf in _leaves(tree):
        if torch is not None and isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            name = str(leaf.dtype).removeprefix("torch.")
            return "tf32" if name == "float32" and torch.backends.cuda.matmul.allow_tf32 else name
    return ""
