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

    What
    Adam keeps two moments per parameter: 8 bytes in FP32, in addition to the parameter's 2 or 4. Its default
    update works on all parameters together (`foreach`) and creates temporaries as large as the parameters.

    Why
    State is always in memory, and temporaries exist together with the gradients. Both reduce the possible batch
    size.

    How to fix
    Use a fused update, which has no temporaries:

        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    To shrink state, use 8-bit optimizers (torchao, bitsandbytes), Adafactor, or shard it over ranks (FSDP,
    ZeroRedundancyOptimizer).

    When to ignore
    The peak is elsewhere, such as activations at the end of the forward pass.

    How it is measured
    State is memory that the optimizer step creates and keeps. In the replay, a fused update has no temporaries.
    The rule reports it if that frees `min_share` ({min_share}) of the peak. `high` also has 8-bit state. Otherwise it
    reports state of `min_state_share` ({min_state_share}) of the peak or more; 8-bit state is a quarter. Severity is `low` up
    to `max_state_share` ({max_state_share}). Savings below `least_bytes` ({least_bytes}) are not reported.

    References
    https://docs.pytorch.org/docs/stable/optim.html
    """
    device, lives = attribution.device, replay.recorded
    peak, a = device.peak_allocated, device.allocations
    state = attribution.in_categories(Category.OPTIMIZER_STATE)
    temporary = attribution.in_categories(Category.TEMPORARIES) & (attribution.phase == Phase.OPTIMIZER)
    held = int(a.size[state & device.at_peak].sum())
    if not state.any() and not temporary.any():
        with_stacks(attribution)
        return Clear(why="the window holds no optimizer's state or temporaries")
    without = lives.without_rows(temporary)
    fused = peak - replay.allocated(without)
    eighth = (a.size * (1 - EIGHT_BIT)).astype("i8")
    small = peak - replay.allocated(lives.resized(state, eighth))
    both = peak - replay.allocated(lives.resized(state, eighth).without_rows(temporary))
    if fused >= max(min_share * peak, least_bytes, 1):
        saving = saved(peak, 0.8 * fused, fused, max(both, fused), "the temporaries of the update")
        summary = (
            f"The optimizer's step makes {size(int(a.size[temporary & device.at_peak].sum()))} of temporaries in addition to {size(held)} of state "
            f"at the peak of {size(peak)}. A fused update frees {size(fused)}."
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
