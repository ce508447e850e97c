"""What the page's script draws, as JSON that no name can break out of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from advisor.knowledge.structs import replace
from advisor.report.charts import Cut, Leaf, MemoryCurve, Picture, QueueCurve, StepTimes
from advisor.report.kernels import KernelRow
from advisor.report.model import Report
from advisor.report.roofline import PRECISIONS, Reach, peaks_of, reach
from advisor.reports._clean import shortened
from advisor.reports._names import short
from advisor.reports.report._queue import points
from advisor.reports.report._wide import shown_moment, wide

NAME = 160
"""Characters of a name in a chart."""
POINTS, STEPS = 60, 400
# `</script>` and `<!--` would end the element; U+2028 and U+2029 end lines for older parsers.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def shown(picture: Picture, text: int) -> Picture:
    """The picture with the names that are in tables made visible and clipped."""

    def fit(name: str) -> str:
        return shortened(name, text)

    return replace(
        picture,
        leaves=tuple(replace(leaf, path=tuple(fit(part) for part in leaf.path)) for leaf in picture.leaves),
        copies=tuple(replace(row, what=fit(row.what)) for row in picture.copies),
    )


class LaneRow(NamedTuple):
    """A lane in numbers, for those who do not see the chart."""

    label: str
    slices: int
    total_us: float
    longest: str
    longest_us: float


def lanes(cut: Cut) -> list[LaneRow]:
    """Each lane of a cut: its slices, the time of the outermost, and the longest."""
    made = []
    for number, lane in enumerate(cut.lanes):
        rows = np.flatnonzero(cut.lane == number)
        outer = rows[cut.depth[rows] == 0]
        longest = int(rows[cut.slice_dur_us[rows].argmax()])
        name = shortened(cut.names[cut.name[longest]], NAME)
        made.append(
            LaneRow(
                shortened(lane.label, NAME),
                len(rows),
                float(cut.slice_dur_us[outer].sum()),
                name,
                float(cut.slice_dur_us[longest]),
            )
        )
    return made


def embedded(report: Report, picture: Picture | None, slices: int) -> str:
    """The charts' data: of the report as shown, and of the picture with at most so many slices of the step."""
    names = _Names()
    data: dict[str, Any] = {"roofline": _roofline(report), "tree": _tree(_leaves(report, picture), names)}
    if picture:
        data |= {
            **_timeline(picture, slices, names, len(report.findings)),
            "hostTree": _tree(picture.host_leaves, names),
            "steps": _steps(picture.steps),
            "memory": [_memory(curve) for curve in picture.memory],
            "queues": [_queue(curve, picture.window_us) for curve in picture.queues],
        }
    data |= {"names": names.texts, "short": names.shorts}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def _timeline(picture: Picture, slices: int, names: _Names, findings: int) -> dict[str, Any]:
    """The timeline, the representative step and the findings' moments on it."""
    cut = picture.whole
    if cut is None or picture.step is None:
        return {"timeline": None, "span": [], "moments": []}
    moments = picture.moments[:findings]
    whole = [(picture.step.start_us, picture.step.end_us), *((m.cut.start_us, m.cut.end_us) for m in moments if m)]
    return {
        "timeline": wide(cut, slices, names.code, whole),
        "view": [_number(picture.step.start_us - cut.start_us), _number(picture.step.end_us - cut.start_us)],
        "span": [_number(time - cut.start_us) for time in picture.step_span_us],
        "moments": [shown_moment(moment, cut) if moment else None for moment in moments],
    }


class _Names:
    """Texts made fit to show, each once, and how people say those that are long."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.shorts: dict[int, str] = {}
        self._at: dict[str, int] = {}

    def code(self, text: str) -> int:
        shown = shortened(text, NAME)
        if shown not in self._at:
            self._at[shown] = len(self.texts)
            if (said := short(shown)) != shown:
                self.shorts[len(self.texts)] = said
            self.texts.append(shown)
        return self._at[shown]


def _number(value: float, digits: int = 3) -> float | int:
    """As JSON writes it in few characters; 0 for what is no number."""
    rounded = round(float(value), digits) if isfinite(value) else 0.0
    return int(rounded) if rounded == int(rounded) else rounded


def _numbers(values: Iterable[float], digits: int = 3) -> list[float | int]:
    return [_number(value, digits) for value in values]


def _steps(steps: StepTimes) -> dict[str, Any]:
    parts = (steps.compute_us, steps.communication_us, steps.copy_us, steps.memset_us, steps.idle_us)
    keys = ("compute", "exposed_comm", "exposed_copy", "exposed_memset", "idle")
    return {
        "period": _numbers(steps.period_us[:STEPS], 1),
        "parts": {key: _numbers(part[:STEPS], 1) for key, part in zip(keys, parts, strict=True)},
        "outlier": np.flatnonzero(steps.outlier[:STEPS]).tolist(),
        "middle": steps.middle,
        "all": len(steps.period_us),
    }


def _memory(curve: MemoryCurve) -> dict[str, Any]:
    return {
        "device": curve.device,
        "time": _numbers(curve.time_us - curve.time_us[0] if len(curve.time_us) else [], 1),
        "used": curve.allocated_bytes.tolist(),
        "held": curve.reserved_bytes.tolist(),
    }


QUEUE_POINTS = 600
"""Of a curve: a chart is about this many pixels wide."""


def _queue(curve: QueueCurve, window_us: tuple[float, float]) -> dict[str, Any]:
    found = points(curve, *window_us, QUEUE_POINTS)
    return {
        "device": curve.device,
        "time": _numbers(found.time_us - window_us[0], 1),
        "end": _number(window_us[1] - window_us[0], 1),
        "used": found.most.tolist(),
        "held": [] if (found.least == found.most).all() else found.least.tolist(),
    }


def _roofline(report: Report) -> dict[str, Any] | None:
    """The device's roofs and the kernels under them; None if either is not known."""
    peaks = peaks_of(report)
    found = [(row, at) for row in report.kernels if (at := reach(row, peaks)) and at.intensity > 0]
    if peaks is None or not found:
        return None
    found = sorted(found, key=lambda pair: -pair[0].total_us)[:POINTS]
    used = {row.precision or "fp32" for row, _ in found}
    return {
        "device": peaks.name,
        "gbps": peaks.memory_gbps,
        "roofs": [[name, rate / 1e12] for name in PRECISIONS if name in used and (rate := peaks.flops_per_s(name))],
        "points": [_point(row, at) for row, at in found],
    }


def _point(row: KernelRow, at: Reach) -> list[Any]:
    rates = _numbers((at.intensity, row.tflops, row.gbps, at.share), 5)
    return [shortened(row.name, NAME), row.family, row.precision, _number(row.total_us), _number(row.share, 5), *rates]


def _leaves(report: Report, picture: Picture | None) -> Iterable[Leaf]:
    """GPU time by module and op; of a saved report by family and op."""
    return picture.leaves if picture else [_leaf(row) for row in report.kernels]


def _leaf(row: KernelRow) -> Leaf:
    return Leaf(tuple(part for part in (row.op or row.family, row.name) if part), row.family, row.total_us, row.calls)


def _tree(leaves: Iterable[Leaf], names: _Names) -> list[list[Any]]:
    """Path, family, µs and calls of each; the line of the program is at `modules` of the path, for those who want it."""
    return [
        [[names.code(part) for part in leaf.path], leaf.family, _number(leaf.total_us), leaf.calls, names.code(leaf.line) if leaf.line else -1, leaf.modules]
        for leaf in leaves
    ]
