"""When the host compiles, which dimension it compiles again for, and what the compiler logged of it."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from advisor.intervals import Floats, Spans, joined, overlap_with
from advisor.knowledge import cuda_api
from advisor.recordings.timeline import Timeline
from advisor.report.compile_log import CompileCost, CompileCosts
from advisor.views.replay.host_time import HostTime
from advisor.views.trace.compile_costs import CompileCostTable
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches
from advisor.views.trace.table_filters import matches, spans_of

_LOADS = re.compile(r"^cu(Module|Library)LoadData")


def compiling_spans(timeline: Timeline, host: HostActivity, host_time: HostTime, launches: Launches, told: Spans) -> tuple[Spans, bool]:
    """Host time in which code is compiled, and whether the trace says so directly."""
    if len(told[0]):
        return told, True
    calls = timeline.api_calls
    loads = matches(calls, _LOADS) & host.on_threads(calls) & (launches.roles == list(cuda_api.ApiRole).index(cuda_api.ApiRole.OTHER))
    if not loads.any():
        return told, False
    # The new module was compiled in the pause that ends with loading it.
    holding = overlap_with(host_time.spans.start_us, host_time.spans.end_us, spans_of(calls, loads)) > 0
    return joined((host_time.spans.start_us[holding], host_time.spans.end_us[holding])), False


def changing_dimension(varying: tuple[str, str]) -> tuple[int, Floats] | None:
    """The one dimension in which two shapes differ, and its sizes."""
    a, b = (np.array([int(n) for n in text.strip("[]").split(",")], float) for text in varying)
    if len(a) != len(b) or (a != b).sum() != 1:
        return None
    at = int(np.argmax(a != b))
    return at, np.array([a[at], b[at]])


class LoggedCompiles(msgspec.Struct, frozen=True):
    """What torch.compile logged, priced as the host spends it when nobody records. costs: with each price that can be corrected for what recording added. spans: (n_rows,) of each line's, in the trace's own time. calls: (n_rows,) of the graphs behind its breaks."""

    costs: CompileCosts
    spans: tuple[Spans, ...]
    calls: tuple[Spans, ...]

    @classmethod
    def build(cls, table: CompileCostTable, host_time: HostTime | None) -> LoggedCompiles:
        rows = table.costs.rows
        if host_time and not host_time.unseen:
            rows = tuple(_corrected(row, spans, host_time) for row, spans in zip(rows, table.spans, strict=True))
        return cls(msgspec.structs.replace(table.costs, rows=rows), table.spans, table.calls)

    def of(self, kind: str) -> list[tuple[CompileCost, Spans]]:
        """The priced lines of a kind, most expensive first."""
        return [(row, spans) for row, spans in zip(self.costs.rows, self.spans, strict=True) if row.kind == kind and row.us]

    def graphs(self) -> Spans:
        """The graphs behind all breaks, disjoint and sorted."""
        return joined(*self.calls) if self.calls else (np.zeros(0), np.zeros(0))

    def unpriced(self, kind: str) -> list[CompileCost]:
        """Those of a kind that the trace does not price."""
        return [row for row in self.costs.rows if row.kind == kind and row.us is None]


def together(priced: list[tuple[CompileCost, Spans]]) -> Spans:
    """The spans of several lines, disjoint and sorted."""
    return joined(*(spans for _, spans in priced)) if priced else (np.zeros(0), np.zeros(0))


def _corrected(row: CompileCost, spans: Spans, host_time: HostTime) -> CompileCost:
    """The price is made of the median, the correction of all spans: the share of their time that is left where nobody records."""
    recorded = float(host_time.covered_us(spans).sum()) / host_time.recorded.steps
    if row.us is None or recorded <= 0:
        return row
    return msgspec.structs.replace(row, unprofiled_us=row.us * min(host_time.spent_us(spans) / recorded, 1.0))
