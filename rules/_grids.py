"""Small grids in separately measured kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.errors import Unavailable
from advisor.intervals import Ints
from advisor.knowledge import grids, occupancy
from advisor.knowledge.how_to_record import RECORD_SHAPES
from advisor.knowledge.op_tokens.families import Family, family
from advisor.knowledge.shares import HARDLY_ANY
from advisor.report.numbers import counted, percent
from advisor.rules._kernels import Fine, Question, Seen
from advisor.rules.fixes import known_fix
from advisor.rules.fixes.grids import divided
from advisor.views.kernels import counters
from advisor.views.kernels import fill as filling
from advisor.views.kernels.limits import Gain
from advisor.views.kernels.measured import MeasuredKernel
from advisor.views.patterns import grid_occupancy
from advisor.views.patterns.grid_occupancy import Grids
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.program import NAMED_BY_TORCH

QUESTION = Question(
    "of {count} kernels none runs on few SMs below its limit (at most {0:.0%} of the SMs are idle)",
    ("LaunchStats", "SpeedOfLight"),
)


def measured_grid(
    kernel: MeasuredKernel, others: Sequence[MeasuredKernel], max_fill: float, min_kernel_us: float, max_limit_share: float
) -> Seen | Fine | None:
    """Of a measured kernel: its limit by counters of the whole device.

    A kernel of a family that may not be divisible gains at least twofold; expected twofold, perhaps nothing, if its warps mostly wait for each other: its
    parts then depend on each other, and blocks cannot wait for blocks.
    """
    blocks, sms, dur_us, busy = kernel.profile.blocks, kernel.sm_count, kernel.profile.duration_us, kernel.limits.highest
    if not blocks or not sms or not dur_us or not kernel.limits.known:
        return None
    name, filled = kernel.profile.name, filling.fill(kernel)
    meant = grids.FEW_ON_PURPOSE.search(name) or family(name) in (Family.COMMUNICATION, Family.OPTIMIZER)
    if dur_us < min_kernel_us or busy > max_limit_share or meant or counters.waits_for_atomics(kernel.profile):
        return Fine(max(1 - filled, 0.0))
    joined = grid_occupancy.SECOND_PASS_US / dur_us
    in_step = counters.stalls(kernel.profile).get("barrier", 0.0) >= 0.5
    # A page of few digits writes 0.00 waves of few blocks.
    places = min(filled, kernel.waves or filled)
    vain = filling.divided_in_vain(kernel, others)
    starved = places <= max_fill / 2 and busy <= max_limit_share / 2 and not in_step
    # Where the name says neither a kind nor PyTorch, nothing tells that a framework launched it.
    own = family(name) == Family.OTHER and not NAMED_BY_TORCH.search(name)
    fix = known_fix("cuda", "small-grid") if own else divided(family(name), False)
    best, unsure = max(places, busy) + joined, max(max_fill, busy / grid_occupancy.LIKELY_RATE) + joined
    if filled > max_fill and not starved:
        return Fine(max(1 - filled, 0.0))
    if vain or filled > max_fill:
        told = f"runs {counted(blocks, 'block')} of {counted(filling.warps(kernel), 'warp')} on {sms} SMs, which hold {1 / places:.0f} times as many"
        why = (
            f"; the same threads in {vain} blocks take as long, so the work of each thread must be divided."
            if vain
            else f" and reaches at most {busy:.0%} of a peak."
        )
        return Seen(told + why, Gain.of_time(best, unsure, 1.0), 0.5, fix, "medium")
    divides = family(name) in grids.DIVISIBLE
    worst = max(min(2 * filled, 1.0), busy / grid_occupancy.LEAST_RATE, 0.0 if divides else 1.0 if in_step else max_fill)
    likely = max(filled, busy / grid_occupancy.LIKELY_RATE, max_fill if in_step else 0.0)
    gain = Gain.of_time(best, likely + joined, worst + joined)
    told = f"runs {counted(blocks, 'block')} on {sms} SMs; {1 - min(filled, 1.0):.0%} of the GPU is idle."
    if filling.warps(kernel) < occupancy.SCHEDULERS:
        told = f"runs {counted(blocks, 'block')} of {counted(filling.warps(kernel), 'warp')} on {sms} SMs, which run {occupancy.SCHEDULERS} warps each at a time; {1 - filled:.0%} of that is idle."
    return Seen(told, gain, 0.85 if divides else 0.5 if in_step else 0.7, fix, "high" if divides else "medium")


def grid_label(work: GpuWork, grids: Grids, position: int, tail: bool) -> str:
    op, blocks = int(work.op[position]), int(grids.blocks[position])
    what = (
        f"{work.ops.name(op)} {work.timeline.cpu_ops['dims'][op]}".strip()
        if op >= 0
        else work.kernel_name(position).removeprefix("void ").split("<", 1)[0][:80]
    )
    if tail:
        return f"{what}: {grids.waves[position]:.2f} waves ({blocks} blocks)"
    return f"{what}: {blocks_in_words(work, grids, position)} on {int(grids.sms[position])} SMs"


def blocks_in_words(work: GpuWork, grids: Grids, position: int) -> str:
    """A kernel's blocks in words, and how many threads they are where all of them are no more than a warp."""
    blocks, threads = int(grids.blocks[position]), int(work.column("block_threads")[position])
    return counted(blocks, "block") + (f" of {counted(threads, 'thread')}" if 0 < blocks * threads <= occupancy.WARP else "")


UNDECIDED = HARDLY_ANY
"""Kernels that take less of the busy time decide nothing."""


def refuse_undecided(work: GpuWork, found: Ints, undecided: Ints) -> None:
    """Raises Unavailable if the found kernels decide nothing, and kernels without a known limit may."""
    found_share, open_share = (float(work.dur_us[at].sum()) / work.busy_us for at in (found, np.setdiff1d(undecided, found)))
    if found_share < UNDECIDED <= open_share:
        raise Unavailable(f"kernels with few blocks take {percent(open_share)} of busy time; shapes would show their roofline limit", *RECORD_SHAPES)
