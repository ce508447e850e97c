"""A step that serves too few requests to keep the device busy."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found
from advisor.intervals import Floats, Mask
from advisor.knowledge.op_tokens.families import Family
from advisor.knowledge.shares import HARDLY_ANY
from advisor.report.numbers import duration, percent
from advisor.report.wording.period import THE_STEP, of_each_step
from advisor.rules.fixes.batching import batch_requests
from advisor.views.replay.edits import Batched, Edit, Edits, WithDurations, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.trace.evidence import Witness

FEW, LIKELY, MANY = 4, 16, 64
"""How many requests are batched at the least, likely and at the most; up to about a quarter of the ridge point the weights
are still most of the traffic, so the step takes as long as before."""


TOGETHER = 8
"""The likely number where launches bind a step. Weights that are read at the bandwidth ask for as many rows as there are; here a few requests fill what
the device idles, and a service seldom holds more at the same time."""


def of_few_requests(work: GpuWork, witness: Witness, fill: Floats, of_network: Mask, waits: float, few: float) -> Found:
    """Of a step whose kernels are done before the next one is launched, or have too few blocks for the device: several requests take as long."""

    def together(requests: int) -> Edit:
        return combine(Batched(requests, kernels[:0]), WithDurations(every, work.dur_us * np.maximum(of_each, 1 / requests)))

    kernels, every = np.flatnonzero(work.kernel), np.arange(len(fill))
    # Each kernel takes as long as before until it fills the device, but for attention, over a cache of each request's own. What is copied or cast is mostly weights.
    known = np.where(work.in_families(Family.COPY), 0.0, np.where(work.in_families(Family.ATTENTION), 1.0, fill))
    of_each = np.where(np.isnan(known), of_network | work.in_families(Family.COMMUNICATION), known)
    told = ((waits, "waits for launches"), (few, f"runs small kernels (1 / {TOGETHER} of it or less)"))
    said = [f"{what} {percent(share)}" for share, what in told if share >= HARDLY_ANY]
    return Found(
        title="The batch is too small to keep the GPU busy",
        summary=f"The GPU {' and '.join(said)} {of_each_step(work.step_us)}. Batching several requests costs no extra time.",
        edits=Edits(Batched(FEW, kernels[:0]), together(TOGETHER), together(MANY)),
        removes="launching the same kernels again for every request",
        quiet=f"the GPU {' and '.join(said)} of {THE_STEP}",
        evidence=witness.of_gpu(work.rows[kernels], [work.name(k) for k in kernels.tolist()]),
        confidence=0.75,
        per="request",
        status="possible",
        possible_why="a trace does not show whether other requests are waiting",
        decide_with=f"run a step on {TOGETHER} times as many requests",
        fix=batch_requests(
            TOGETHER,
            f"Put several times as many requests into a step. A step with {TOGETHER} times as many takes about as long as now ({duration(work.step_us)}): "
            "throughput rises, the latency of a request stays. "
            "If a step already loops over several inputs or tiles, process them in a single call; then the step itself gets shorter.",
            "If a request must run alone, reduce launches: compile the model, or replay it from a CUDA graph.",
        ),
    )
