"""How much of the device a measured kernel fills, and whether the report itself shows what more blocks would bring."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.knowledge.occupancy import SCHEDULERS, WARP
from advisor.knowledge.shares import FAR_APART, HARDLY_ANY
from advisor.views.kernels.measured import MeasuredKernel


def warps(kernel: MeasuredKernel) -> int:
    """Of a block, as many as schedulers where its threads were not recorded."""
    return -(-kernel.profile.threads // WARP) or SCHEDULERS


def fill(kernel: MeasuredKernel) -> float:
    """Blocks per SM. A block with a single warp leaves all but one scheduler of its SM idle."""
    return kernel.profile.blocks * min(warps(kernel), SCHEDULERS) / (kernel.sm_count * SCHEDULERS)


MORE, AS_MANY, AS_SLOW = FAR_APART, HARDLY_ANY, 0.8
"""Twice the blocks of as many threads in all, to a twentieth, that take no less than four fifths of the time: dividing into blocks was tried."""


def divided_in_vain(kernel: MeasuredKernel, others: Iterable[MeasuredKernel]) -> int:
    """The most blocks in which the same report shows the same kernel's threads to be about as slow, 0 if it does not: each thread's own
    work is then what takes the time, however many SMs share the threads."""
    one = kernel.profile
    threads = one.blocks * one.threads
    return max(
        (
            other.profile.blocks
            for other in others
            if other.profile.name == one.name
            and other.profile.device == one.device
            and other.profile.blocks >= MORE * one.blocks
            and abs(other.profile.blocks * other.profile.threads - threads) <= AS_MANY * threads
            and (other.profile.duration_us or 0.0) >= AS_SLOW * (one.duration_us or 0.0)
        ),
        default=0,
    )
