"""The peak is a moment: short-lived tensors on top of the rest."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.op_tokens import names_of
from advisor.report.finding import Clear
from advisor.report.numbers import percent, size
from advisor.rules._memory import LEAST_BYTES, and_batch, places, saved, with_stacks
from advisor.rules.fixes import known_fix
from advisor.rules.memory_activations import SDPA
from advisor.views.memory.attribution import Attribution, Category, kinds
from advisor.views.memory.edits import ForwardLayers, Layers
from advisor.views.memory.history import Bools
from advisor.views.memory.origins import Phase
from advisor.views.memory.patterns import MOMENT, excursion_above
from advisor.views.memory.replay import MemoryReplay
from advisor.views.memory.scores import Scores
from advisor.views.memory.steps import MemorySteps

CHUNKS = 8
"""Parts that the work is done in: enough to be rid of the spike, few enough for large kernels."""
LARGE = 0.02
"""Share of the peak from which one allocation counts as part of a spike."""
MOST_ROUNDS = 8
"""How often the next peak is looked at: the forward and the backward pass of one loss come to several."""
MOMENTS = 2
"""How often a step may come to its peak: going forward and going back. More often, and it is how each layer works."""
_LOSS = names_of("loss")


@rule("memory-transient", relies_on=("memory",))
def memory_transient(
    attribution: Attribution,
    replay: MemoryReplay,
    steps: MemorySteps,
    scores: Scores,
    forward: ForwardLayers,
    *,
    min_share: float = 0.1,
    least_bytes: int = LEAST_BYTES,
    worth_bytes: int = 1 << 30,
) -> Outcome:
    """The peak is a moment: short-lived tensors on top of the rest

    What
    For a small part of each step, memory use is much higher than otherwise. Typical causes are logits of all
    tokens with their FP32 copy, weights gathered from all ranks, a layer's workspace, or eager attention
    scores.

    Why
    This moment limits the batch size, while the rest of the step leaves that memory unused.

    How to fix
    Do the work in parts, and finish each with its backward pass before the next. For a loss over a large
    vocabulary:

        total = sum(
            checkpoint(loss_of_chunk, h, t, use_reentrant=False)
            for h, t in zip(hidden.chunk(8), targets.chunk(8))
        )

    Or use a fused linear cross-entropy, which never stores all logits.

    When to ignore
    Something else limits the batch size.

    How it is measured
    The rule takes allocations at the peak, each 2 % of it or more, that live for less than a third of a step.
    In the replay, they have an eighth of their size (`low`: a quarter; `high`: nothing). Memory may exceed the
    new peak for a third of the step and twice per step at most. The rule reports `min_share` ({min_share}) of the peak
    and `least_bytes` ({least_bytes}) or more. Below `worth_bytes` ({worth_bytes}), severity is `low`.

    References
    https://github.com/linkedin/Liger-Kernel
    """
    device, lives = with_stacks(attribution), replay.recorded
    a, peak = device.allocations, device.peak_allocated
    if not scores.kept:
        freed = peak - replay.allocated(lives.without_rows(scores.rows))
        if freed >= max(min_share * peak, least_bytes, 1):
            held = size(int(a.size[scores.rows & device.at_peak].sum()))
            return Found(
                title="Attention forms its N × N scores",
                summary=f"Attention scores and tensors derived from them hold {held} of the peak of {size(peak)}; scaled_dot_product_attention frees {size(freed)}.",
                confidence=0.8,
                saving=saved(peak, 0.7 * freed, freed, 1.1 * freed, "the N × N scores of attention"),
                evidence=places(attribution, scores.rows),
                fix=SDPA,
            )
    rows = _spike(attribution, replay, steps, forward.found, LARGE * peak) & ~scores.rows
    parts = [replay.allocated_curve(lives.resized(rows, a.size // k)) for k in (4, CHUNKS)]
    expected = peak - int(parts[1].max())
    moment = excursion_above(attribution, int(parts[1].max()), steps)
    if expected < max(min_share * peak, least_bytes, 1) or moment.share > MOMENT or moment.times > MOMENTS:
        return Clear(
            why=f"splitting short-lived tensors at the peak would free {size(max(expected, 0))} of {size(peak)}; memory is that high for {percent(moment.share)} of a step"
        )
    saving = saved(peak, peak - int(parts[0].max()), expected, peak - replay.allocated(lives.without_rows(rows)), "tensors that live for a moment")
    loss = any(_LOSS.search(f"{o.op} {o.node} {o.function}") for o in (attribution.origin(int(r)) for r in np.flatnonzero(rows & device.at_peak)))
    return Found(
        summary=f"{size(int(a.size[rows & device.at_peak].sum()))} of the peak of {size(peak)} live for {percent(moment.share)} of a step"
        f"{': logits and tensors of the loss' if loss else ''}. In {CHUNKS} parts the peak is {size(peak - expected)}.",
        confidence=0.8 if loss else 0.65,
        at_most="high" if expected >= worth_bytes else "low",
        saving=saving,
        evidence=places(attribution, rows & device.at_peak),
        fix=and_batch(CHUNKED_LOSS if loss else IN_PARTS, attribution, expected, of_batch=True),
    )


def _spike(attribution: Attribution, replay: MemoryReplay, steps: MemorySteps, layers: Layers | None, least_bytes: float) -> Bools:
    """Large short-lived allocations like those at the peak, and at the next peak without them, in all steps.

    The optimizer's have a rule of their own, and allocations of each layer are not short peaks.
    """
    device = attribution.device
    a, n = device.allocations, len(device.events)
    length = float(np.median(np.minimum(steps.end, n) - steps.start)) if len(steps) else float(n)
    short = (a.born >= 0) & (a.freed - a.born < MOMENT * length) & (a.size >= least_bytes)
    short &= attribution.in_categories(Category.TEMPORARIES, Category.ACTIVATIONS) & (attribution.phase != Phase.OPTIMIZER)
    if layers is not None and layers.alike:
        short[layers.row] = False
    kind = kinds(a)
    short &= np.bincount(kind)[kind] <= MOMENTS * (len(steps) + 1)
    rows = np.zeros(len(a), bool)
    for _ in range(MOST_ROUNDS):
        event = int(np.argmax(replay.allocated_curve(replay.recorded.resized(rows, a.size // CHUNKS))))
        held = short & a.alive(event) & ~rows
        if not held.any():
            break
        rows |= np.isin(kind, kind[held]) & short
    return rows


CHUNKED_LOSS = known_fix("memory", "loss-in-chunks")
IN_PARTS = known_fix("memory", "in-parts")
