"""A function over batch sizes: latency, throughput, memory, and the size from which larger batches gain little."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np

from advisor.knowledge.shares import LITTLE
from advisor.lab.bench import FEWEST, MIN_S, MOST, host_times, waited_for, warm_up
from advisor.lab.clock import device_in_use
from advisor.lab.measured import made, ran, theirs
from advisor.lab.memory import measure_memory_usage


@dataclass(frozen=True)
class Batch:
    """A batch size: latency of a call, samples per second, peak memory."""

    batch: int
    p50_ms: float
    p95_ms: float
    samples_per_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Batches:
    """knee: the batch size from which a doubling gains less than a tenth more samples per second. None if every timed doubling gained more.

    largest: the largest size with a p95 within the limit; None without a limit, or if no size is."""

    rows: tuple[Batch, ...]
    knee: int | None
    limit_ms: float | None
    largest: int | None

    def __str__(self) -> str:
        lines = [f"{'Batch':>6}{'p50 ms':>10}{'p95 ms':>10}{'Samples/s':>12}{'Peak GB':>9}"]
        lines += [f"{r.batch:>6}{r.p50_ms:>10.3g}{r.p95_ms:>10.3g}{r.samples_per_s:>12.4g}{r.peak_bytes / 1e9:>9.3f}" for r in self.rows]
        lines.append(
            f"No knee up to {self.rows[-1].batch}: a larger batch may gain more."
            if self.knee is None
            else f"Knee: {self.knee}. Larger batches gain less than a tenth for each doubling."
        )
        if self.limit_ms is not None:
            found = "none" if self.largest is None else str(self.largest)
            lines.append(f"Largest batch within {self.limit_ms:g} ms (p95): {found}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The rows, the knee and the largest batch within the limit."""
        return json.dumps(asdict(self), indent=1)


KNEE_GAIN = LITTLE
"""A doubled batch that brings less than this more is past the knee: latency doubles for almost nothing."""


def bench_batches(make: Callable[[int], Callable[[], object]], batches: Sequence[int], *, limit_ms: float | None = None, min_s: float = MIN_S) -> Batches:
    """Time the function that `make(batch)` returns, for each batch size: synchronised latency, p50 and p95, and memory."""
    rows = []
    for batch in sorted(set(batches)):
        fn = made(make, batch)
        with theirs():
            ran(fn())
        call = waited_for(fn, (), device_in_use())
        warm_up(call)
        estimate = max(min(host_times(call, 3)), 1e-7)
        times = np.array(host_times(call, int(min(MOST, max(FEWEST, min_s / estimate)))))
        p50, p95 = np.quantile(times, (0.5, 0.95))
        peak = measure_memory_usage(fn).peak_bytes
        rows.append(Batch(batch, 1e3 * float(p50), 1e3 * float(p95), batch / float(p50), peak))
    knee = None
    for here, larger in pairwise(rows):
        if larger.samples_per_s < here.samples_per_s * (1 + KNEE_GAIN) ** math.log2(larger.batch / here.batch):
            knee = here.batch
            break
    within = [r.batch for r in rows if limit_ms is not None and r.p95_ms <= limit_ms]
    return Batches(tuple(rows), knee, limit_ms, max(within, default=None))
