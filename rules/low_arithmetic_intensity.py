"""Matrix products on so few rows that reading the weights is all they do."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.knowledge.shares import LITTLE
from advisor.rules._batches import merged
from advisor.rules._few_requests import TOGETHER, of_few_requests
from advisor.rules._few_rows import of_products
from advisor.views.patterns.casts import Casts
from advisor.views.patterns.gradient_accumulation import MicroBatches
from advisor.views.patterns.little_work import LittleWork
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.roofline import Roofline
from advisor.views.trace.arguments import Arguments
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps

OF_A_NETWORK = LITTLE
"""Share of the GPU's time in products, convolutions and attention, from which a step is a network's, and more inputs can share it."""


@rule("low-arithmetic-intensity", relies_on=("kernels",), min_saving_share=0.03)
def low_arithmetic_intensity(
    work: GpuWork,
    arguments: Arguments,
    roofline: Roofline,
    witness: Witness,
    steps: Steps,
    program: Program,
    little: LittleWork,
    micro: MicroBatches | None,
    casts: Casts | None,
    *,
    max_of_ridge: Share = 0.10,
    min_busy_share: float = 0.5,
    min_step_share: Share = 0.2,
    min_launch_share: float = 0.4,
) -> Outcome:
    """Matrix products do too little work per byte

    What
    GEMMs have inputs with few rows: a small batch, or a token at a time. Each weight is read from memory for a
    handful of multiplications. Or a training step is cut into more micro-batches than memory requires.

    Why
    Arithmetic intensity is FLOPs per byte. Below the ridge point (150 to 300 FLOP/byte in BF16), memory
    bandwidth limits the GEMM. With a single row, intensity is about 1 and Tensor Cores idle. The same weights
    could serve many rows in the same time.

    How to fix
    Batch requests that wait at the same time:

        outputs = model(torch.stack(requests))        # was: [model(r[None]) for r in requests]

    Servers do this by continuous batching. In training, use fewer and larger micro-batches. A single request
    gains from INT8, FP8 or INT4 weights, or from speculative decoding.

    When to ignore
    Latency of a single request matters and the weights are quantised already. Or memory is full.

    How it is measured
    The rule takes FLOPs and bytes from recorded shapes. It reports GEMMs below `max_of_ridge` ({max_of_ridge}) of the
    ridge point that take `min_busy_share` ({min_busy_share}) of GPU busy time and `min_step_share` ({min_step_share}) of the step.
    Otherwise it reports inference that waits for launches or runs small kernels for `min_launch_share` ({min_launch_share}) of
    the step. The saving is step time per request. Savings below `min_saving_share` ({min_saving_share}) are not reported.

    | Case | Requests per step, `low` / `expected` / `high` |
    |---|---|
    | few rows | 4 / 16 / 64, up to the ridge point |
    | launch-bound | 4 / 8 / 64 |
    | micro-batches | no gain / a single micro-batch / the same on a full GPU |

    References
    https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html
    Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009
    """
    outcome = of_products(program.training, work, arguments, roofline, witness, casts, max_of_ridge, min_busy_share, min_step_share)
    if not isinstance(outcome, Found) and micro and micro.times > 1:
        return merged(work, micro, little.fill, witness)
    if isinstance(outcome, Found) or program.training or not steps.repeats or not work.kernel.any():
        return outcome
    waits, few = little.waits, little.in_small_kernels(1 / TOGETHER)
    if little.replayed or waits + few < min_launch_share or little.network_share < OF_A_NETWORK:
        return outcome
    return of_few_requests(work, witness, little.fill, little.of_network, waits, few)
