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
    """Matrix products do too little work for what they read

    What it is
    Linear layers or matrix products whose inputs have few rows (a batch of one, one token at a time): each weight is
    read from memory for a handful of multiplications. Or a batch that training cuts into more micro-batches than memory asks for.

    Why it costs time
    Arithmetic intensity is FLOPs per byte moved. Below the device's ridge point (peak FLOP/s over bandwidth, some 150 to
    300 FLOP/byte in BF16) memory is the bound; at one row, intensity is about 1 and the Tensor Cores stand still. The
    same weights would serve many rows in the same time.

    How it is measured
    FLOPs and bytes of each matrix product from the recorded shapes, intensity against `max_of_ridge` of the device's
    ridge point ({max_of_ridge}: a product closer to it gains little from batching; in FP32 that of TF32). Reported where such kernels, and casts of their weights, take
    `min_busy_share` of the time the GPU works (in training, where a larger batch changes what is learnt, a low finding; {min_busy_share}: where other work is the larger part, that is the bound; runs of 20 times their
    usual length were held up by something else and are left out) and `min_step_share` of the step ({min_step_share}).
    Where they take less, but for `min_launch_share` of an inference step ({min_launch_share}) whose launches no graph replays the GPU waits for launches or runs kernels that
    fill an eighth of it or less, more requests share what the host issues and the multiprocessors: a low finding, as no trace tells whether there are more.
    In training, where a step adds up the gradients of micro-batches that launch the same ops, one micro-batch in place of all: their kernels take as long as before, one after the
    other (`high`: less, until they fill the device; `low` 0, as memory may hold no more), but are issued once, and nothing waits between them. Reported from `min_saving_share` of the step
    ({min_saving_share}).
    The saving is the time of one request when 16 share a step, 8 of the second kind (`low` 4, `high` 64; no more than reach the ridge point, a quarter or twice that): those kernels, other small ones, those of the second kind
    until they fill the device, and the host's part are shared; attention over each request's own cache is not, nor what the program works for a request in a stretch of a millisecond or more.

    How to fix it
    Batch requests that wait at the same time (continuous batching in a server, a larger batch size in a script, fewer and larger micro-batches). Where
    one request must run alone, read fewer bytes: INT8, FP8 or INT4 weights, or several tokens at once with speculative
    decoding.

    When to ignore it
    When latency of a single request is what counts and the weights are quantised already; micro-batches where memory is full.

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
