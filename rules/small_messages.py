"""Many collectives so small that starting them takes longer than sending them."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from advisor.engine.rule import Found, Outcome, Range, rule
from advisor.knowledge.collectives import Collective
from advisor.knowledge.measured_costs import costs
from advisor.report.finding import Clear, Evidence
from advisor.report.numbers import counted, duration
from advisor.report.wording.period import A_STEP, PER_STEP
from advisor.rules.fixes import for_framework, known_fix
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.edits import JobEdits, Transfers
from advisor.views.ranks.job import Job

ISSUES = costs("issuing-a-collective")

LEAST_BYTES = 1024
"""Below this a message is a number that somebody wants to see, no gradient."""

_MERGED = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER)


@rule("small-messages", relies_on=("ranks",), min_saving_share=0.02)
def small_messages(
    job: Job,
    *,
    small_mib: Annotated[float, Range(0.0)] = 4.0,
    bucket_mib: Annotated[float, Range(0.1)] = 25.0,
    min_calls: Annotated[int, Range(2)] = 16,
) -> Outcome:
    """Many small collectives instead of few large collectives

    What
    Each parameter, or each small bucket, is averaged by its own collective.

    Why
    A collective takes 20 µs before the first byte arrives, and 50 µs of CPU time to launch, whatever its size.
    Below a few MiB this is most of its time, and the link idles.

    How to fix
    Keep DistributedDataParallel's default bucket size, or flatten gradients by hand:

        model = DistributedDataParallel(model)                  # bucket_cap_mb=25
        flat = torch.cat([g.view(-1) for g in gradients])       # by hand: a single all-reduce
        dist.all_reduce(flat)

    When to ignore
    Each collective needs the result of the previous.

    How it is measured
    The rule finds collectives of the same kind and group below `small_mib` ({small_mib}) MiB, `min_calls` ({min_calls}) or more
    per step. The job is replayed with buckets of `bucket_mib` ({bucket_mib}) MiB. They run at the rate of the job's
    largest collectives, and hosts launch fewer of them. The saving is at most the time of these collectives and
    of their launches. Savings below `min_saving_share` ({min_saving_share}) of the job's step are not reported.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    matched = job.matched
    kinds = np.array([KINDS[k] in _MERGED for k in matched.kind.tolist()], bool)
    small = job.in_window & kinds & (matched.bytes >= LEAST_BYTES) & (matched.bytes < small_mib * 2**20)
    at_once = float((small & job.needed).sum()) / max(job.steps, 1)
    small &= ~job.needed
    best: tuple[float, np.ndarray] | None = None
    for key in {(int(k), int(g)) for k, g in zip(matched.kind[small], matched.group[small], strict=True)}:
        rows = np.flatnonzero(small & (matched.kind == key[0]) & (matched.group == key[1]))
        if len(rows) / job.steps >= min_calls and (best is None or matched.transfer_us[rows].sum() > best[0]):
            best = (float(matched.transfer_us[rows].sum()), rows)
    if best is None:
        needed = f" but for {counted(at_once, 'sum')} that the next op needs, which nothing merges" if at_once >= 1 else ""
        return Clear(why=f"fewer than {min_calls} collectives of the same kind below {small_mib:g} MiB {A_STEP}{needed}")
    rows = best[1]
    calls, size = len(rows) / job.steps, float(matched.bytes[rows].sum()) / job.steps
    left = max(1.0, np.ceil(size / (bucket_mib * 2**20)))
    fewer = max(calls - left, 0.0)
    start_us = float(np.percentile(matched.transfer_us[rows], 10))
    moving = max(best[0] / job.steps - fewer * start_us, 0.0)
    factor = min(1.0, (moving + left * start_us) / max(best[0] / job.steps, 1e-9))
    ratio = float(np.median([s.facts.host_us / s.facts.recorded_host_us if s.facts.recorded_host_us else 1.0 for s in job.ranks]))
    issue_us = float(np.median([s.facts.collective_host_us for s in job.ranks])) * ratio
    chosen = tuple(rows.tolist())
    low, expected, high = (Transfers(chosen, factor, fewer * issue_us * times) for times in ISSUES)
    kind = KINDS[int(matched.kind[rows[0]])].value
    return Found(
        summary=f"{counted(calls, f'{kind} collective')} {PER_STEP} carry {size / calls / 2**20:.2g} MiB each, {duration(float(np.median(matched.transfer_us[rows])))} "
        f"a piece; {left:.0f} of {bucket_mib:g} MiB would carry the same.",
        evidence=(
            Evidence(label=f"{kind} below {small_mib:g} MiB, a step", start_us=0.0, dur_us=best[0] / job.steps, count=max(round(calls), 1)),
            Evidence(
                label="host time to launch them, per step, as recorded", start_us=0.0, dur_us=calls * issue_us / max(ratio, 1e-9), count=max(round(calls), 1)
            ),
        ),
        fix=_GRADIENTS if job.trains else for_framework(job.framework, "small-messages", _TENSORS),
        edits=JobEdits(low, expected, high),
        at_most_us=best[0] / job.steps + calls * issue_us * ISSUES[-1],
        removes=f"{fewer:.0f} of {counted(calls, 'collective')} per step",
        quiet=f"{counted(calls, f'small {kind} collective')} {PER_STEP}",
        confidence=0.85,
        cause="communication",
        ranks=job.numbers,
    )


_GRADIENTS = known_fix("jobs", "few-messages-of-gradients")

_TENSORS = known_fix("jobs", "few-messages")
"""Where nothing is trained."""
