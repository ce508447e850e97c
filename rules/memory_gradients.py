"""Gradients are kept through the forward pass."""

from __future__ import annotations

from collections import Counter

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.recordings.snapshot import MemorySnapshot
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import size
from advisor.rules._memory import LEAST_BYTES, and_batch, places, saved, with_stacks
from advisor.views.memory.attribution import Attribution, Category
from advisor.views.memory.history import Bools
from advisor.views.memory.origins import Phase
from advisor.views.memory.replay import Lives, MemoryReplay


@rule("memory-gradients", relies_on=("memory",))
def memory_gradients(
    snapshot: MemorySnapshot,
    attribution: Attribution,
    replay: MemoryReplay,
    *,
    min_share: float = 0.05,
    least_bytes: int = LEAST_BYTES,
) -> Outcome:
    """Gradients are kept through the forward pass

    What
    `zero_grad(set_to_none=False)` fills gradients with zeros and keeps them. They use memory while the forward
    pass collects its activations. Each new gradient is created in addition to the old, and then added to it.

    Why
    The peak includes as much memory as the parameters, full of zeros. Filling and adding also cost time.

    How to fix
    Use the default:

        optimizer.zero_grad()          # set_to_none=True

    When to ignore
    Gradients must stay in place for a CUDA graph or a distributed optimizer's buckets.

    How it is measured
    The rule finds gradients that were created in a backward pass and still exist in the next, with an optimizer
    step between. Without such a step, gradients are accumulated, which is correct. In the replay they are freed
    after the step and created again by the next backward pass (`low`: half of that). It reports `min_share`
    ({min_share}) of the peak and `least_bytes` ({least_bytes}) or more.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    """
    device = with_stacks(attribution)
    a, peak = device.allocations, device.peak_allocated
    backward = attribution.runs.starts_of(Phase.BACKWARD)
    if len(backward) < 2:
        return Clear(why=f"gradients live between two backward passes, and the window holds {len(backward) or 'none'}")
    passes = np.searchsorted(backward, a.freed) - np.searchsorted(backward, np.maximum(a.born, 0), side="right")
    rows = attribution.in_categories(Category.GRADIENTS) & (a.born >= 0) & (passes > 0)
    updates = _updates(snapshot, attribution)
    stepped = np.searchsorted(updates, np.minimum(a.freed, len(device.events))) > np.searchsorted(updates, np.maximum(a.born, 0))
    rows &= stepped
    expected = peak - replay.allocated(_dropped(attribution, replay.recorded, rows, backward)) if rows.any() else 0
    if expected < max(min_share * peak, least_bytes, 1):
        return Clear(why=f"gradients that outlive their update hold {size(int(a.size[rows & device.at_peak].sum()))} of the peak of {size(peak)}")
    saving = saved(peak, 0.5 * expected, expected, int(a.size[rows & device.at_peak].sum()), "gradients between steps")
    return Found(
        summary=f"{size(int(a.size[rows].sum()))} of gradients are never freed between steps and add to the activations "
        f"at the peak of {size(peak)}. Dropped after each update, they free {size(expected)}.",
        confidence=0.85,
        saving=saving,
        evidence=places(attribution, rows),
        fix=and_batch(
            Fix(
                title="Drop the gradients instead of filling them with zeros",
                steps=("Call zero_grad(set_to_none=True), the default since PyTorch 2.0, right after the optimizer's step.",),
                code=Code(before="optimizer.zero_grad(set_to_none=False)", after="optimizer.zero_grad(set_to_none=True)"),
                url="https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
                holds_for=("training",),
                risk="Parameters that got no gradient have grad None, which optimizers skip.",
            ),
            attribution,
            expected,
            of_batch=False,
        ),
    )


def _updates(snapshot: MemorySnapshot, attribution: Attribution) -> np.ndarray:
    """Events at which an optimizer's step ended."""
    marked = [m.end_us for m in snapshot.marks if m.name.startswith("Optimizer.step#")]
    allocated = attribution.runs.end[attribution.runs.phase == Phase.OPTIMIZER]
    by_mark = np.searchsorted(attribution.device.events.time_us, sorted(marked))
    return np.unique(np.r_[by_mark, allocated])


def _dropped(attribution: Attribution, lives: Lives, rows: Bools, backward: np.ndarray) -> Lives:
    """Gradients given back as the forward pass after their update begins, and taken over from what each backward pass makes."""
    a, runs = attribution.device.allocations, attribution.runs
    ends = runs.end[runs.phase == Phase.BACKWARD]
    drop = np.where(rows, ends[np.maximum(np.searchsorted(ends, np.maximum(a.born, 0), side="right"), 0).clip(max=len(ends) - 1)], a.freed)
    freed = np.where(rows, np.minimum(drop, a.freed), lives.freed)
    made = attribution.in_categories(Category.TEMPORARIES) & (attribution.phase == Phase.BACKWARD)
    for start, end in zip(backward.tolist(), ends.tolist(), strict=True):
        # What a later pass makes in the place of a gradient comes from the same node, and is of its size.
        wanted = Counter(zip(a.stack[rows & (a.born < start)].tolist(), a.requested[rows & (a.born < start)].tolist(), strict=True))
        for row in np.flatnonzero(made & (a.born >= start) & (a.born < end)).tolist():
            key = int(a.stack[row]), int(a.requested[row])
            if wanted[key] > 0:
                wanted[key] -= 1
                freed[row] = end
    return lives._replace(freed=freed, completed=np.maximum(freed, np.where(freed == lives.freed, lives.completed, freed)))
