"""The occupancy calculator's chart: what fits on an SM with other block sizes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.knowledge import occupancy
from advisor.report.kernels import KernelRow

_SIZES = np.arange(32, 1025, 32)
_LEFT, _WIDTH, _TOP, _HEIGHT = 32.0, 280.0, 10.0, 90.0


class Curve(NamedTuple):
    """In the units of the drawing: a line over block sizes, the kernel's own place on it, and ticks."""

    line: str
    at_x: float
    at_y: float
    ticks: tuple[tuple[float, str], ...]


def occupancy_curve(row: KernelRow) -> Curve | None:
    """Theoretical occupancy by block size, with the kernel's registers and shared memory; None where those are not known."""
    seen = row.counted
    if seen is None or seen.registers is None or seen.shared_bytes is None or not seen.threads or len(seen.capability) != 2:
        return None
    sizes = np.append(_SIZES, seen.threads)
    major, minor = seen.capability
    fit = occupancy.fit((major, minor), sizes, np.full_like(sizes, seen.registers), np.full_like(sizes, seen.shared_bytes))
    if fit is None:
        return None
    x, y = _LEFT + _WIDTH * sizes / 1024, _TOP + _HEIGHT * (1 - fit.occupancy)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[:-1], y[:-1], strict=True))
    ticks = tuple((_LEFT + _WIDTH * n / 1024, str(n)) for n in (128, 256, 512, 768, 1024))
    return Curve(points, round(float(x[-1]), 1), round(float(y[-1]), 1), ticks)


def occupancy_limits(row: KernelRow) -> list[tuple[str, int]]:
    """What limits the blocks on an SM, and how many it allows."""
    limits = row.occupancy.limits if row.occupancy else ()
    return list(zip(occupancy.LIMITERS, limits, strict=False))
