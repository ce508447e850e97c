"""Matrix products whose sizes keep them off the Tensor Cores' fast path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Floats
from advisor.knowledge import alignment
from advisor.knowledge.measured_costs import cost, costs
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.shortest_kernel import LATENCY_BOUND_US
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration_of
from advisor.report.wording.period import PER_STEP
from advisor.rules._phrases import a_step
from advisor.rules.fixes.alignment import pad
from advisor.views.patterns import aligned_products
from advisor.views.replay.edits import Edit, Edits, WithDurations
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.arguments import Arguments
from advisor.views.trace.evidence import Witness
from advisor.views.trace.ops import Ops

SETUP_US = cost("aligned-product-setup")

PADDED_LOW, PADDED = costs("aligned-product")


@rule("gemm-alignment", relies_on=("kernels",), min_saving_share=0.03)
def gemm_alignment(
    timeline: Timeline,
    work: GpuWork,
    recorded: Arguments,
    roofline: Roofline,
    witness: Witness,
    *,
    max_rate_share: float = 0.6,
) -> Outcome:
    """Matrix products with sizes that Tensor Cores load badly

    What
    A GEMM in FP16, BF16, TF32, FP8 or INT8 has an operand or result with rows that do not begin at multiples of
    16 bytes. Examples are a vocabulary of 50257, 1001 classes, or 511 features.

    Why
    Tensor Core kernels load 16 bytes at a time, and Hopper's TMA requires it. For other sizes cuBLAS uses older
    kernels (`align1`, `align2` in their names). On an H200 in BF16, 8192 × 4096 × N reaches 768 TFLOP/s at N =
    4096, 280 at 4098, and 97 at 4097.

    How to fix
    Pad the size to a multiple of 64, or of 8 if that adds more than 1 %:

        head = nn.Linear(768, 50304)      # was 50257

    Pad at creation, not before each GEMM.

    When to ignore
    The size comes from data, such as a last batch: padding each time costs a copy. Or `torch.compile` pads
    already (`shape_padding`).

    How it is measured
    The rule reads leading dimensions from shapes and strides: M, K or N, as the layout requires. A GEMM counts
    if FLOPs limit it and it takes 20 µs or more. It must reach less than `max_rate_share` ({max_rate_share}) of the rate of
    large GEMMs. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    | Estimate | Rate after padding |
    |---|---|
    | `low` | 0.6 of the rate of large GEMMs |
    | `expected` | as the trace's aligned GEMMs, else 0.85 |
    | `high` | the rate of large GEMMs |

    References
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html#requirements-tc
    https://docs.pytorch.org/docs/stable/torch.compiler_faq.html
    """
    rows, dur_us, ops = work.rows, work.dur_us, work.ops
    dense = np.flatnonzero(work.in_families(Family.GEMM) & (roofline.cost_op[rows] >= 0))
    if not len(dense):
        return Clear(why="no GEMMs with known shapes in the window")
    peaks = roofline.peaks_of(work.device_at(int(dense[0])))
    precision = np.asarray(work.kernels.precision, object)[rows]
    products = aligned_products.products_of(timeline, ops, roofline, precision, rows, dense.tolist())
    limit = roofline.limit_us[rows]
    rates = {p: peaks.achievable_flops_per_s(str(p)) or np.nan for p in dict.fromkeys(precision[dense].tolist())}
    by_flops = roofline.flops[rows] / np.array([rates.get(p, np.nan) for p in precision]) * 1e6
    # By arithmetic, not by memory, and not by filling the device.
    bound = (by_flops >= 0.999 * limit) & (dur_us >= LATENCY_BOUND_US)
    wrong = [p for p, product in products.items() if product.wrong and not aligned_products.loads_whole(work.kernel_name(p), product)]
    slow = [p for p in wrong if bound[p] and limit[p] < max_rate_share * dur_us[p]]
    if not slow:
        return _fine(work, products, wrong, len(dense), max_rate_share)
    found = np.array(slow, np.int64)
    own = [p for p, product in products.items() if not product.wrong and bound[p]]
    shares = {text: _share([p for p in own if precision[p] == text], limit, dur_us) for text in dict.fromkeys(precision[found].tolist())}
    more = np.array([products[p].more_work for p in slow])

    def padded_at(share: float | None) -> Edit:
        rate = np.array([share or shares[precision[p]] or PADDED for p in slow])
        return WithDurations(found, limit[found] * more / rate + SETUP_US)

    low = min([PADDED_LOW, *(s for s in shares.values() if s)])
    at_worst = max(slow, key=lambda p: (not work.backward[p], float(dur_us[p])))  # of the backward pass M, K and N name other sizes of the layer
    worst = products[at_worst]
    told = any(aligned_products.ALIGN.search(work.kernel_name(p)) for p in slow)
    return Found(
        summary=f"{a_step(work.a_step(slow), 'GEMM', 'have', 'has')} row sizes that are not a multiple of {alignment.ALIGNED_BYTES} bytes ({worst.advice}): "
        f"{duration_of(work.us_a_step(found), work.step_us)} at "
        f"{float(limit[found].sum() / dur_us[found].sum()):.0%} of the rate of large GEMMs.",
        edits=Edits(padded_at(low), padded_at(None), padded_at(1.0)),
        removes="unaligned rows",
        quiet=f"{a_step(work.a_step(slow), 'GEMM', 'have', 'has')} row sizes that are not a multiple of 16 bytes",
        evidence=witness.of_gpu(rows[found], [_label(ops, int(roofline.cost_op[rows[p]]), products[p]) for p in slow]),
        confidence=(0.9 if told else 0.8) * (1.0 if all(products[p].whole for p in slow) else 0.8),
        fix=pad(worst, bool(work.backward[at_worst])),
    )


def _fine(work: GpuWork, judged: Mapping[int, alignment.Product], wrong: Sequence[int], gemms: int, max_rate_share: float) -> Clear:
    """The outcome without a finding. GEMMs on CUDA cores are not counted: alignment matters on Tensor Cores only."""
    if not judged:
        return Clear(why="alignment matters to GEMMs on Tensor Cores, and the window has none with known sizes", reason="not-applicable")
    others = f" on Tensor Cores {PER_STEP} with known sizes" if len(judged) < gemms else f" {PER_STEP}"
    return Clear(
        why=f"{work.a_step(wrong):.0f} of {counted(work.a_step([*judged]), 'GEMM')}{others} have row sizes that are not a multiple of 16 bytes"
        + (f". They reach {max_rate_share:.0%} of the rate of large GEMMs, or are short or memory-bound" if wrong else "")
    )


def _share(products: Sequence[int], limit_us: Floats, dur_us: Floats) -> float | None:
    """Rate that these GEMMs reach over that of large GEMMs, None if there are none."""
    at = np.asarray(products, np.int64)
    return min(1.0, float(limit_us[at].sum() / dur_us[at].sum())) if len(at) else None


def _label(ops: Ops, op: int, product: alignment.Product) -> str:
    return f"{ops.name(op)} {product.m} × {product.k} × {product.n} (M × K × N): {product.advice}"
