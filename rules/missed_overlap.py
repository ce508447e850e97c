"""Gradients that are averaged after the backward pass, if nothing can hide it."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Floats, Ints, Mask, overlap_with, union
from advisor.knowledge.op_tokens.families import PRODUCTS
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration, percent
from advisor.report.wording.period import PER_STEP, THE_STEP
from advisor.rules._collectives import HIDDEN, WAITING, transfer_us
from advisor.rules._phrases import a_step
from advisor.rules.fixes import known_fix
from advisor.views.replay.edits import Edits, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.evidence import Witness
from advisor.views.trace.needed_sums import HIDDEN_ALREADY, NeededSums
from advisor.views.trace.program import Program


@rule("missed-overlap", relies_on=("kernels",), min_saving_share=0.03, explains=("exposed-communication",))
def missed_overlap(work: GpuWork, witness: Witness, sums: NeededSums, program: Program, *, min_run: int = 4, max_overlapped_share: float = 0.1) -> Outcome:
    """Gradients are averaged after the backward pass, not during it

    What
    Collectives run serially, after the backward pass. A gradient is ready long before the pass ends, so its
    average could run during the rest.

    Why
    While such a collective runs, the SMs wait for the link. During the backward pass, the link waits for the
    SMs.

    How to fix
    Let `DistributedDataParallel` average buckets of gradients during the backward pass:

        model = DistributedDataParallel(model)

    By hand: `dist.all_reduce(grad, async_op=True)` in a hook, and wait for all before the optimizer step.

    When to ignore
    Gradients are clipped or changed before they are averaged.

    How it is measured
    The rule finds runs of `min_run` ({min_run}) or more collectives without a GEMM, convolution or attention between
    them. Less than a tenth of each overlaps computation. If more than `max_overlapped_share` ({max_overlapped_share}) of all
    communication time overlaps, the program overlaps by design. Of the transfer, overlap hides 35 % (`low` 20
    %, `high` 70 %), because kernels slow down during communication. Savings below `min_saving_share` ({min_saving_share}) of
    the step are not reported.

    References
    https://docs.pytorch.org/docs/stable/notes/ddp.html
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    collective = work.kernels.communication[work.rows]
    if not collective.any():
        return Clear(why="no collective inside the window")
    if not program.training and program.framework == "torch":
        return Clear(why="nothing is trained: no gradients are averaged")
    overlapped = _overlapped_us(work, collective)
    share = float(overlapped[collective].sum() / max(work.dur_us[collective].sum(), 1e-9))
    if share > max_overlapped_share:
        return Clear(why=f"{percent(share)} of the time of collectives overlaps computing (up to {max_overlapped_share:.0%} counts as no overlap)")
    serial = _in_runs(work, collective & ~sums.needed[work.rows], overlapped, work.in_families(*PRODUCTS), min_run)
    if not len(serial):
        return Clear(
            why=f"{counted(collective.sum() / work.schedule.steps, 'collective')} {PER_STEP}, none of them in a run of {min_run} that overlaps no computing"
        )
    transfer, dur_us = transfer_us(work, serial, WAITING), work.dur_us[serial]
    moving = float(transfer.sum()) / work.schedule.steps
    moves = f"; {duration(moving)} of it is transfer" if duration(moving) != duration(work.us_a_step(serial)) else ""
    return Found(
        summary=f"{a_step(work.a_step(serial), 'collective', 'run')} after computing that they could overlap, for {duration(work.us_a_step(serial))} of "
        f"{duration(work.step_us)}{moves}. Nothing runs meanwhile.",
        edits=Edits(*(WithDurations(serial, dur_us - share * transfer) for share in HIDDEN)),
        removes="collectives that could overlap the backward pass",
        at_most_us=work.us_a_step(serial),
        quiet=f"collectives that overlap no computing move data for {percent(moving / work.step_us)} of {THE_STEP}",
        evidence=witness.of_gpu(work.rows[serial], [work.kernel_name(k) for k in serial.tolist()]),
        confidence=0.7,
        fix=known_fix("pytorch", "buckets"),
    )


def _overlapped_us(work: GpuWork, collective: Mask) -> Floats:
    """(n,) µs of each op that lie beside kernels other than collectives."""
    start = work.column("start_us")
    end = start + work.dur_us
    beside = work.kernel & ~collective
    return overlap_with(start, end, union(start[beside], end[beside]))


def _in_runs(work: GpuWork, collective: Mask, overlapped_us: Floats, product: Mask, least: int) -> Ints:
    """Positions of collectives that overlap no computing, in runs of so many without a product between them."""
    if not product.any():
        return np.empty(0, np.int64)
    start = work.column("start_us")
    hidden = overlapped_us > HIDDEN_ALREADY * work.dur_us
    order = np.argsort(start, kind="stable")
    exposed, run = (collective & ~hidden)[order], np.cumsum(product[order])
    members, run = order[exposed], run[exposed]
    length = np.bincount(run) if len(run) else np.empty(0, np.int64)
    return np.sort(members[length[run] >= least])
