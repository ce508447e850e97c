"""Holds the true steps that traces give against steps that were timed without a profiler."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from advisor.errors import TraceError
from advisor.knowledge.shares import CONSIDERABLE, HARDLY_ANY
from advisor.knowledge.structs import replace
from advisor.lab import tables
from advisor.lab.svg import BLUE, MARGIN, PLOT, RED, opened
from advisor.sources import load
from advisor.views.replay.replay import Replay
from advisor.views.workspace import Workspace

TOLERANCE = HARDLY_ANY
"""A repeated measurement of a step differs by about this much: a step this close to an interval's end is inside."""

GPU_BOUND = 0.85
"""Share of GPU work in an unprofiled step from which the GPU limits the step."""

ANOTHERS = 1 + CONSIDERABLE
"""A GPU that worked so many times the measured step was not timed in that step, but in a request or a part of it."""

FILE = "true-steps.csv"


@dataclass(frozen=True)
class Held:
    """A recording, a row of a corpus' true-steps.csv. Times are of a step.

    measured_us: without a profiler, the median. gpu_us: the GPU's work in it. recorded_us: as recorded. low_us to high_us: the trace's estimate.

    way: the side of the program, or how it was recorded. trace: next to the table, "" if it is no longer available."""

    program: str
    way: str
    device: str
    stacks: bool
    measured_us: float
    gpu_us: float
    recorded_us: float
    low_us: float
    expected_us: float
    high_us: float
    trace: str = ""

    @property
    def gpu_bound(self) -> bool:
        """Whether the step without a profiler is the GPU's."""
        return self.gpu_us > GPU_BOUND * self.measured_us

    @property
    def error(self) -> float:
        """The factor by which the expected step is too long or too short, minus 1."""
        return float(np.expm1(abs(np.log(self.expected_us / self.measured_us))))

    @property
    def in_interval(self) -> bool:
        """Whether the interval holds the measured step."""
        return self.low_us * (1 - TOLERANCE) <= self.measured_us <= self.high_us * (1 + TOLERANCE)

    @property
    def width(self) -> float:
        """Of the interval, as a share of the expected step."""
        return (self.high_us - self.low_us) / self.expected_us


def standing(directory: Path) -> list[Held]:
    """The table of a corpus, from its file. Raises TraceError."""
    return tables.read(directory / FILE, Held)


def held(directory: Path) -> list[Held]:
    """Every recording of a corpus' table, with a new estimate if its trace is available. Without a table: every trace below the directory with a step
    time in a `manifest.json` or `recordings.json` next to it. Raises TraceError."""
    if (directory / FILE).exists():
        return [_anew(one, directory / one.trace) if one.trace and (directory / one.trace).exists() else one for one in standing(directory)]
    found = [
        one
        for listed in sorted([*directory.rglob("manifest.json"), *directory.rglob("recordings.json")])
        for known, path, gpu_us in _listed(listed)
        if (one := _anew(known, path, gpu_us)).gpu_us < ANOTHERS * one.measured_us
    ]
    if not found:
        raise TraceError(f"{directory} lists no recording with a measured step", "See samples/README.md for the shape of manifest.json.")
    return found


def _listed(path: Path) -> Iterator[tuple[Held, Path, float | None]]:
    """Each recording that a list knows, with its trace and the GPU's time in the measured step."""
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    nothing: dict[str, Any] = {"stacks": False, "gpu_us": 0.0, "recorded_us": 0.0, "low_us": 0.0, "expected_us": 0.0, "high_us": 0.0}
    for name, program in known.get("programs", {}).items():
        for way in program["traces"]:
            one = Held(name, way, program.get("device", ""), measured_us=program["step_us"], **nothing)
            yield one, path.parent / f"{name}.{way}.trace.zst", program["gpu_busy_us"]
    for name, case in known.get("cases", {}).items():
        for side in ("slow", "fixed"):
            trace, ms, gpu_ms = case.get("kineto", {}).get(side), case.get(f"{side}_ms"), case.get("gpu_ms", {}).get(side)
            if trace and ms:
                yield Held(name, side, "", measured_us=1000 * ms, **nothing), path.parent / trace, 1000 * gpu_ms if gpu_ms else None


