"""Where in the trace a finding shows: repeats folded into a few rows, most time first, each with the user's line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints
from advisor.knowledge.counts import SHOWN
from advisor.recordings.columns import Categorical, row_by_row
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Evidence, SourceLine
from advisor.views.trace.launches import Launches
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.waited_calls import LOOKED_AT


class CompiledLines(msgspec.Struct, frozen=True):
    """of_gpu: (n_gpu,) positions in `lines`, -1 without a line of the compiler.

    A compiled module with instructions of a single line is a single op that the framework compiled by itself. It has the line of its first run but also
    runs from other lines, so it is left out here: its launch shows more.
    """

    of_gpu: Ints
    lines: tuple[SourceLine, ...]

    def most_common(self, rows: Ints) -> SourceLine | None:
        """The line that most of these GPU ops come from, None if none is known."""
        counted = Counter(self.of_gpu[rows[self.of_gpu[rows] >= 0]].tolist())
        return self.lines[counted.most_common(1)[0][0]] if counted else None

    @classmethod
    def build(cls, timeline: Timeline) -> CompiledLines:
        frame = timeline.compiled_ops
        rows = list(zip(frame["module"], frame["file"], frame["line"].tolist(), strict=True))
        modules = Counter(module for module, _, _ in {row for row in rows if row[1]})
        lines: dict[SourceLine, int] = {}
        stacks = timeline.source.stacks
        of_row = [
            lines.setdefault(SourceLine(file=str(file), line=int(line)), len(lines)) if file and (modules[module] > 1 or not stacks) else -1
            for module, file, line in rows
        ]
        return cls(row_by_row(np.array([*of_row, -1], np.int64).__getitem__, timeline.gpu_ops["compiled"]), tuple(lines))


ROWS = SHOWN
"""Rows of evidence a finding shows; the rest is counted in the last one."""


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
    order = np.argsort(-total, kind="stable")

    def row(label: str, members: Ints, us: float, line: SourceLine | None) -> Evidence:
        return Evidence(label=label, start_us=float(start_us[members].min()), dur_us=us, count=len(members), device=_shared(device, members), source=line)

    alike = [np.flatnonzero(group == value) for value in order[:ROWS]]
    rows = [row(str(values[v]), at, float(total[v]), source(at) if source else None) for v, at in zip(order[:ROWS], alike, strict=True)]
    if len(order) > ROWS:
        others = np.flatnonzero(np.isin(group, order[ROWS:]))
        rows.append(row(f"({len(order) - ROWS} more kinds)", others, float(dur_us[others].sum()), None))
    return tuple(rows)


def _shared(device: Ints | None, members: Ints) -> int | None:
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
        return folded(labels, frame["start_us"][rows], frame["dur_us"][rows], source=lambda members: self.sources.most_common(rows[members[:LOOKED_AT]]))

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, sources: Sources, compiled: CompiledLines) -> Witness:
        return cls(timeline, launches, sources, compiled)
