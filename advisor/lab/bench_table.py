"""Timings of several functions side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advisor.errors import UsageError
from advisor.lab.bench import Timing, bench

if TYPE_CHECKING:
    import pandas as pd

CLOCK_MOVED = 0.03
"""A device clock that differs by more than this between two functions makes a difference that is none of theirs."""

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


def bench_sizes(makers: Mapping[str, Callable[[Any], Callable[[], object]]], sizes: Iterable[Any], **options: Any) -> dict[Any, Table]:
    """For each size, the functions that the makers make of it, side by side."""
    return {size: bench_all({name: make(size) for name, make in makers.items()}, **options) for size in sizes}
