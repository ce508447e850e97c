"""Hardware counters that were sampled in the window."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from advisor.knowledge.counts import ENOUGH
from advisor.recordings.timeline import Timeline
from advisor.report.kernels import UtilizationRow
from advisor.views.trace.steps import Steps

# Names as nsys writes them, "SMs Active [Throughput %]", or as CUPTI's PM sampling does, in the order in which people ask.
_PCT = r"\.(?:avg|sum|max)\.pct_of_peak_sustained_(?:elapsed|active)$"
_WANTED = {
    "SMs active": re.compile(rf"^SMs Active \[Throughput %\]|^sm__cycles_active{_PCT}"),
    "Tensor Cores active": re.compile(rf"^Tensor Active \[Throughput %\]|^sm__(?:pipe_tensor\w*_cycles_active|inst_executed_pipe_tensor\w*){_PCT}"),
    "DRAM read": re.compile(rf"^DRAM Read Bandwidth \[Throughput %\]|^dram__read_throughput{_PCT}"),
    "DRAM written": re.compile(rf"^DRAM Write Bandwidth \[Throughput %\]|^dram__write_throughput{_PCT}"),
    "DRAM": re.compile(rf"^(?:dram__throughput|gpu__dram_throughput){_PCT}"),
    "PCIe received": re.compile(r"^PCIe RX Throughput \[Throughput %\]"),
    "PCIe sent": re.compile(r"^PCIe TX Throughput \[Throughput %\]"),
}
DRAM = ("DRAM read", "DRAM written")

MIN_SAMPLES = ENOUGH
"""A mean of fewer says nothing of the window."""


class Utilization(msgspec.Struct, frozen=True):
    """Mean utilisation by device and unit, in percent of peak; empty if no counters were sampled."""

    rows: tuple[UtilizationRow, ...]

    def dram_pct(self, device: int) -> float | None:
        """Share of the memory's peak bandwidth that was used, reads and writes together; None if not measured."""
        found = [r.mean_pct for r in self.rows if r.device == device and r.unit in DRAM]
        return sum(found) if len(found) == len(DRAM) else self._pct(device, "DRAM")

    def tensor_pct(self, device: int) -> float | None:
        """Share of the cycles in which Tensor Cores worked; None where not measured."""
        return self._pct(device, "Tensor Cores active")

    def _pct(self, device: int, unit: str) -> float | None:
        return next((r.mean_pct for r in self.rows if r.device == device and r.unit == unit), None)

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps) -> Utilization:
        frame = timeline.gpu_metrics
        if not len(frame):
            return cls(())
        inside = frame[steps.holds(frame["start_us"])]
        rows = []
        for unit, pattern in _WANTED.items():
            names = [n for n in frame["name"].categories if pattern.match(n)]
            chosen = inside["name"].isin(names)
            for device in np.unique(inside["device"][chosen]).tolist():
                samples = inside["value"][chosen & (inside["device"] == device)]
                if len(samples) >= MIN_SAMPLES:
                    rows.append(UtilizationRow(device=device, unit=unit, mean_pct=float(samples.mean()), samples=len(samples)))
        return cls(tuple(rows))
