"""Times functions on the device that they use: alone, one after another, and back to back."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.errors import UsageError
from advisor.knowledge import devices
from advisor.lab.clock import device_in_use, device_name, settled, synchronize
from advisor.lab.intensity import bound

if TYPE_CHECKING:
    import pandas as pd

MIN_S = 0.2
"""Each way of timing takes about this long: enough calls for a median, short enough to wait for."""

FEWEST, MOST = 20, 1000
"""Calls timed, whatever they take."""

WARMUP_S = 3.0
"""Calls are made until their times settle (`clock.settled`), but not for longer."""

CLOCK_MOVED = 0.03
"""A device clock that differs by more than this between two functions makes a difference that is none of theirs."""

OUTLIER_IQRS = 3.0
"""Beyond so many interquartile ranges from the quartiles (Tukey's far out), an interruption rather than the function."""

_SPIN_CYCLES = 2_000_000
"""About 1 ms on current devices: long enough to read a clock from, and for the host to get ahead."""


@dataclass(frozen=True)
class Timing:
    """What calls of one function took, in µs.

    device_us: on the device, the queue kept full, median; low_us and high_us hold it with 95 % confidence. latency_us: one call
    at a time, waited for each, as a caller who needs the result sees it. throughput_us: a call of many back to back. On a CPU
    the three are one measurement. flops, moved_bytes: of one call, None where not known. least_us: what the device's peaks
    allow. clock_mhz: of the device after it, None where it cannot be read.
    """

    name: str
    device: str
    device_us: float
    low_us: float
    high_us: float
    p95_us: float
    latency_us: float
    throughput_us: float
    calls: int
    outliers: int
    settled: bool
    flushed: bool
    flops: float | None = None
    moved_bytes: float | None = None
    least_us: float | None = None
    limit: str = ""
    clock_mhz: float | None = None

    @property
    def gflops_per_s(self) -> float | None:
        """Achieved arithmetic rate."""
        return None if self.flops is None else self.flops / self.device_us / 1e3

    @property
    def gbytes_per_s(self) -> float | None:
        """Achieved memory rate, each operand counted once."""
        return None if self.moved_bytes is None else self.moved_bytes / self.device_us / 1e3

    @property
    def roofline_share(self) -> float | None:
        """The shortest time that the device's peaks allow over the measured one."""
        return None if self.least_us is None else self.least_us / self.device_us

    def to_dict(self) -> dict[str, Any]:
        """The fields and rates, for JSON."""
        return {**asdict(self), "gflops_per_s": self.gflops_per_s, "gbytes_per_s": self.gbytes_per_s, "roofline_share": self.roofline_share}

    def __str__(self) -> str:
        return str(Table((self,)))


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

    flush_l2: overwrite the L2 cache before each call, as a call in a large program would find it. flops, bytes: of one call; without
    them FLOPs are what torch's `FlopCounterMode` counts, and bytes those of the arguments and results, each once.
    """
    result = fn(*args)
    device = _device_of(result)
    call = _waited_for(fn, args, device)
    steady = _warm_up(call)
    moved = bytes
    if device != "jax" and (flops is None or moved is None):
        counted, touched = _work(fn, args, result)
        flops, moved = flops or counted, moved or touched
    kind = _dtype_of((args, result))
    del result
    estimate = max(min(_host_times(call, 3)), 1e-7)
    calls = int(min(MOST, max(FEWEST, min_s / estimate)))
    latency = np.array(_host_times(call, calls)) * 1e6
    if device in ("cpu", "jax"):
        times, back_to_back, clock = latency, float(latency.mean()), None
    else:
        back_to_back = _back_to_back(fn, args, calls, device) * 1e6
        times = np.array(_on_device(fn, args, calls, device, flush_l2, estimate)) * 1e6
        clock = clock_mhz() if device == "cuda" else None
    low, high = _interval(times)
    known = bound(flops, moved, kind, devices.find(device_name(device))) if flops is not None and moved and device not in ("cpu", "jax") else None
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


def _device_of(result: object) -> str:
    """Where a result came from: jax's own, else the device that torch works with."""
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


def _waited_for(fn: Callable[..., object], args: Sequence[Any], device: str) -> Callable[[], object]:
    """A call that returns when its work is done."""
    if device == "jax":
        import jax

        return lambda: jax.block_until_ready(fn(*args))
    if device == "cpu":
        return lambda: fn(*args)

    def call() -> None:
        fn(*args)
        synchronize(device)

    return call


def _host_times(call: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def _warm_up(call: Callable[[], object]) -> bool:
    """Call until times settle; whether they did."""
    end = time.perf_counter() + WARMUP_S
    times: list[float] = []
    while time.perf_counter() < end or len(times) < 2:
        times += _host_times(call, 1)
        if settled(times):
            return True
    return False


def _back_to_back(fn: Callable[..., object], args: Sequence[Any], calls: int, device: str) -> float:
    """Seconds a call where the host waits for the last alone; median of five."""
    times = []
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
    device = _device_of(fn())
    once = _waited_for(fn, (), device)
    _warm_up(once)
    calls = max(1, round(1e-3 / max(min(_host_times(once, 5)), 1e-7)))

    def several() -> None:
        for _ in range(calls - 1):
            fn()
        once()

    def measure(seconds: float) -> list[float]:
        end = time.perf_counter() + seconds
        times: list[float] = []
        while len(times) < 3 or time.perf_counter() < end:
            times += [1e6 * s / calls for s in _host_times(several, 1)]
        return times

    return measure


def _on_device(fn: Callable[..., object], args: Sequence[Any], calls: int, device: str, flush: bool, call_s: float) -> list[float]:
    """Seconds between events around each call, while earlier work keeps the device from waiting for the host."""
    import torch

    module = torch.get_device_module(device)
    cache = torch.empty(_flush_bytes(device), dtype=torch.int8, device=device) if flush else None
    pairs = [(module.Event(enable_timing=True), module.Event(enable_timing=True)) for _ in range(calls)]
    # What the host issues during one spin: calls of a single short kernel take it about 10 µs each.
    batch = max(1, min(calls, 50, int(1e-3 / max(call_s, 1e-5)) or 1))
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


def _flush_bytes(device: str) -> int:
    """Well above any L2; triton.testing.do_bench overwrites as much."""
    return 256 << 20


def clock_mhz() -> float | None:
    """The multiprocessors' clock now, from a kernel that spins for a known number of cycles; None on other devices."""
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


def _work(fn: Callable[..., object], args: Sequence[Any], result: object) -> tuple[float | None, float | None]:
    """FLOPs that torch counts in a call, None where it counts none, and the bytes of what goes in and comes out, each tensor once."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        fn(*args)
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


COLUMNS = (
    ("Function", "name", ""), ("Device µs", "device_us", ".4g"), ("Interval", "interval", ""), ("Latency µs", "latency_us", ".4g"),
    ("Back to back µs", "throughput_us", ".4g"), ("GFLOP/s", "gflops_per_s", ".4g"), ("GB/s", "gbytes_per_s", ".4g"),
    ("Roofline", "roofline_share", ".0%"), ("Outliers", "outliers", "d"),
)  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Timings side by side."""

    timings: tuple[Timing, ...]

    @property
    def clock_moved(self) -> str:
        """Why the timings must not be compared, "" where they may be."""
        clocks = [t.clock_mhz for t in self.timings if t.clock_mhz]
        if not clocks or max(clocks) <= (1 + CLOCK_MOVED) * min(clocks):
            return ""
        return f"the device's clock moved from {min(clocks):.0f} to {max(clocks):.0f} MHz between the functions: not compared"

    @property
    def fastest(self) -> Timing | None:
        """The fastest, None where its interval meets another's or the clock moved."""
        first, *others = sorted(self.timings, key=lambda t: t.device_us)
        apart = all(first.high_us < other.low_us for other in others)
        return first if others and apart and not self.clock_moved else None

    def rows(self) -> list[list[str]]:
        """The table's cells as text, the header first."""
        made = [[title for title, _, _ in COLUMNS]]
        for timing in self.timings:
            fields = {**timing.to_dict(), "interval": f"{timing.low_us:.4g} to {timing.high_us:.4g}"}
            made.append(["" if fields[key] is None else format(fields[key], form) for _, key, form in COLUMNS])
        return made

    def verdict(self) -> str:
        """Which is the fastest, or why none is said to be."""
        if len(self.timings) < 2:
            return ""
        if self.clock_moved:
            return self.clock_moved
        best = self.fastest
        if best is None:
            return "no function is faster than all others: intervals overlap"
        second = sorted(self.timings, key=lambda t: t.device_us)[1]
        return f"{best.name} is the fastest: {second.device_us / best.device_us:.2f} times as fast as {second.name}"

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        lines = ["  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))) for row in rows]
        return "\n".join([*(line.rstrip() for line in lines), *filter(None, [self.verdict()])])

    def to_json(self) -> str:
        """All timings, and the verdict."""
        return json.dumps({"timings": [t.to_dict() for t in self.timings], "verdict": self.verdict()}, indent=1)

    def to_frame(self) -> pd.DataFrame:
        """A row a function."""
        import pandas as pd

        return pd.DataFrame([t.to_dict() for t in self.timings])

    def _repr_html_(self) -> str:
        from advisor.lab.page import table

        return table(self.rows(), self.verdict())


def bench_all(functions: Mapping[str, Callable[[], object]], *, progress: Callable[[str], None] | None = None, **options: Any) -> Table:
    """Time functions without arguments side by side; options as of `bench`. progress: called with the name of each in turn."""
    if not functions:
        raise UsageError("there is nothing to time", "Give at least one function.")
    timings = []
    for name, fn in functions.items():
        if progress:
            progress(name)
        timings.append(bench(fn, name=name, **options))
    return Table(tuple(timings))


def bench_sizes(
    makers: Mapping[str, Callable[[Any], Callable[[], object]]], sizes: Iterable[Any], **options: Any
) -> dict[Any, Table]:
    """For each size, the functions that the makers make of it, side by side."""
    return {size: bench_all({name: make(size) for name, make in makers.items()}, **options) for size in sizes}


def benchmark_function(fn: Callable[..., object], args: Sequence[Any], warmup: int, iterations: int) -> float:
    """Mean seconds of `iterations` calls of `fn(*args)`, waited for each, after `warmup` calls (compilation included)."""
    if iterations < 1:
        raise UsageError(f"the mean of {iterations} calls is none", "Give 1 iteration or more.")
    call = _waited_for(fn, args, "cpu")
    for _ in range(warmup):
        call()
    # The device is known once the function has run.
    call = _waited_for(fn, args, device_in_use())
    if not warmup:
        synchronize(device_in_use())
    return float(np.mean(_host_times(call, iterations)))


def benchmark_fn(fn: Callable[..., object], args: Sequence[Any], num_warmup: int = 5, num_runs: int = 100) -> float:
    """The same for JAX: every array of the result, whatever its tree, is waited for (`jax.block_until_ready`)."""
    if num_runs < 1:
        raise UsageError(f"the mean of {num_runs} calls is none", "Give 1 run or more.")
    call = _waited_for(fn, args, "jax")
    for _ in range(num_warmup):
        call()
    return float(np.mean(_host_times(call, num_runs)))


@dataclass(frozen=True)
class Batch:
    """One batch size: latency of a call, samples a second, peak memory."""

    batch: int
    p50_ms: float
    p95_ms: float
    samples_per_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Batches:
    """knee: the batch size from which a larger one gains less than a tenth more samples a second for each doubling.
    largest: the largest whose p95 stays within the limit, None without a limit or where none does."""

    rows: tuple[Batch, ...]
    knee: int
    limit_ms: float | None
    largest: int | None

    def __str__(self) -> str:
        lines = [f"{'Batch':>6}{'p50 ms':>10}{'p95 ms':>10}{'Samples/s':>12}{'Peak GB':>9}"]
        lines += [f"{r.batch:>6}{r.p50_ms:>10.3g}{r.p95_ms:>10.3g}{r.samples_per_s:>12.4g}{r.peak_bytes / 1e9:>9.3f}" for r in self.rows]
        lines.append(f"Knee: {self.knee}. Larger batches gain less than a tenth for each doubling.")
        if self.limit_ms is not None:
            found = "none" if self.largest is None else str(self.largest)
            lines.append(f"Largest batch within {self.limit_ms:g} ms (p95): {found}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The rows, the knee and the largest batch within the limit."""
        return json.dumps(asdict(self), indent=1)


KNEE_GAIN = 0.1
"""A doubled batch that brings less than this more is past the knee: latency doubles for almost nothing."""


def bench_batches(
    make: Callable[[int], Callable[[], object]], batches: Sequence[int], *, limit_ms: float | None = None, min_s: float = MIN_S
) -> Batches:
    """Time the function that `make(batch)` makes, for each batch size: latency waited for, p50 and p95, and what it needs."""
    from advisor.lab.memory import measure_memory_usage

    rows = []
    for batch in sorted(set(batches)):
        fn = make(batch)
        _device_of(fn())
        call = _waited_for(fn, (), device_in_use())
        _warm_up(call)
        estimate = max(min(_host_times(call, 3)), 1e-7)
        times = np.array(_host_times(call, int(min(MOST, max(FEWEST, min_s / estimate)))))
        p50, p95 = np.quantile(times, (0.5, 0.95))
        peak = measure_memory_usage(fn).peak_bytes
        rows.append(Batch(batch, 1e3 * float(p50), 1e3 * float(p95), batch / float(p50), peak))
    knee = rows[-1].batch
    for here, larger in pairwise(rows):
        if larger.samples_per_s < here.samples_per_s * (1 + KNEE_GAIN) ** math.log2(larger.batch / here.batch):
            knee = here.batch
            break
    within = [r.batch for r in rows if limit_ms is not None and r.p95_ms <= limit_ms]
    return Batches(tuple(rows), knee, limit_ms, max(within, default=None))
