"""Kernels that leave most of the device's multiprocessors without a block."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.knowledge.grids import DIVISIBLE
from advisor.knowledge.op_tokens import is_a
from advisor.knowledge.op_tokens.families import Family
from advisor.report.finding import Clear
from advisor.report.numbers import duration, percent
from advisor.rules import _grids as own
from advisor.rules._kernels import ask
from advisor.rules._phrases import a_step
from advisor.rules.fixes import for_program
from advisor.rules.fixes import grids as fixes
from advisor.views.kernel_work import InSteps, KernelWork
from advisor.views.kernels.measured import MeasuredKernels, unlike
from advisor.views.patterns import few_blocks, grid_occupancy
from advisor.views.time.bound import SAID_BESIDE
from advisor.views.trace.gpu_kernels import FAMILIES


@rule("small-grid", relies_on=("kernels",), min_saving_share=0.03)
def small_grid(
    kernels: KernelWork,
    *,
    max_fill: Share = 0.5,
    min_kernel_us: float = 20.0,
    max_limit_share: float = 0.5,
) -> Outcome:
    """Kernels run on few of the device's multiprocessors

    What it is
    A kernel with fewer blocks than the device has multiprocessors: a softmax or running sum of a few long rows (a block a
    row), a reduction into a few values, a product with few tiles. Or one whose last wave holds but a few blocks.

    Why it costs time
    A block runs on one multiprocessor, and one of 132 reaches a hundredth of the bandwidth. Blocks come in waves of
    multiprocessors × blocks that fit on each, and a wave of few takes nearly as long as a full one: on an H200 attention
    over 16 heads (0.97 waves) takes 103 µs, over 17 (1.03 waves) 161.

    How it is measured
    The recorded grid against the device's multiprocessors: kernels that fill at most `max_fill` of them ({max_fill}: filling gains
    twofold at the least), or products, convolutions and attention whose waves fill at most half-way between that and all
    of the next whole number (0.75: 1.03 of 2, 2.06 of 3). They take at least `min_kernel_us` ({min_kernel_us} µs: shorter ones are
    bound by their launch and by latency) and, where shapes were recorded, reach at most `max_limit_share` of what their
    FLOPs and bytes allow ({max_limit_share}). Where that is unknown the confidence is lower, and kernels of no known kind, which may be
    serial, may gain nothing at all (`low`) and are no more than a medium finding.
    Left out: persistent, split-K and split-KV kernels, recurrences and optimizers, whose few blocks are meant, and kernels
    that share the device with others for half of their time, or took 20 times as long as their usual run on the same shapes. Replayed at the time that a full device would need, not less
    than twice the limit (`low`: half full or four times the limit, `high`: the limit) and 5 µs to join the parts; a tail
    at half of what it costs. Of a kernel that was measured by itself the counters say how near to its limit it is, the gain
    is a share of its own time, and a block of fewer than four warps fills a multiprocessor only in part; few warps on all of them, while nothing is busy, may
    gain nothing (`low`), and so may what the report shows in more blocks to be as slow. Reported from `min_saving_share` of the step ({min_saving_share}).

    How to fix it
    Give the device more rows at once, or divide each row: partial results of some hundred parts, then one of those.
    `torch.compile` divides long rows by itself: on an H200 a softmax of 8 × 4 M went from 1.07 to 0.09 ms, a running sum of
    4 × 2 M from 3.2 to 0.08, the kernels of the backward pass of a LayerNorm of 50 k × 512 from 0.28 to 0.05. Products:
    split-K (`max-autotune`; batched ones by hand, in slices of the inner dimension); attention of few queries: split-KV; own kernels: one more grid axis. `F.interpolate` in NCHW has a thread for each
    place of the result, whatever the batch and channels: in channels_last, or compiled, it has one for each element.

    When to ignore it
    When compiling makes it slower, so measure both: softmax over 64 rows of 131,072 values took 1.6 times as long compiled, small batched products
    twice. When the work is serial, when other streams or processes fill the device meanwhile, or where a few µs of latency is
    all that counts.

    References
    https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html#gpu-execution
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html#wave-quant
    """
    if isinstance(kernels.of, MeasuredKernels):
        alike = unlike(kernels.of.kernels)
        return ask(kernels.of, own.QUESTION, lambda k: own.measured_grid(k, alike[k.name], max_fill, min_kernel_us, max_limit_share))
    return _in_steps(kernels.of, max_fill, min_kernel_us, max_limit_share)


def _in_steps(found: InSteps, max_fill: float, min_kernel_us: float, max_limit_share: float) -> Outcome:
    """Of the kernels of a step, all together."""
    work, roofline, witness = found.work, found.roofline, found.witness
    grids = grid_occupancy.Grids.build(work)
    limit = roofline.limit_us[work.rows]
    known = ~np.isnan(limit)
    few, tail = few_blocks.candidates(work, grids, limit, grid_occupancy.named_by_its_author(work, found.program), max_fill, min_kernel_us, max_limit_share)
    at = np.flatnonzero(few | tail)
    at = at[~(grid_occupancy.beside_others(work, at) | work.held_up[at])]
    if not len(at):
        return Clear(why=f"no kernel of {min_kernel_us:.0f} µs or more runs on {max_fill:.0%} of the multiprocessors or fewer, short of its limit")
    dur_us = work.dur_us[at]
    worst = int(at[np.argmax(dur_us)])
    unsure = ~known[at] & ~work.of(*DIVISIBLE)[at]
    families = work.kernels.family[work.rows[at]]
    of_family = np.bincount(families, dur_us)
    most, *rest = np.argsort(-of_family).tolist()
    kinds = [most, *(n for n in rest if of_family[n] >= max(SAID_BESIDE * dur_us.sum(), 1e-9))]
    longest, *others = (int(at[np.argmax(np.where(families == n, dur_us, 0.0))]) for n in kinds)
    also = [(FAMILIES[n], work.kernel_name(k)) for n, k in zip(kinds[1:], others, strict=True)]
    maps = next((shape for shape, _ in found.shapes.inputs(int(work.op[longest]))), ())
    typical = (
        f"{own.blocks_in_words(work, grids, worst)} for {int(grids.sms[worst])} multiprocessors"
        if few[worst]
        else f"{grids.waves[worst]:.2f} waves of blocks, which take as long as {int(np.ceil(grids.waves[worst]))}"
    )
    return Found(
        summary=f"{a_step(work.a_step(at), 'kernel', 'leave')} most of the device idle (the longest: {typical}), for "
        f"{duration(work.us_a_step(at))} of {duration(work.step_us)}.",
        edits=few_blocks.filled_edits(at, np.where(few, grids.fill, grids.last_wave)[at], ~few[at], limit[at], dur_us, unsure),
        removes="multiprocessors without a block",
        at_most_us=work.us_a_step(at),
        quiet=f"kernels on few multiprocessors take {percent(float(dur_us.sum()) / work.busy_us)} of busy time",
        evidence=witness.of_gpu(work.rows[at], [own.grid_label(work, grids, p, not few[p]) for p in at.tolist()]),
        confidence=0.4 + 0.45 * float(dur_us[known[at]].sum()) / float(dur_us.sum()),
        at_most="medium" if float(dur_us[unsure].sum()) > 0.5 * float(dur_us.sum()) else "high",
        fix=for_program(
            found.program,
            "small-grid",
            fixes.divided(
                FAMILIES[kinds[0]],
                not few[longest],
                work.kernel_name(longest),
                also,
                maps[1] if len(maps) > 1 else fixes.LEAST_CHANNELS,
                found.program.training,
                batched=any(FAMILIES[n] == Family.GEMM and is_a(work.name(k), "batched_product") for n, k in zip(kinds, (longest, *others), strict=True)),
            ),
        ),
    )
