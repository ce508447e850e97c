"""Repeats folded into a few rows of evidence, most time first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from advisor.intervals import Ints
from advisor.report.model import Evidence, SourceLine
from advisor.rules._phrases import a_step, milliseconds
from advisor.timeline import Timeline
from advisor.views.trace.evidence import folded

__all__ = ["a_step", "folded", "gpu_evidence", "milliseconds"]


def gpu_evidence(
    timeline: Timeline, rows: Ints, labels: Sequence[str], source: Callable[[Ints], SourceLine | None] | None = None
) -> tuple[Evidence, ...]:
    """Evidence of rows of `gpu_ops`."""
    ops = timeline.gpu_ops
    device = int(ops["device"].to_numpy()[rows[0]])
    return folded(labels, ops["start_us"].to_numpy()[rows], ops["dur_us"].to_numpy()[rows], device=device, source=source)
