"""Where in the program the compiler says that GPU ops come from."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.recordings.timeline import Timeline
from advisor.report.finding import SourceLine


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
        return cls(np.array([*of_row, -1], np.int64)[timeline.gpu_ops["compiled"]], tuple(lines))
