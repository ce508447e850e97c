"""Measured kernels found again in a timeline. Nsight Compute locks clocks and replays: shares carry over, durations never."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from advisor.intervals import Ints
from advisor.kernel_profiles import KernelProfile
from advisor.views.replay.gpu_work import GpuWork

_PARAMETERS = re.compile(r"\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*(?:const)?\s*$")

Key = tuple[str, int, int]
"""A kernel's name as compared, its blocks and the threads of each."""


def plain_name(name: str) -> str:
    """A kernel's demangled name without return type and parameters: `void f<int>(float*)` is `f<int>`."""
    name = name.removeprefix("void ")
    return _PARAMETERS.sub("", name) or name


def _compared(name: str) -> str:
    """Demanglers differ in blanks and in how they write an unnamed namespace."""
    return re.sub(
        r"\s+|\(anonymousnamespace\)::|<unnamed>::", "", plain_name(name).replace("(anonymous namespace)", "(anonymousnamespace)")
    )


@dataclass(frozen=True, eq=False)
class Join:
    """Positions of the schedule by kernel. share: of the GPU's time, what measured kernels take."""

    work: GpuWork
    at: dict[Key, Ints]
    share: float

    @classmethod
    def of(cls, work: GpuWork, kernels: tuple[KernelProfile, ...]) -> Join:
        """By name, blocks and threads; by the function's name alone where a report has no template arguments."""
        full = np.array([_compared(n) for n in work.timeline.gpu_ops["name"].cat.categories], object)
        bare = np.array([n.split("<", 1)[0] for n in full.tolist()], object)
        codes = work.timeline.gpu_ops["name"].cat.codes.to_numpy()[work.rows]
        blocks, threads = work.column("grid_blocks"), work.column("block_threads")
        found: dict[Key, Ints] = {}
        for kernel in kernels:
            key = _key(kernel)
            if key not in found:
                names = full if "<" in key[0] or key[0] in full else bare
                named = work.kernel & (names[codes] == key[0])
                sized = (blocks == key[1]) & (threads == key[2])
                found[key] = np.flatnonzero(named & sized)
        joined = np.unique(np.concatenate([np.empty(0, np.int64), *found.values()]))
        return cls(work, found, work.us_a_step(joined) * work.schedule.steps / work.busy_us)

    def positions(self, kernel: KernelProfile) -> Ints:
        """Where in the schedule this kernel runs; empty where it does not."""
        return self.at.get(_key(kernel), np.empty(0, np.int64))


def _key(kernel: KernelProfile) -> Key:
    return _compared(kernel.name), kernel.blocks, kernel.threads
