"""Where the time of each core of a TPU goes: each moment counts once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.intervals import Floats, Ints, clip, complement, intersect, length, nest, subtract, union
from advisor.knowledge.op_tokens import names_of
from advisor.recordings.tpu import TpuCore, TpuOp, TpuProfile
from advisor.views.tpu.steps import TpuSteps

Class = Literal["compute", "communication", "copy"]

_COMMUNICATION = names_of("xla_collective")
_COPY = names_of("xla_copy")
_WRAPS = names_of("xla_async")
"""Asynchronous ops with a category that does not show their kind; their names do."""


def class_of(op: TpuOp) -> Class:
    """What an op is for: its category says it. Infeed, outfeed and waits for asynchronous copies are copies."""
    said = op.name if _WRAPS.fullmatch(op.category) else op.category
    return "communication" if _COMMUNICATION.match(said) else "copy" if _COPY.match(said) else "compute"


@dataclass(frozen=True)
class CoreTime:
    """A core's window in µs. The classes sum to the window: computing, collectives and waits for other cores, transfers, idle inside a program, idle between
    programs. own_us: of each run in `rows` of its ops, without nested ops, in the window.
    """

    core: TpuCore
    compute_us: float
    communication_us: float
    copy_us: float
    within_us: float
    between_us: float
    rows: Ints
    own_us: Floats
    leaf: np.ndarray
    """Whether a run holds no other."""

    @property
    def busy_us(self) -> float:
        """What is not idle."""
        return self.compute_us + self.communication_us + self.copy_us


@dataclass(frozen=True)
class TpuTime:
    """By core, in their order. classes: of each row of `TpuProfile.ops`."""

    cores: tuple[CoreTime, ...]
    classes: tuple[Class, ...]

    @classmethod
    def build(cls, profile: TpuProfile, steps: TpuSteps) -> TpuTime:
        """The time of each core in the window of the steps."""
        classes = tuple(class_of(op) for op in profile.ops)
        return cls(tuple(_time(core, classes, steps) for core in profile.cores), classes)


def _time(core: TpuCore, classes: tuple[Class, ...], steps: TpuSteps) -> CoreTime:
    window = steps.start_us, steps.end_us
    rows = np.flatnonzero((core.ops.end_us > window[0]) & (core.ops.start_us < window[1]))
    start, end = np.maximum(core.ops.start_us[rows], window[0]), np.minimum(core.ops.end_us[rows], window[1])
    parents = nest(np.zeros(len(rows), np.int64), start, end)
    inner = parents >= 0
    end[inner] = np.minimum(end[inner], end[parents[inner]])  # one that outlives its parent ends with it
    own = end - start
    np.subtract.at(own, parents[inner], (end - start)[inner])
    own = np.maximum(own, 0.0)
    leaf = np.ones(len(rows), bool)
    leaf[parents[inner]] = False
    busy = union(start, end)
    by_op = np.bincount(core.ops.what[rows], weights=own, minlength=len(classes))
    spent = {name: float(by_op[[one == name for one in classes]].sum()) for name in ("compute", "communication", "copy")}
    # Runs that overlap side by side would count twice; the classes are held to what is busy.
    scale = length(busy) / (sum(spent.values()) or 1.0)
    waits = subtract(clip(union(core.waits.start_us, core.waits.end_us), *window), busy)
    idle = subtract(complement(busy, *window), waits)
    programs = clip(union(core.programs.start_us, core.programs.end_us), *window)
    within = length(intersect(idle, programs)) if len(core.programs) else 0.0
    return CoreTime(
        core, spent["compute"] * scale, spent["communication"] * scale + length(waits), spent["copy"] * scale, within, length(idle) - within,
        rows, own * scale, leaf,
    )  # fmt: skip
