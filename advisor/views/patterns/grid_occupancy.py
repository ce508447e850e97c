"""How much of the device each kernel of the replayed steps fills, and what it takes on a full device."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from advisor.errors import Unavailable
from advisor.intervals import EMPTY, Floats, Ints, Mask, covered_twice, overlap_with, union
from advisor.knowledge.grids import DIVISIBLE, EQUAL_BLOCKS, FEW_ON_PURPOSE
from advisor.knowledge.how_to_record import AS_WRITTEN
from advisor.knowledge.measured_costs import cost, costs
from advisor.knowledge.occupancy import WARP, fit
from advisor.knowledge.op_tokens.families import Family, of_library
from advisor.knowledge.shares import CONSIDERABLE, MOST
from advisor.recordings.timeline import GpuKind
from advisor.views.replay.edits import Edits, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.program import Program


class Grids(msgspec.Struct, frozen=True):
    """Per GPU op (n,): its blocks, the device's SMs, and waves (blocks over available places on the device, NaN if a block's needs were not recorded).
    Unavailable without grids or the device's size."""

    blocks: Ints
    sms: Ints
    waves: Floats

    @property
    def fill(self) -> Floats:
        """Share of the SMs that have a block."""
        return self.blocks / np.maximum(self.sms, 1)

    @property
    def last_wave(self) -> Floats:
        """Waves over the whole number that they take as long as."""
        return self.waves / np.ceil(np.maximum(self.waves, 1))

    @classmethod
    def build(cls, work: GpuWork) -> Grids:
        device, blocks = work.column("device"), work.column("grid_blocks")
        sms = work.timeline.sm_counts(device)
        if not (sms > 0).any():
            raise Unavailable("the trace does not contain the GPU's SM count", *AS_WRITTEN)
        if not (blocks > 0).any():
            raise Unavailable("the kernels' grids were not recorded", *AS_WRITTEN)
        threads, registers, shared = (work.column(c) for c in ("block_threads", "registers", "shared_bytes"))
        waves = np.full(len(work.rows), np.nan)
        for d in np.unique(device).tolist():
            gpu = work.timeline.device(d)
            mine = (device == d) & (threads > 0) & (registers > 0) & (shared >= 0)
            if gpu.warp_size == WARP and mine.any():
                fits = fit(gpu.compute_capability, threads[mine], registers[mine], shared[mine])
                if fits is not None:
                    waves[mine] = blocks[mine] / np.maximum(sms[mine] * fits.blocks, 1)
        return cls(blocks, sms, waves)


def filled(work: GpuWork, grids: Grids | None) -> Floats:
    """(n,) share of the device that each GPU op fills, 0 to 1: of places for its blocks, or of SMs if a block's needs are unknown; 1 next to other kernels, NaN
    without grids, and for communication."""
    if grids is None:
        return np.full(len(work.rows), np.nan)
    known = work.kernel & (grids.blocks > 0) & ~work.in_families(Family.COMMUNICATION)
    fill = np.where(known, np.minimum(np.where(np.isnan(grids.waves), grids.fill, grids.waves), 1.0), np.nan)
    little = np.flatnonzero(fill < 1)
    fill[little[shares_device(work, little)]] = 1.0
    return fill


SHARED, FILLED = MOST, CONSIDERABLE
"""Kernels share the device if others run for half of their time and fill a quarter of it. Two kernels with one block each do not."""


def shares_device(work: GpuWork, at: Ints) -> Mask:
    """(n,) whether kernels (positions) share the device with kernels of other streams."""
    frame, rows = work.timeline.gpu_ops, work.rows[at]
    start = frame["start_us"] - frame["start_us"].min()
    end = start + frame["dur_us"]
    device, stream, blocks = (frame[column] for column in ("device", "stream", "grid_blocks"))
    kernel = frame["kind"] == GpuKind.KERNEL.value
    found = np.zeros(len(rows), bool)
    for d in np.unique(device[rows]):
        mine, here = np.flatnonzero(device[rows] == d), np.flatnonzero(kernel & (device == d))
        sms = work.timeline.device(int(d)).sm_count
        fill = np.where(blocks[here] > 0, np.minimum(blocks[here] / max(sms, 1), 1.0), 1.0)
        first, last = start[rows[mine]], end[rows[mine]]
        filled = _filled(start[here], end[here], fill, last) - _filled(start[here], end[here], fill, first)
        busy = [EMPTY]
        for asked, own in _by_value(stream[rows[mine]], stream[here]):
            spans = start[here[own]], end[here[own]]
            filled[asked] -= _filled(*spans, fill[own], last[asked]) - _filled(*spans, fill[own], first[asked])
            busy.append(union(*spans))
        covered = overlap_with(first, last, covered_twice(*map(np.concatenate, zip(*busy, strict=True))))
        # What a framework's ops launch on several streams at once was divided over them already.
        enough = (filled >= FILLED * (last - first)) | (work.op[at[mine]] >= 0)
        found[mine] = (covered >= SHARED * (last - first)) & enough
    return found