def _anew(one: Held, path: Path, gpu_us: float | None = None) -> Held:
    """With the trace's estimate of the step. gpu_us: the GPU's work in the measured step. If it is unknown: the known value, or the work in the trace."""
    timeline = load(path)
    replay = Workspace(timeline).get(Replay)
    step = replay.true_step.interval
    return replace(
        one, stacks=timeline.source.stacks, recorded_us=replay.step_us, low_us=step.low, expected_us=step.expected, high_us=step.high,
        gpu_us=gpu_us or one.gpu_us or float(replay.recorded.dur_us.sum()) / replay.recorded.steps,
    )  # fmt: skip


def as_markdown(recordings: Sequence[Held], directory: str) -> str:
    """Both kinds of steps apart, with and without stacks."""
    kinds = (
        ("the host is the bound", [h for h in recordings if not h.gpu_bound]),
        ("… recorded with stacks", [h for h in recordings if not h.gpu_bound and h.stacks]),
        ("the GPU is the bound", [h for h in recordings if h.gpu_bound]),
        ("… recorded with stacks", [h for h in recordings if h.gpu_bound and h.stacks]),
        ("all", recordings),
    )
    lines = [
        "# The true step, held against measured ones",
        "",
        f"Generated by `advisor validate {directory} --steps > docs/true-steps.md`. [`corpus/true-steps.csv`](../corpus/true-steps.csv) has a row for",
        f"each of {len(recordings)} recordings; [how the true step is estimated](true-step.md).",
        "",
        "Each program was timed without a profiler, then recorded. The true step comes from the trace alone. It is off by the factor",
        f"between it and the measured one; the interval holds that if it comes within {TOLERANCE:.0%} of an end; its width is a share of the",
        f"expected step. The GPU is the bound where it works for more than {GPU_BOUND:.0%} of the measured step.",
        "",
        "| Where | Recordings | As recorded, median off | Median off | One in ten more than | Inside | Width, median |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(_row(name, some) for name, some in kinds if some),
        "",
        "![The true step over the measured one](true-steps.svg)",
    ]
    return "\n".join(lines)


def _row(name: str, some: Sequence[Held]) -> str:
    off = sorted(h.error for h in some)
    recorded = median(np.expm1(abs(np.log(h.recorded_us / h.measured_us))) for h in some)
    return (
        f"| {name} | {len(some)} | {recorded:.0%} | {median(off):.0%} | {off[int(0.9 * len(off))]:.0%} | {sum(h.in_interval for h in some) / len(some):.0%} "
        f"| {median(h.width for h in some):.2f} |"
    )


_DECADES = {1: "10 µs", 2: "100 µs", 3: "1 ms", 4: "10 ms", 5: "100 ms", 6: "1 s"}
"""Of the chart, each with its label."""


def as_svg(recordings: Sequence[Held]) -> str:
    """The expected step over the measured step, both on scales of logarithms; on the diagonal they agree."""
    whole = PLOT + 2 * MARGIN

    def x_position(us: float) -> float:
        low, high = min(_DECADES), max(_DECADES)
        return round(PLOT * (np.log10(us) - low) / (high - low), 1)

    lines = [opened(whole, whole)]
    for decade, label in _DECADES.items():
        at = MARGIN + x_position(10.0**decade)
        lines += [
            f'<path d="M{at} {MARGIN}V{MARGIN + PLOT}M{MARGIN} {whole - at}H{MARGIN + PLOT}" stroke="#ddd"/>',
            f'<text x="{at}" y="{MARGIN + PLOT + 16}" text-anchor="middle">{label}</text>',
            f'<text x="{MARGIN - 4}" y="{whole - at + 4}" text-anchor="end">{label}</text>',
        ]
    lines.append(f'<path d="M{MARGIN} {MARGIN + PLOT}L{MARGIN + PLOT} {MARGIN}" stroke="#888" stroke-dasharray="4 4"/>')
    for inside, colour in ((True, BLUE), (False, RED)):
        dots = "".join(f"M{MARGIN + x_position(h.measured_us)} {whole - MARGIN - x_position(h.expected_us)}h.01" for h in recordings if h.in_interval == inside)
        lines.append(f'<path d="{dots}" stroke="{colour}" stroke-opacity=".5" stroke-width="4" stroke-linecap="round"/>')
    lines += [
        f'<text x="{whole / 2}" y="{whole - 8}" text-anchor="middle">measured step without a profiler (red: outside of the interval)</text>',
        f'<text x="{MARGIN}" y="{MARGIN - 12}">true step, from the trace alone</text>',
        "</svg>",
    ]
    return "\n".join(lines)
