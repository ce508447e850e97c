"""Places of a finding's evidence in the trace, and the section that shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from advisor.intervals import Ints
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Timeline
from advisor.report.charts import PIXELS, ROWS, Cut, Mark, Moment
from advisor.report.finding import Evidence, Finding
from advisor.views.charts.slices import Cutter

SLICES = 10 * PIXELS
"""Of one moment: a viewer shows no more at once."""

_SAME_US = 1e-6
"""Evidence carries the start of its first row as it is in a table; only a saved one is off by rounding."""


class Occurrence(NamedTuple):
    """One occurrence of an evidence: a row of a table."""

    side: str
    name: str
    start_us: float
    dur_us: float
    thread: tuple[int, int] | None = None


def moment(cutter: Cutter, finding: Finding) -> Moment | None:
    """The first occurrence of the finding's largest evidence with what went on around it; None if nothing was recorded."""
    first = finding.evidence[0]
    mean = first.dur_us / max(first.count, 1)
    found = _occurrence(cutter, first) or Occurrence("", "", first.start_us, mean)
    pad = _margin_us(found.dur_us)
    cut = cutter.cut(found.start_us - pad, found.start_us + found.dur_us + pad, SLICES)
    if not len(cut.lane):
        return None
    others = [other for evidence in finding.evidence[1:] if (other := _occurrence(cutter, evidence)) and other.side == found.side]
    marks = [Mark(-1, found.start_us, found.start_us + found.dur_us), *_marks(cut, [found, *others])]
    return Moment(cut, tuple(marks[:ROWS]) if found.side != "gpu" else tuple(marks[1 : ROWS + 1]), first.label)


def _margin_us(dur_us: float) -> float:
    """Context on either side: the neighbours of a short span, a third of a long one."""
    return max(0.35 * dur_us, min(3 * dur_us, 150.0), 25.0)


def _occurrence(cutter: Cutter, evidence: Evidence) -> Occurrence | None:
    """The row at which the evidence begins: of a gap, a GPU op, or the host's tables."""
    mean = evidence.dur_us / max(evidence.count, 1)
    candidates = list(_candidates(cutter, evidence))
    # Nested rows begin together; a gap or GPU op stands for itself.
    named = [c for c in candidates if c.side != "host"] or [c for c in candidates if c.name and c.name in evidence.label] or candidates
    return min(named, key=lambda c: abs(c.dur_us - mean), default=None)


def _candidates(cutter: Cutter, evidence: Evidence) -> Iterator[Occurrence]:
    timeline, gaps, main = cutter.timeline, cutter.gaps, cutter.partition.main
    if evidence.thread is None and main is not None and evidence.device in (None, main.device):
        for row in _moment_of(gaps.start_us, evidence.start_us):
            cause = str(gaps.main_causes(row))
            yield Occurrence("idle", cause, float(gaps.start_us[row]), float(gaps.dur_us[row]))
    if evidence.thread is None:
        for row in _moment_of(timeline.gpu_ops["start_us"], evidence.start_us):
            if evidence.device in (None, int(timeline.gpu_ops["device"][row])):
                yield _row(timeline.gpu_ops, row, "gpu")
    for frame in _host_tables(timeline):
        for row in _moment_of(frame["start_us"], evidence.start_us):
            if evidence.thread in (None, int(frame["tid"][row])):
                yield _row(frame, row, "host")


def _host_tables(timeline: Timeline) -> tuple[Table, ...]:
    return (timeline.api_calls, timeline.cpu_ops, timeline.annotations, timeline.python_calls, timeline.overheads, timeline.os_calls)


def _moment_of(start: np.ndarray, time_us: float) -> Ints:
    first, last = np.searchsorted(start, [time_us - _SAME_US, time_us + _SAME_US])
    return np.arange(first, last)


def _row(frame: Table, row: int, side: str) -> Occurrence:
    thread = (int(frame["pid"][row]), int(frame["tid"][row])) if side == "host" else None
    return Occurrence(side, str(frame["name"][row]), float(frame["start_us"][row]), float(frame["dur_us"][row]), thread)


def _marks(cut: Cut, found: list[Occurrence]) -> Iterator[Mark]:
    """All slices of the cut that are of the same kind as an occurrence."""
    sides = np.array([lane.side for lane in cut.lanes], object)[cut.lane]
    names = np.array(cut.names, object)[cut.name]
    wanted = np.zeros(len(names), bool)
    for one in found:
        wanted |= (sides == one.side) & (names == one.name)
    for row in np.flatnonzero(wanted).tolist():
        start = float(cut.slice_start_us[row])
        yield Mark(int(cut.lane[row]), start, start + float(cut.slice_dur_us[row]))
