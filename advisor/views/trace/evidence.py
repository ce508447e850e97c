"""Where in the trace a finding shows: repeats folded into a few rows, most time first, each with the user's line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask
from advisor.recordings.columns import Categorical
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Evidence, SourceLine
from advisor.views.trace.compiled_lines import CompiledLines
from advisor.views.trace.launches import Launches
from advisor.views.trace.source_lines import Sources

ROWS = 8
"""Rows of evidence a finding shows; the rest is counted in the last one."""

LOOKED_AT = 50
"""Members of a row whose line in the source is looked up."""


def folded(
    labels: Sequence[str] | np.ndarray,
    start_us: Floats,
    dur_us: Floats,
    *,
    device: Ints | None = None,
    source: Callable[[Ints], SourceLine | None] | None = None,
) -> tuple[Evidence, ...]:
    """A row per distinct label: first start, total duration and count. `device` is each member's; a row has it if all its members share it. `source` gets
    the positions of a row's members.
    """
    texts = Categorical.of_texts(labels)
    group, values = texts.codes, texts.categories
    total = np.bincount(group, weights=dur_us, minlength=len(values))
    rows = []
    for value in np.argsort(-total, kind="stable")[:ROWS]:
        members = np.flatnonzero(group == value)
        rows.append(
            Evidence(
                label=str(values[value]),
                start_us=float(start_us[members].min()),
                dur_us=float(total[value]),
                count=len(members),
                device=_shared(device, members),
                source=source(members) if source else None,
            )
        )
    rest = len(values) - ROWS
    if rest > 0:
        others = ~np.isin(group, np.argsort(-total, kind="stable")[:ROWS])
        rows.append(
            Evidence(
                label=f"({rest} more kinds)",
                start_us=float(start_us[others].min()),
                dur_us=float(dur_us[others].sum()),
                count=int(others.sum()),
                device=_shared(device, others),
            )
        )
    return tuple(rows)


def _shared(device: Ints | None, members: Ints | Mask) -> int | None:
    """The device of all these, None if they are of several."""
    if device is None or (device[members] != device[members][0]).any():
        return None
    return int(device[members][0])


class Witness(msgspec.Struct, frozen=True):
    """Evidence of rows of the trace's tables."""

    timeline: Timeline
    launches: Launches
    sources: Sources
    compiled: CompiledLines

    def of_gpu(self, rows: Ints, labels: Sequence[str]) -> tuple[Evidence, ...]:
        """Of rows of `gpu_ops`, with the lines that launched them."""
        frame = self.timeline.gpu_ops
        return folded(
            labels,
            frame["start_us"][rows],
            frame["dur_us"][rows],
            device=frame["device"][rows],
            source=lambda members: self.line_of_gpu(rows[members[:LOOKED_AT]]),
        )

    def line_of_gpu(self, rows: Ints) -> SourceLine | None:
        """The line of most of some GPU ops: by the compiler for compiled code, else the line that launched them."""
        return self.compiled.most_common(rows) or self.sources.most_common(self.launches.call[rows])

    def of_calls(self, rows: Ints, labels: Sequence[str]) -> tuple[Evidence, ...]:
        """Of rows of `api_calls`, with the lines that made them."""
        frame = self.timeline.api_calls
        return folded(
            labels,
            frame["start_us"][rows],
            frame["dur_us"][rows],
            source=lambda members: self.sources.most_common(rows[members[:LOOKED_AT]]),
        )

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, sources: Sources, compiled: CompiledLines) -> Witness:
        return cls(timeline, launches, sources, compiled)
