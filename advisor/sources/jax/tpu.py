"""Planes of TPUs as a profile of cores: meaning of each line of a core, and properties of each op."""

from __future__ import annotations

import math
import re

import numpy as np

from advisor.intervals import Ints
from advisor.recordings.timeline import ReadIssue
from advisor.recordings.tpu import Runs, TpuCore, TpuOp, TpuProfile
from advisor.sources.jax.planes import Line, Plane, Stat, Stats
from advisor.sources.limits import LARGEST, LONGEST_NS

CORE = re.compile(r"/device:TPU:(?P<number>\d{1,6})")
"""A core's plane; those of its other units have more in their names: `/device:TPU:0 SparseCore 1`."""

_STEPS, _PROGRAMS, _OPS, _BESIDE, _WAITS = "Steps", "XLA Modules", "XLA Ops", "Async XLA Ops", "XLA TraceMe"
LINES = (_STEPS, _PROGRAMS, _OPS, _BESIDE, _WAITS)
_FOR_OTHERS = "barrier-cores"
_NUMBER = re.compile(r"\(\d+\)$")
_LONGEST_PS = 1000 * LONGEST_NS
_HOLDS = ("while", "conditional", "call")
"""Categories of ops that contain others: their properties are those of the contained ops."""


class Tpu:
    """Collects the cores of a profile."""

    def __init__(self) -> None:
        self.cores: list[TpuCore] = []
        self.ops: dict[TpuOp, int] = {}
        self.programs: dict[str, int] = {}
        self.events = self.bad_times = self.unread = 0
        self._base_ns: int | None = None

    def add(self, plane: Plane) -> None:
        """Add a plane of a TPU."""
        match = CORE.fullmatch(plane.name)
        if match is None:
            self.unread += any(len(events.name) for line in plane.lines for events in line.events)
            return
        runs: dict[str, Runs] = {}
        for line in plane.lines:
            if line.name not in LINES:
                self.events += sum(len(events.name) for events in line.events)
                continue
            made = self._runs(line, plane.titles)
            if len(made) and line.name not in runs:
                runs[line.name] = made
        if not runs.get(_OPS) and not runs.get(_PROGRAMS):
            return
        name, peak = str(plane.stats.get("device_type_string", "")), _number(plane.stats.get("peak_teraflops_per_second"), 1e12) or 0.0
        lines = (runs.get(line, Runs()) for line in LINES)
        self.cores.append(TpuCore(int(match["number"]), name, peak, *lines))

    def _runs(self, line: Line, titles: dict[str, Stats]) -> Runs:
        pieces = list(line.events)
        self.events += sum(len(events.name) for events in pieces)
        if not pieces or not abs(line.start_ns) < LARGEST:
            return Runs()
        if self._base_ns is None:
            self._base_ns = line.start_ns
        code = np.concatenate([events.name for events in pieces])
        start, length = np.concatenate([events.start_ps for events in pieces]), np.concatenate([events.dur_ps for events in pieces])
        good = (np.abs(start) < _LONGEST_PS) & (length >= 0) & (length < _LONGEST_PS) & (abs(line.start_ns - self._base_ns) < _LONGEST_PS // 1000)
        self.bad_times += int((~good).sum())
        distinct, group = np.unique(code[good], return_inverse=True)
        rows = np.array([self._row(line.name, line.texts.all[name], titles) for name in distinct.tolist()], np.int64)
        kept = rows[group] >= 0
        order = np.lexsort((-length[good][kept], start[good][kept]))
        start_us = (line.start_ns - self._base_ns) / 1000 + start[good][kept][order] / 1e6
        what: Ints = rows[group][kept][order]
        return Runs(start_us, start_us + length[good][kept][order] / 1e6, what)

    def _row(self, line: str, title: str, titles: dict[str, Stats]) -> int:
        """The row of a title's run: among the ops, or among the programs; -1 if it is left out."""
        if line in (_OPS, _BESIDE):
            return self.ops.setdefault(_op(title, titles.get(title, {})), len(self.ops))
        if line == _PROGRAMS:
            return self.programs.setdefault(_NUMBER.sub("", title), len(self.programs))
        return 0 if line == _STEPS or title == _FOR_OTHERS else -1

    def profile(self, path: str, size: int, events: int, metadata: Stats, issues: list[ReadIssue]) -> TpuProfile | None:
        """All that was collected, None if no core ran anything."""
        if not self.cores:
            return None
        if self.bad_times:
            issues = [*issues, ReadIssue("valid-times", f"{self.bad_times} events have times that cannot be; they are left out", events=self.bad_times)]
        return TpuProfile(
            path, size, events + self.events, tuple(sorted(self.cores, key=lambda core: core.number)), tuple(self.ops), tuple(self.programs),
            self.unread, issues=tuple(issues), metadata=dict(metadata),
        )  # fmt: skip


def _op(title: str, said: Stats) -> TpuOp:
    """An op as it says of itself; by its name alone `%all-reduce.12 = …` is an all-reduce."""
    name = title.removeprefix("%").split(" ", 1)[0]
    category = str(said.get("hlo_category") or name.split(".", 1)[0] or "unnamed")
    flops, moved = _number(said.get("model_flops", said.get("flops"))), _number(said.get("bytes_accessed"))
    if category in _HOLDS or (category.startswith("custom-call") and not flops):
        # Nobody told the compiler what a kernel of one's own computes.
        flops, moved = None, None if category in _HOLDS else moved
    scope = str(said.get("tf_op", "")).removesuffix(":")
    return TpuOp(name, category, math.nan if flops is None else flops, math.nan if moved is None else moved, scope, str(said.get("source", "")))


def _number(value: Stat | None, times: float = 1.0) -> float | None:
    """A valid and plausible number, times a unit."""
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 20 else None
    return float(value) * times if value is not None and 0 <= value < LARGEST else None
