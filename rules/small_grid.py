"""Kernels that leave most of the device's SMs without a block."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.knowledge.grids import DIVISIBLE
from advisor.knowledge.op_tokens import has_token
from advisor.knowledge.op_tokens.families import Family
from advisor.report.finding import Clear
from advisor.report.numbers import duration_of, percent
from advisor.rules import _grids as own
from advisor.rules._kernels import ask
from advisor.rules._phrases import a_step
from advisor.rules.fixes import for_program
from advisor.rules.fixes import grids as fixes
from advisor.views.kernel_work import InSteps, KernelWork
from advisor.views.kernels.measured import MeasuredKernels, unlike
from advisor.views.patterns import grid_occupancy
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
    """Kernels run on few of the GPU's SMs

    What
    A kernel has fewer blocks than the GPU has SMs: a softmax or cumulative sum over a few long rows, or a small
    GEMM. Or its last wave has only a few blocks.

    Why
    A block runs on a single SM, and an SM of 132 reaches a hundredth of the bandwidth. A wave of few blocks
    takes nearly as long as a full wave. On an H200, attention over 16 heads (0.97 waves) takes 103 µs, over 17
    (1.03 waves) 161 µs.

    How to fix
    Process more rows at the same time, or split each row. `torch.compile` splits long rows by itself:

        softmax = torch.compile(torch.softmax)       # 8 rows of 4 M: 1.07 ms -> 0.09 ms on an H200

    For GEMMs, use split-K (`mode="max-autotune"`); for attention with few queries, split-KV. For
    `F.interpolate`, use channels-last. For custom kernels, add a grid axis.

    When to ignore
    The work is serial, or other streams fill the GPU. Compiled can also be slower: softmax over 64 rows of
    131,072 values took 1.6 times as long.

    How it is measured
    The rule compares the recorded grid with the number of SMs. Savings below `min_saving_share` ({min_saving_share}) of the
    step are not reported.

    | Condition or estimate | Value |
    |---|---|
    | `max_fill`: SMs with a block | at most {max_fill} |
    | `min_kernel_us`: kernel time | {min_kernel_us} µs or more |
    | `max_limit_share`: of its roofline | at most {max_limit_share} |
    | `expected` | time on a full GPU, at least twice the roofline limit |
    | `low` / `high` | half full / the roofline limit |
    | joining the parts | 5 µs |

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
    few, tail = grid_occupancy.candidates(work, grids, limit, grid_occupancy.named_by_its_author(work, found.program), max_fill, min_kernel_us, max_limit_share)
    at = grid_occupancy.single_kernels(work, few | tail)
    if not found.shapes.timeline.source.shapes:
        own.refuse_undecided(work, at, grid_occupancy.single_kernels(work, grid_occupancy.undecided(work, grids, limit, max_fill, min_kernel_us)))
    if not len(at):
        return Clear(why=f"no kernel of {min_kernel_us:.0f} µs or more runs on {max_fill:.0%} of the SMs or fewer below its limit")
    dur_us = work.dur_us[at]
    worst = int(at[np.argmax(dur_us)])
    unsure = ~known[at] & ~work.in_families(*DIVISIBLE)[at]
    families = work.kernels.family[work.rows[at]]
    of_family = np.bincount(families, dur_us)
    most, *rest = np.argsort(-of_family).tolist()
    kinds = [most, *(n for n in rest if of_family[n] >= max(SAID_BESIDE * dur_us.sum(), 1e-9))]
    longest, *others = (int(at[np.argmax(np.where(families == n, dur_us, 0.0))]) for n in kinds)
    also = [(FAMILIES[n], work.kernel_name(k)) for n, k in zip(kinds[1:], others, strict=True)]
    maps = next((shape for shape, _ in found.shapes.inputs(int(work.op[longest]))), ())
    typical = (
        f"{own.blocks_in_words(work, grids, worst)} on {int(grids.sms[worst])} SMs"
        if few[worst]
        else f"{grids.waves[worst]:.2f} waves of blocks, which take as long as {int(np.ceil(grids.waves[worst]))}"
    )
    return Found(
        summary=f"{a_step(work.a_step(at), 'kernel', 'leave')} most of the GPU idle (longest: {typical}), for {duration_of(work.us_a_step(at), work.step_us)}.",
        edits=grid_occupancy.filled_edits(at, np.where(few, grids.fill, grids.last_wave)[at], ~few[at], limit[at], dur_us, unsure),
        removes="idle SMs",
        at_most_us=work.us_a_step(at),
        quiet=f"kernels on few SMs take {percent(float(dur_us.sum()) / work.busy_us)} of busy time",
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
                batched=any(FAMILIES[n] == Family.GEMM and has_token(work.name(k), "batched_product") for n, k in zip(kinds, (longest, *others), strict=True)),
            ),
        ),
    )
