"""The optimizer holds more than it needs."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.measured_costs import cost
from advisor.report.finding import Clear
from advisor.report.numbers import percent, size
from advisor.rules._memory import LEAST_BYTES, and_batch, places, saved, with_stacks
from advisor.rules.fixes import known_fix
from advisor.views.memory.attribution import Attribution, Category
from advisor.views.memory.origins import Phase
from advisor.views.memory.replay import MemoryReplay

EIGHT_BIT = cost("eight-bit-state")


_SHARD = "On several GPUs shard state over ranks: FSDP, or ZeroRedundancyOptimizer."
_FUSED = known_fix("memory", "fused-update")
_OF_ONES_OWN = known_fix("memory", "update-in-place")
"""For an optimizer that is the program's own, which takes neither fused= nor foreach=."""
_IN_8_BITS = known_fix("memory", "state-in-8-bits")


@rule("memory-optimizer-state", relies_on=("memory",))
def memory_optimizer_state(
    attribution: Attribution,
    replay: MemoryReplay,
    *,
    min_share: float = 0.1,
    min_state_share: float = 0.35,
    max_state_share: float = 0.55,
    least_bytes: int = LEAST_BYTES,
) -> Outcome:
    """The optimizer holds more than it needs

    What it is
    Adam keeps two moments for each parameter, in float32 8 bytes beside the parameter's own 4 or 2. Its default update works on
    all parameters at once (`foreach`) and makes temporaries as large as the parameters.

    Why it costs time
    State is there all the time, temporaries just when the gradients are too: both take the place of a larger batch.

    How it is measured
    State is what the optimizer's step makes and keeps (older allocations: those of a parameter's size beyond the parameters).
    Allocations are replayed without the temporaries of the step, as a fused update does it (the saving, where that frees
    `min_share` of the peak, {min_share}; `high`: with state of 8 bits too); else, where state is `min_state_share` of the peak or more
    ({min_state_share}), with state of 8 bits (a quarter of it). That is low up to `max_state_share` ({max_state_share}): beside parameters and gradients of
    its own precision Adam's state is a half, as it should be. Savings below `least_bytes` ({least_bytes}) are not reported.

    How to fix it
    `AdamW(..., fused=True)` has no temporaries. State shrinks by 8-bit optimizers (torchao, bitsandbytes), by Adafactor, or by
    sharding it over ranks (ZeroRedundancyOptimizer, FSDP).

    When to ignore it
    When the peak is elsewhere: activations at the end of the forward pass.

    References
    https://docs.pytorch.org/docs/stable/optim.html
    """
    device, lives = attribution.device, replay.recorded
    peak, a = device.peak_allocated, device.allocations
    state = attribution.of(Category.OPTIMIZER_STATE)
    temporary = attribution.of(Category.TEMPORARIES) & (attribution.phase == Phase.OPTIMIZER)
    held = int(a.size[state & device.at_peak].sum())
    if not state.any() and not temporary.any():
        with_stacks(attribution)
        return Clear(why="the window holds no optimizer's state or temporaries")
    without = lives.without(temporary)
    fused = peak - replay.allocated(without)
    eighth = (a.size * (1 - EIGHT_BIT)).astype("i8")
    small = peak - replay.allocated(lives.resized(state, eighth))
    both = peak - replay.allocated(lives.resized(state, eighth).without(temporary))
    if fused >= max(min_share * peak, least_bytes, 1):
        saving = saved(peak, 0.8 * fused, fused, max(both, fused), "the temporaries of the update")
        summary = (
            f"The optimizer's step makes {size(int(a.size[temporary & device.at_peak].sum()))} of temporaries beside {size(held)} of state "
            f"at the peak of {size(peak)}; a fused update frees {size(fused)}."
        )
        rows = temporary & device.at_peak
        own = attribution.origins.column("own_update", a.stack).astype(bool)
        fix = _OF_ONES_OWN if 2 * int(a.size[rows & own].sum()) > int(a.size[rows].sum()) else _FUSED
    elif held >= min_state_share * peak and small >= least_bytes:
        saving = saved(peak, 0.5 * small, small, held, "three quarters of the optimizer's state")
        summary = f"Optimizer state is {size(held)}, {held / peak:.0%} of the peak of {size(peak)}; in 8 bits it frees {size(small)}."
        rows, fix = state & device.at_peak, _IN_8_BITS
    else:
        return Clear(
            why=f"state is {percent(held / peak)} of the peak of {size(peak)} (reported from {min_state_share:.0%}), "
            f"and a fused update would free {size(max(fused, 0))}"
        )
    return Found(
        summary=summary,
        confidence=0.8,
        at_most="high" if fused >= min_share * peak or held >= max_state_share * peak else "low",
        saving=saving,
        evidence=places(attribution, rows if rows.any() else np.asarray(temporary | state)),
        fix=and_batch(fix, attribution, saving.expected, of_batch=False),
    )
