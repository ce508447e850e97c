"""Cached segments are given back and asked for again."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.recordings.snapshot import Action
from advisor.report.finding import Clear, Code, Evidence, Fix, Saving, SourceLine
from advisor.report.numbers import counted, duration, percent, size, times
from advisor.rules._memory import with_history
from advisor.views.memory.attribution import Attribution
from advisor.views.memory.patterns import returned


@rule("memory-churn", relies_on=("memory",))
def memory_churn(attribution: Attribution, *, min_rounds: int = 3, min_time_share: float = 0.02) -> Outcome:
    """Cached segments are freed and allocated again

    What
    `torch.cuda.empty_cache()` runs in a loop. Or the GPU is so full that the allocator empties its cache to
    serve a request. The next step then requests the same memory from the driver again.

    Why
    `cudaMalloc` and `cudaFree` wait for the GPU and take up to milliseconds each. The host cannot run ahead
    meanwhile.

    How to fix
    Remove `empty_cache()` from the loop:

        for batch in loader:
            step(batch)            # no torch.cuda.empty_cache()

    If the GPU is full, reduce the peak first: see the other findings.

    When to ignore
    Another process needs the memory between steps.

    How it is measured
    A round frees segments to the driver, and at least half of their bytes are allocated again before the next
    round. Its time is that between a segment's event and the event before it. `high` adds the wait for the GPU
    before each round. The rule reports `min_rounds` ({min_rounds}) or more that take `min_time_share` ({min_time_share}) of the
    window. The saving is time, not memory.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
    """
    device = with_history(attribution)
    events = device.events
    given, asked, starts, rounds = returned(device)
    if not len(given):
        return Clear(why="no segment was freed to the driver")
    if rounds < min_rounds:
        return Clear(why=f"cached segments were freed and allocated again {times(rounds)} (threshold {min_rounds})")
    waits = np.diff(events.time_us, prepend=events.time_us[:1])
    both = np.r_[given, asked[asked > starts[0]]]
    # The first event of a round has waited for the GPU to finish, which other work would have done as well.
    window = float(events.time_us[-1] - events.time_us[starts[0]])
    spent, waited = float(waits[np.setdiff1d(both, starts)].sum()), float(waits[starts[1:]].sum())
    share = spent / window if window else 0.0
    if share < min_time_share:
        return Clear(why=f"{counted(rounds, 'round')} of freeing and allocating again took {percent(share)} of the window's time")
    again = int(events.size[asked[asked > starts[0]]].sum())
    where = next((attribution.origins.of[int(events.stack[i])] for i in starts.tolist() if events.stack[i] >= 0), None)
    full = bool((events.action == Action.OOM).any())
    return Found(
        summary=f"{times(rounds).capitalize()} cached segments were freed and {size(again / rounds)} allocated again: "
        f"{share:.0%} of the window's time, {duration(spent)}, went to cudaMalloc and cudaFree.",
        confidence=0.85,
        saving=Saving(0.5 * spent, spent, spent + waited, "measured", "cudaMalloc and cudaFree", per="recording"),
        evidence=(
            Evidence(
                label="freed segments", count=len(given), device=device.device, start_us=float(events.time_us[starts[0]] - events.time_us[0]),
                dur_us=spent, bytes=int(events.size[given].sum()), source=SourceLine(where.file, where.line) if where and where.file else None,
            ),
        ),
        fix=Fix(
            title="Free memory first, so that the cache can stay" if full else "Leave the cache to the allocator",
            steps=(
                "Remove torch.cuda.empty_cache() from the loop: freed blocks are used again without it.",
                "If a request ran out of memory, the allocator empties its cache itself: lower the peak instead.",
            ),
            code=Code(before="for batch in loader:\n    step(batch)\n    torch.cuda.empty_cache()", after="for batch in loader:\n    step(batch)"),
            url="https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html",
            risk="Other processes on the GPU see less free memory.",
        ),
    )  # fmt: skip
