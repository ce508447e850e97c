"""What the hardware measured of itself in the window, where its counters were sampled."""

from __future__ import annotations

import re
from dataclasses import dataclass

from advisor.recordings.timeline import Timeline
from advisor.report.kernels import UtilizationRow
from advisor.views.trace.steps import Steps

# Names as nsys writes them, "SMs Active [Throughput %]", in the order in which people ask.
_WANTED = {
    "SMs active": re.compile(r"^SMs Active \[Throughput %\]"),
    "Tensor Cores active": re.compile(r"^Tensor Active \[Throughput %\]"),
    "DRAM read": re.compile(r"^DRAM Read Bandwidth \[Throughput %\]"),
    "DRAM written": re.compile(r"^DRAM Write Bandwidth \[Throughput %\]"),
    "PCIe received": re.compile(r"^PCIe RX Throughput \[Throughput %\]"),
    "PCIe sent": re.compile(r"^PCIe TX Throughput \[Throughput %\]"),
}
DRAM = ("DRAM read", "DRAM written")

MIN_SAMPLES = 5
"""A mean of fewer says nothing of the window."""


@dataclass(frozen=True)
class Utilization:
    """Mean utilisation by device and unit, in percent of peak; empty if no counters were sampled."""

    rows: tuple[UtilizationRow, ...]

    def dram_pct(self, device: int) -> float | None:
        """Share of the memory's peak bandwidth that was used, reads and writes together; None if not measured."""
        found = [r.mean_pct for r in self.rows if r.device == device and r.unit in DRAM]
        return sum(found) if len(found) == len(DRAM) else None

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps) -> Utilization:
        frame = timeline.gpu_metrics
        if not len(frame):
            return cls(())
        inside = frame[steps.holds(frame["start_us"].to_numpy())]
        rows = []
        for unit, pattern in _WANTED.items():
            names = [n for n in frame["name"].cat.categories if pattern.match(n)]
            for device, samples in inside[inside["name"].isin(names)].groupby("device")["value"]:
                if len(samples) >= MIN_SAMPLES:
                    rows.append(UtilizationRow(device=int(str(device)), unit=unit, mean_pct=float(samples.mean()), samples=len(samples)))
        return cls(tuple(rows))
