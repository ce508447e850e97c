"""What calls of a function took, and several functions side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from advisor.knowledge.shares import NO_DIFFERENCE

if TYPE_CHECKING:
    import pandas as pd

CLOCK_MOVED = NO_DIFFERENCE
"""A device clock that differs by more than this between two functions may be all that makes them differ."""


def _four(value: float) -> str:
    """Four significant digits, without an exponent for large numbers."""
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"


COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("Function", "name", str), ("Device µs", "device_us", _four), ("Interval", "interval", str), ("Latency µs", "latency_us", _four),
    ("Back to back µs", "throughput_us", _four), ("GFLOP/s", "gflops_per_s", _four), ("GB/s", "gbytes_per_s", _four),
    ("Roofline", "roofline_share", "{:.0%}".format), ("Outliers", "outliers", str),
)  # fmt: skip


@dataclass(frozen=True)
class Timing:
    """Times of calls of a function, in µs.

    device_us: on the device, the queue kept full, median; low_us to high_us is its 95 % confidence interval. latency_us: single calls with a wait after each,
    as for a caller who needs the result. throughput_us: a call of many back to back. On a CPU, the three are a single measurement. flops, moved_bytes: of a
    call, None if not known. least_us: by the device's peaks. clock_mhz: of the device after it, None if it cannot be read."""

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
        """The shortest time that the device's peaks allow over the measured time."""
        return None if self.least_us is None else self.least_us / self.device_us

    def to_dict(self) -> dict[str, Any]:
        """The fields and rates, for JSON."""
        return {**asdict(self), "gflops_per_s": self.gflops_per_s, "gbytes_per_s": self.gbytes_per_s, "roofline_share": self.roofline_share}

    def __str__(self) -> str:
        return str(Table((self,)))

    def _repr_html_(self) -> str:
        return Table((self,))._repr_html_()


@dataclass(frozen=True)
class Table:
    """Timings side by side."""

    timings: tuple[Timing, ...]

    @property
    def clock_moved(self) -> str:
        """Why the timings must not be compared, "" if they may be."""
        clocks = [t.clock_mhz for t in self.timings if t.clock_mhz]
        if not clocks or max(clocks) <= (1 + CLOCK_MOVED) * min(clocks):
            return ""
        return f"the device's clock moved from {min(clocks):.0f} to {max(clocks):.0f} MHz between the functions: not compared"

    @property
    def fastest(self) -> Timing | None:
        """The fastest, None if its interval meets another's or the clock moved."""
        first, *others = sorted(self.timings, key=lambda t: t.device_us)
        apart = all(first.high_us < other.low_us for other in others)
        return first if others and apart and not self.clock_moved else None

    def rows(self) -> list[list[str]]:
        """The table's cells as text, the header first."""
        made = [[title for title, _, _ in COLUMNS]]
        for timing in self.timings:
            fields = {**timing.to_dict(), "interval": f"{_four(timing.low_us)} to {_four(timing.high_us)}"}
            made.append(["" if fields[key] is None else write(fields[key]) for _, key, write in COLUMNS])
        return made

    def verdict(self) -> str:
        """The fastest, or why none is named."""
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
