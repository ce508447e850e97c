"""A buffer grows by being copied."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.shares import CONSIDERABLE
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import size, times
from advisor.rules._memory import LEAST_BYTES, places, saved, with_history, with_stacks
from advisor.views.memory.attribution import Attribution
from advisor.views.memory.patterns import Growth
from advisor.views.memory.replay import Lives, MemoryReplay, Peaks

CACHED = 1 + CONSIDERABLE
"""Reserved over allocated from which the fix is about reserved memory: old places of the copies cost most."""


@rule("memory-growth", relies_on=("memory",))
def memory_growth(attribution: Attribution, replay: MemoryReplay, growth: Growth, *, min_share: float = 0.05, least_bytes: int = LEAST_BYTES) -> Outcome:
    """A buffer grows by being copied

    What
    `cache = torch.cat([cache, new])` runs in each step: a KV cache, a replay buffer, a list of results. Old and
    new buffer exist at the same time. Each is larger than the last, so none fits into an earlier block.

    Why
    Each step copies all earlier data and may call `cudaMalloc`, which waits for the GPU. The allocator keeps
    blocks of all earlier sizes: many times the memory in use.

    How to fix
    Allocate the longest buffer once and write into it:

        cache = torch.empty(batch, heads, longest, dim, device="cuda")
        cache[:, :, length : length + 1] = new
        length += 1

    With transformers, use `StaticCache`.

    When to ignore
    The buffer grows only a few times.

    How it is measured
    The rule finds allocations of the same place that grow step by step, each created while the previous still
    exists. In the replay, a single allocation of the last size replaces them (`low`: twice that size). The
    saving is in reserved bytes if these are 1.25 times the allocated bytes or more. The rule reports
    `min_share` ({min_share}) of the peak and `least_bytes` ({least_bytes}) or more.

    References
    https://huggingface.co/docs/transformers/kv_cache
    """
    device, lives = with_history(attribution), replay.recorded
    if not growth.chains:
        with_stacks(attribution)
        return Clear(why="no place's allocations grow step by step")
    of = "reserved" if device.peak_reserved > CACHED * device.peak_allocated else "allocated"

    def freed(grown: Lives) -> int:
        peaks: Peaks = replay.run(grown)
        return device.peak_reserved - peaks.reserved if of == "reserved" else device.peak_allocated - peaks.allocated

    whole = device.peak_reserved if of == "reserved" else device.peak_allocated
    expected = freed(_preallocated(lives, growth, 1))
    copies = sum(len(chain.rows) for chain in growth.chains)
    if expected < max(min_share * whole, least_bytes, 1):
        return Clear(why=f"{copies} copies of growing buffers cost {size(max(expected, 0))} of {size(whole)} {of}")
    saving = saved(whole, freed(_preallocated(lives, growth, 2)), expected, 1.05 * expected, "the copies of growing buffers", of)
    rows = np.zeros(len(device.allocations), bool)
    rows[np.concatenate([chain.rows for chain in growth.chains])] = True
    largest = sum(int(device.allocations.requested[chain.rows].max()) for chain in growth.chains)
    return Found(
        summary=f"{len(growth.chains)} buffer{'s' * (len(growth.chains) > 1)} of {size(largest)} in all were copied {times(copies)} to grow; "
        f"{size(whole)} are {of}, and allocated once they would need {size(whole - expected)}.",
        confidence=0.9 if attribution.origins.native else 0.75,
        saving=saving,
        evidence=places(attribution, rows),
        fix=Fix(
            title="Allocate the longest once and write into it",
            steps=(
                "Make the buffer as long as it can get, before the loop.",
                "Write each new part into its place, and pass on the slice that is filled.",
                "With transformers, use StaticCache (cache_implementation='static'), which compiles too.",
            ),
            code=Code(
                before="cache = torch.cat([cache, new], dim=2)",
                after="cache[:, :, length : length + 1] = new  # made once, at the longest\nlength += 1",
            ),
            url="https://huggingface.co/docs/transformers/kv_cache",
            risk="The longest length must be known; memory for it is taken from the start.",
        ),
    )


def _preallocated(lives: Lives, growth: Growth, times: int) -> Lives:
    """Each buffer made once, at its last size times `times`, and kept from its first birth to its last end."""
    requested, size, freed, completed = (column.copy() for column in (lives.requested, lives.size, lives.freed, lives.completed))
    gone = np.zeros(len(requested), bool)
    for chain in growth.chains:
        first, others = chain.rows[0], chain.rows[1:]
        # A block from before the window lies where it is: what replaces it is asked for with the first copy.
        first, others = (first, others) if lives.born[first] >= 0 else (others[0], np.r_[first, others[1:]])
        requested[first] = size[first] = times * requested[chain.rows].max()
        freed[first], completed[first] = freed[chain.rows].max(), completed[chain.rows].max()
        gone[others] = True
    return lives._replace(requested=requested, size=size, freed=freed, completed=completed).without_rows(gone)
