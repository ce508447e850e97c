"""Measured kernels found again in a timeline. Nsight Compute locks clocks and replays: shares carry over, durations never."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.knowledge.demangled import same_name
from advisor.knowledge.shares import LITTLE
from advisor.recordings.kernel_profiles import KernelProfile
from advisor.views.replay.gpu_work import GpuWork

Key = tuple[str, int, int]
"""A kernel's name as compared, its blocks and the threads of each."""

EVERY = -1
"""Every launch of a kernel in a step, if the measured one is unknown."""


SHARED = LITTLE
"""Of the report's time: kernels that fill or copy tensors are in any program of a framework, and take little."""


class Join(msgspec.Struct, frozen=True, eq=False):
    """Positions of the schedule by kernel.

    turn: (n,) earlier launches of the same kernel in the step. turns: of each measured launch, its place in a step, `EVERY` if the report's order differs from
    a step's. share: of the GPU's time in measured kernels. known: of the report's time in kernels with names in the timeline, whatever their grid.
    """

    work: GpuWork
    at: dict[Key, Ints]
    turn: Ints
    turns: tuple[int, ...]
    share: float
    known: float

    @property
    def strangers(self) -> bool:
        """Whether the report is of another program than the timeline."""
        return self.known < SHARED

    @classmethod
    def create(cls, work: GpuWork, kernels: Sequence[KernelProfile]) -> Join:
        """By name, blocks and threads; by the function's name alone where a report has no template arguments."""
        categories = work.timeline.gpu_ops["name"].categories
        full = np.array([same_name(n) for n in categories], object)
        bare = np.array([n.split("<", 1)[0] for n in full.tolist()], object)
        codes = work.timeline.gpu_ops["name"].codes[work.rows]
        blocks, threads = work.column("grid_blocks"), work.column("block_threads")
        found: dict[Key, Ints] = {}
        for key in dict.fromkeys(map(_key, kernels)):
            names = full if "<" in key[0] or key[0] in full else bare
            found[key] = np.flatnonzero(work.kernel & (names[codes] == key[0]) & (blocks == key[1]) & (threads == key[2]))
        joined = np.unique(np.concatenate([np.empty(0, np.int64), *found.values()]))
        number = np.full(len(work.rows), -1)
        for i, at in enumerate(found.values()):
            number[at] = i
        share = work.us_a_step(joined) * work.schedule.steps / work.busy_us
        timed = [kernel.duration_us or 0.0 for kernel in kernels]
        weights = timed if sum(timed) else [1.0] * len(kernels)
        there = {*full.tolist(), *bare.tolist()}
        known = sum(us for us, kernel in zip(weights, kernels, strict=True) if _key(kernel)[0] in there) / sum(weights)
        return cls(work, found, *_turns(number, work.step, [list(found).index(_key(k)) for k in kernels], list(found.values())), share, known)

    def positions(self, kernel: KernelProfile, turn: int = EVERY) -> Ints:
        """Positions of this kernel in the schedule, or of one of a step's launches; empty without any."""
        at = self.at.get(_key(kernel), np.empty(0, np.int64))
        return at if turn == EVERY else at[self.turn[at] == turn]


def _key(kernel: KernelProfile) -> Key:
    return same_name(kernel.name), kernel.blocks, kernel.threads


def _turns(number: Ints, step: Ints, measured: list[int], at: Sequence[Ints]) -> tuple[Ints, tuple[int, ...]]:
    """The turn of each position, and of each measured launch, whose kernels' numbers are `measured`, in order.

    Steps must be alike in the kernels that were measured, and the report must go through them as a step does, from wherever it starts.
    """
    turn = np.zeros(len(number), np.int64)
    for one in at:
        starts = np.r_[True, np.diff(step[one]) != 0][: len(one)]
        turn[one] = np.arange(len(one)) - np.maximum.accumulate(np.where(starts, np.arange(len(one)), 0))
    joined = np.flatnonzero(number >= 0)
    steps = np.split(joined, np.flatnonzero(np.diff(step[joined])) + 1)
    first = number[steps[0]]
    unknown = (EVERY,) * len(measured)
    if not len(first) or any(not np.array_equal(number[s], first) for s in steps[1:]):
        return turn, unknown
    report = np.array([n for n in measured if len(at[n])], np.int64)
    for start in np.flatnonzero(first == report[0]).tolist():
        where = (start + np.arange(len(report))) % len(first)
        if np.array_equal(first[where], report):
            known = iter(turn[steps[0]][where].tolist())
            return turn, tuple(next(known) if len(at[n]) else EVERY for n in measured)
    return turn, unknown
