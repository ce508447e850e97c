"""A buffer grows by being copied."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import size, times
from advisor.rules._memory import LEAST_BYTES, places, saved, with_history, with_stacks
from advisor.views.memory.attribution import Attribution
from advisor.views.memory.patterns import Growth
from advisor.views.memory.replay import Lives, MemoryReplay, Peaks

CACHED = 1.25
"""Reserved over allocated from which the fix is told by what is reserved: the copies' old places are what costs."""


@rule("memory-growth", relies_on=("memory",))
def memory_growth(attribution: Attribution, replay: MemoryReplay, growth: Growth, *, min_share: float = 0.05, least_bytes: int = LEAST_BYTES) -> Outcome:
    """A buffer grows by being copied

    What it is
    `cache = torch.cat([cache, new])` in each step: a key-value cache, a replay buffer, a list of results. The old and the new one
    are held at once, and since each is larger than the last, none fits where an earlier one was.

    Why it costs time
    Each step copies all that was there before, and cudaMalloc is called again and again, each time waiting for the GPU. The
    allocator keeps the places of all earlier sizes, many times what is in use.

    How it is measured
    Allocations of one place whose sizes grow a little each time, each made while the one before is still there. Requests are
    replayed through the caching allocator with one allocation of the last size instead, from the first birth to the last end.
    The saving is of reserved bytes where these are 1.25 times what is allocated or more. `low`: twice that size, as who
    does not know the length would allocate. Reported from `min_share` of the peak ({min_share}) and `least_bytes` ({least_bytes}).

    How to fix it
    Allocate the longest once and write into it: `cache[:, :, at : at + 1] = new`. With transformers: `StaticCache`.

    When to ignore it
    When the buffer grows a few times in all.

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
    return lives._replace(requested=requested, size=size, freed=freed, completed=completed).without(gone)