def _by_value(asked: Ints, there: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Of each value in `there`, if it is in `asked` and in `there`."""
    values, orders = np.unique(there), [np.argsort(each, kind="stable") for each in (asked, there)]
    sides = [np.searchsorted(each[order], values, side) for each, order in zip((asked, there), orders, strict=True) for side in ("left", "right")]
    for a, b, c, d in zip(*(side.tolist() for side in sides), strict=True):
        yield orders[0][a:b], orders[1][c:d]


def _filled(start: Floats, end: Floats, fill: Floats, until: Floats) -> Floats:
    """(n,) of each time, how long spans that fill so much were there before it, together."""
    made = np.zeros(len(until))
    for edge, sign in ((start, 1.0), (end, -1.0)):
        order = np.argsort(edge, kind="stable")
        weight, moment = np.r_[0.0, np.cumsum(fill[order])], np.r_[0.0, np.cumsum((fill * edge)[order])]
        passed = np.searchsorted(edge[order], until)
        made += sign * (until * weight[passed] - moment[passed])
    return made


def named_by_its_author(work: GpuWork, program: Program) -> Mask:
    """(n,) kernels that the program's author named; their names prove nothing."""
    if program.framework != "cuda":
        return np.zeros(len(work.rows), bool)
    return ~work.column("name").matching(of_library)


def single_kernels(work: GpuWork, kernels: Mask) -> Ints:
    """Positions of these kernels, without those next to others and those that wait for others."""
    at = np.flatnonzero(kernels)
    return at[~(shares_device(work, at) | work.held_up[at])]


SECOND_PASS_US = cost("second-pass")


LIKELY_RATE, LEAST_RATE = costs("split-kernel")


UNKNOWN_FILL = cost("unknown-fill")


def candidates(work: GpuWork, grids: Grids, limit: Floats, own: Mask, max_fill: float, min_kernel_us: float, max_limit_share: float) -> tuple[Mask, Mask]:
    """(n,) kernels with few blocks, and those with few in their last wave, of those that more blocks would make faster."""
    unknown = np.isnan(limit)
    reached = limit / np.maximum(work.dur_us, 1e-9)
    eligible = _divisible(work, grids, min_kernel_us) & np.where(unknown, work.in_families(*DIVISIBLE, Family.OTHER) | own, reached <= max_limit_share)
    return eligible & (grids.fill <= max_fill), eligible & _with_tail(work, grids, max_fill) & ~unknown


def undecided(work: GpuWork, grids: Grids, limit: Floats, max_fill: float, min_kernel_us: float) -> Mask:
    """(n,) kernels with few blocks, or few in their last wave, without a known limit: more blocks may make them faster or not."""
    return _divisible(work, grids, min_kernel_us) & np.isnan(limit) & ((grids.fill <= max_fill) | _with_tail(work, grids, max_fill))


def _divisible(work: GpuWork, grids: Grids, min_kernel_us: float) -> Mask:
    long = work.kernel & (grids.blocks > 0) & (grids.sms > 0) & (work.dur_us >= min_kernel_us)
    return long & ~work.named(FEW_ON_PURPOSE) & ~work.in_families(Family.COMMUNICATION, Family.OPTIMIZER)


def _with_tail(work: GpuWork, grids: Grids, max_fill: float) -> Mask:
    return (grids.waves > 1) & (grids.last_wave <= 0.5 + max_fill / 2) & work.in_families(*EQUAL_BLOCKS)


def filled_edits(at: Ints, filled: Floats, tail: Mask, limit_us: Floats, dur_us: Floats, unsure: Mask) -> Edits:
    """Kernels at the time that a full device would need; kernels with a tail without part of it. Kernels of unknown kind may not be divisible."""
    known, unknown = np.nan_to_num(limit_us), np.isnan(limit_us)

    def durations_at(fill: Floats, rate: float, without: float, least: float = UNKNOWN_FILL) -> WithDurations:
        full = np.maximum(dur_us * np.where(unknown, np.maximum(fill, least), fill), known / rate) + SECOND_PASS_US
        without_tail = np.maximum(dur_us * (1 - without * (1 - filled)), known)
        return WithDurations(at, np.where(tail, without_tail, full))

    least = durations_at(np.minimum(2 * filled, 1.0), LEAST_RATE, 0.0)
    return Edits(WithDurations(at, np.where(unsure, dur_us, least.dur_us)), durations_at(filled, LIKELY_RATE, 0.5), durations_at(filled, 1.0, 1.0, least=0.0))
