"""How many blocks of a kernel fit on an SM, and what keeps more from fitting.

CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the rounding is that of the CUDA toolkit's
`cuda_occupancy.h`. It agrees with what Nsight Compute computes for every kernel of the samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike

SCHEDULERS = 4
"""Warps that an SM issues from in one cycle. Its registers are divided among these schedulers."""

WARP = 32  # threads, on every NVIDIA GPU
_KIB = 1024  # bytes


class Multiprocessor(msgspec.Struct, frozen=True):
    """Limits of an SM, by compute capability."""

    warps: int
    blocks: int
    shared_bytes: int
    reserved_bytes: int
    """Shared memory that the system takes of each block."""
    shared_unit: int
    """Shared memory is handed out in multiples of this, bytes."""
    registers: int = 65536


def _limit_of(warps: int, blocks: int, shared_kib: int, reserved: int = _KIB, unit: int = 128) -> Multiprocessor:
    return Multiprocessor(warps, blocks, shared_kib * _KIB, reserved, unit)


_MULTIPROCESSORS = {
    (5, 0): _limit_of(64, 32, 64, 0, 256), (5, 2): _limit_of(64, 32, 96, 0, 256), (6, 0): _limit_of(64, 32, 64, 0, 256), (6, 1): _limit_of(64, 32, 96, 0, 256),
    (7, 0): _limit_of(64, 32, 96, 0, 256), (7, 5): _limit_of(32, 16, 64, 0, 256), (8, 0): _limit_of(64, 32, 164), (8, 6): _limit_of(48, 16, 100),
    (8, 7): _limit_of(48, 16, 164), (8, 9): _limit_of(48, 24, 100), (9, 0): _limit_of(64, 32, 228), (10, 0): _limit_of(64, 32, 228),
    (10, 3): _limit_of(64, 32, 228), (12, 0): _limit_of(48, 24, 100), (12, 1): _limit_of(48, 24, 100),
}  # fmt: skip

_REGISTER_UNIT = 256
"""A warp's registers are a multiple of this."""

REGISTERS, SHARED, WARPS, BLOCKS = "registers", "shared memory", "threads", "blocks"
LIMITERS = (REGISTERS, SHARED, WARPS, BLOCKS)
"""What may limit the blocks on an SM, in the order of `Fit.limits`. `blocks`: as many as it can track."""

_FIRST = (WARPS, BLOCKS, REGISTERS, SHARED)
"""Which is named where several allow equally few."""


def multiprocessor(capability: tuple[int, int]) -> Multiprocessor | None:
    """None if the compute capability is not known, or no CUDA one."""
    return _MULTIPROCESSORS.get(capability)


class Fit(msgspec.Struct, frozen=True):
    """Of n kernels: how many blocks of each fit on an SM."""

    limits: np.ndarray
    """(4, n) blocks that each of `LIMITERS` allows."""
    warps_per_block: np.ndarray
    of: Multiprocessor

    @property
    def blocks(self) -> np.ndarray:
        """(n,) blocks that fit at once."""
        return self.limits.min(axis=0)

    @property
    def occupancy(self) -> np.ndarray:
        """(n,) theoretical occupancy: warps that fit over warps that an SM can hold, 0 to 1."""
        return np.minimum(self.blocks * self.warps_per_block / self.of.warps, 1.0)

    @property
    def limiter(self) -> np.ndarray:
        """(n,) what allows fewest, by kernel; where several do, the first of threads, blocks, registers, shared memory."""
        order = [LIMITERS.index(name) for name in _FIRST]
        return np.asarray(_FIRST, object)[self.limits[order].argmin(axis=0)]


def lowest(limits: Sequence[int]) -> str:
    """Which of `LIMITERS` allows fewest blocks; where several do, the first of threads, blocks, registers, shared memory."""
    allowed = dict(zip(LIMITERS, limits, strict=True))
    return min(_FIRST, key=lambda name: allowed[name])


def fit(
    capability: tuple[int, int],
    threads: ArrayLike,
    registers: ArrayLike,
    shared_bytes: ArrayLike,
    configured_bytes: ArrayLike | None = None,
) -> Fit | None:
    """Occupancy of kernels by threads per block, registers per thread, and shared memory per block (static and dynamic, bytes).

    configured_bytes: the SM's shared-memory configuration; the maximum if not given. None if the compute capability is unknown. A kernel without
    threads counts as a warp.
    """
    sm = multiprocessor(capability)
    if sm is None:
        return None
    threads, registers, shared = (np.maximum(np.asarray(a, np.int64), 0) for a in (threads, registers, shared_bytes))
    available = np.asarray(sm.shared_bytes if configured_bytes is None else configured_bytes, np.int64)
    warps = np.maximum(-(-threads // WARP), 1)
    by_warp = np.maximum(-(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT, _REGISTER_UNIT)
    by_registers = sm.registers // SCHEDULERS // by_warp * SCHEDULERS // warps
    taken = -(-(shared + sm.reserved_bytes) // sm.shared_unit) * sm.shared_unit
    by_shared = np.where(taken > 0, available // np.maximum(taken, 1), sm.blocks)
    limits = np.stack([by_registers, np.minimum(by_shared, sm.blocks), sm.warps // warps, np.full_like(warps, sm.blocks)])
    return Fit(limits, warps, sm)
