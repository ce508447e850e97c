"""How many blocks of a kernel a multiprocessor holds at once."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Ints

WARP = 32
SM_REGISTERS, SM_THREADS, SM_SHARED = 65536, 2048, 228 * 1024
"""What a multiprocessor holds from compute capability 9.0 on."""

SM_OTHER = {
    (7, 0): (2048, 96 * 1024), (7, 5): (1024, 64 * 1024), (8, 0): (2048, 164 * 1024), (8, 6): (1536, 100 * 1024),
    (8, 9): (1536, 100 * 1024), (12, 0): (1536, 100 * 1024),
}  # fmt: skip
"""Threads and shared memory where they differ: CUDA C++ Programming Guide, compute capabilities."""


def blocks_that_fit(capability: tuple[int, int], threads: Ints, registers: Ints, shared_bytes: Ints) -> Ints:
    """(n,) blocks of so many threads, registers a thread and bytes of shared memory that one multiprocessor holds, 1 at least.

    As its registers, threads and shared memory allow. Profilers' own occupancy is 0 for kernels with much shared memory.
    """
    most_threads, most_shared = SM_OTHER.get(capability, (SM_THREADS, SM_SHARED))
    warps = -(-threads // WARP)
    by_registers = SM_REGISTERS // (-(-registers // 8) * 8 * WARP * warps)
    fits = np.minimum.reduce([most_threads // (WARP * warps), by_registers, most_shared // (shared_bytes + 1024)])
    return np.maximum(fits, 1)
