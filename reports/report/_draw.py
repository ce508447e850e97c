"""What the page's script draws, as JSON that no name can break out of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from advisor.report.charts import Cut, Leaf, MemoryCurve, Moment, Picture, StepTimes
from advisor.report.model import KernelRow, Report
from advisor.report.roofline import PRECISIONS, Reach, peaks_of, reach
from advisor.reports._clean import clip, visible
from advisor.reports.report._thin import thin

NAME = 160
"""Characters of a name in a chart."""
POINTS, STEPS = 60, 400
_DEEPEST, _DEEPEST_OF_MOMENT = 12, 8
# `</script>` and `<!--` would end the element; U+2028 and U+2029 end lines for older parsers.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def shown(picture: Picture, text: int) -> Picture:
    """The picture with the names that stand in tables made visible and clipped."""

    def fit(name: str) -> str:
        return clip(visible(name), text)

    return replace(
        picture,
        leaves=tuple(replace(leaf, path=tuple(fit(part) for part in leaf.path)) for leaf in picture.leaves),
        ops=tuple(replace(row, name=fit(row.name)) for row in picture.ops),
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
        name = clip(visible(cut.names[cut.name[longest]]), NAME)
        made.append(
            LaneRow(
                clip(visible(lane.label), NAME),
                len(rows),
                float(cut.slice_dur_us[outer].sum()),
                name,
                float(cut.slice_dur_us[longest]),
            )
        )
    return made


def embedded(report: Report, picture: Picture | None, slices: int) -> str:
    """The charts' data: of the report as shown, and of the picture with at most so many slices of the step."""
    data: dict[str, Any] = {"roofline": _roofline(report), "tree": _tree(_leaves(report, picture))}
    if picture:
        data |= {
            "step": _cut(picture.step, slices, _DEEPEST) if picture.step else None,
            "span": [_number(time - picture.step.start_us) for time in picture.step_span_us] if picture.step else [],
            "moments": [_moment(moment, slices // 16) if moment else None for moment in picture.moments[: len(report.findings)]],
            "steps": _steps(picture.steps),
            "memory": [_memory(curve) for curve in picture.memory],
        }
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


class _Names:
    """Texts made fit to show, each once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._at: dict[str, int] = {}

    def code(self, text: str) -> int:
        shown = clip(visible(text), NAME)
        if shown not in self._at:
            self._at[shown] = len(self.texts)
            self.texts.append(shown)
        return self._at[shown]


def _number(value: float, digits: int = 3) -> float | int:
    """As JSON writes it in few characters; 0 for what is no number."""
    rounded = round(float(value), digits) if isfinite(value) else 0.0
    return int(rounded) if rounded == int(rounded) else rounded


def _numbers(values: Iterable[float], digits: int = 3) -> list[float | int]:
    return [_number(value, digits) for value in values]


def _cut(cut: Cut, most: int, deepest: int) -> dict[str, Any]:
    """Columns; times are µs from the cut's start."""
    rows = thin(cut, most, deepest)
    names = _Names()
    launcher = cut.launched_by[rows.longest]
    return {
        "at": _number(cut.start_us),
        "dur": _number(cut.end_us - cut.start_us),
        "lanes": [[clip(visible(lane.label), NAME), lane.side] for lane in cut.lanes],
        "lane": rows.lane.tolist(),
        "depth": rows.depth.tolist(),
        "start": _numbers(rows.start_us - cut.start_us),
        "len": _numbers(rows.end_us - rows.start_us),
        "name": [names.code(cut.names[code]) for code in cut.name[rows.longest].tolist()],
        "op": [names.code(cut.names[code]) if code >= 0 else -1 for code in cut.op[rows.longest].tolist()],
        "kind": cut.kind[rows.longest].tolist(),
        "by": np.where(launcher >= 0, rows.of[launcher], -1).tolist() if len(rows.of) else [],
        "count": rows.count.tolist(),
        "names": names.texts,
        "kinds": list(cut.kinds),
        "deep": int((cut.depth >= deepest).sum()),
        "left": cut.left_out,
    }


def _moment(moment: Moment, most: int) -> dict[str, Any]:
    start = moment.cut.start_us
    marks = [[mark.lane, _number(mark.start_us - start), _number(mark.end_us - mark.start_us)] for mark in moment.marks]
    return {"cut": _cut(moment.cut, most, _DEEPEST_OF_MOMENT), "marks": marks}


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


def _roofline(report: Report) -> dict[str, Any] | None:
    """The device's roofs and the kernels under them; None where either is not known."""
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
    return [clip(visible(row.name), NAME), row.family, row.precision, _number(row.total_us), _number(row.share, 5), *rates]


def _leaves(report: Report, picture: Picture | None) -> Iterable[Leaf]:
    """GPU time by module and op; of a saved report by family and op."""
    return picture.leaves if picture else [_leaf(row) for row in report.kernels]


def _leaf(row: KernelRow) -> Leaf:
    return Leaf(tuple(part for part in (row.op or row.family, row.name) if part), row.family, row.total_us, row.calls)


def _tree(leaves: Iterable[Leaf]) -> dict[str, Any]:
    names = _Names()
    rows = [[[names.code(part) for part in leaf.path], leaf.family, _number(leaf.total_us), leaf.calls] for leaf in leaves]
    return {"names": names.texts, "leaves": rows}
