"""Hosts that wait for a collective before they go on."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from advisor.engine.rule import Found, Outcome, Range, rule
from advisor.knowledge.measured_costs import cost
from advisor.report.finding import Clear, Code, Evidence, Fix
from advisor.report.numbers import counted, duration
from advisor.report.wording.period import IN_STEP, PER_STEP
from advisor.views.ranks.edits import HOST_PARTS, FasterHost, JobEdits, Several, WithoutHolding
from advisor.views.ranks.job import Job
from advisor.views.ranks.lane import PARTS

CALLS = cost("reading-a-sum")


@rule("rank-sync", relies_on=("ranks",), min_saving_share=0.03)
def rank_sync(job: Job, *, min_holds: Annotated[int, Range(1)] = 2) -> Outcome:
    """Hosts wait for what ranks have reduced

    What
    A metric is averaged over ranks and read immediately (`.item()`), or the step contains a barrier. The host
    waits until the last rank arrives, and only then launches the next kernels.

    Why
    The launch queue runs empty during the wait. Every rank pays for the slowest rank, and for the time to fill
    the queue again.

    How to fix
    Keep metrics on the GPU, reduce them together, and read them rarely:

        norms.append(norm)
        if step % 100 == 0:
            total = torch.stack(norms)
            dist.all_reduce(total)
            log(total.mean().item())
            norms.clear()

    Remove barriers: collectives already order the ranks.

    When to ignore
    The value decides which work runs next.

    How it is measured
    The rule finds collectives that end inside a blocking host call, after which the host launches the next
    kernel. It reports `min_holds` ({min_holds}) or more per step. In the replay, hosts run ahead and these collectives
    disappear. No step becomes shorter than its host's own time. Savings below `min_saving_share` ({min_saving_share}) of the
    job's step are not reported.

    References
    https://docs.pytorch.org/docs/stable/distributed.html
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    """
    schedule, step_us = job.replay.corrected, job.true_step.expected_us
    holds = float(schedule.held.sum()) / len(job.ranks) / max(job.steps, 1)
    if holds < min_holds:
        return Clear(why=f"hosts wait for {f'{holds:.1f} collectives' if holds else 'no collective'} {IN_STEP} (threshold {min_holds})")
    refill = float(schedule.own[schedule.held][:, [PARTS.index(p) for p in HOST_PARTS]].sum()) / len(job.ranks) / max(job.steps, 1)
    ratio = float(np.median([s.facts.host_us / s.facts.recorded_host_us if s.facts.recorded_host_us else 1.0 for s in job.ranks]))
    issue_us = float(np.median([s.facts.collective_host_us for s in job.ranks])) * ratio
    expected = Several((WithoutHolding(), FasterHost((CALLS * holds * issue_us,))))
    return Found(
        summary=f"Hosts wait for {counted(holds, 'collective')} {PER_STEP} before they launch more. Right after these waits GPUs idle {duration(refill)} of "
        f"{duration(step_us)}, and the ranks wait for each other.",
        evidence=(
            Evidence(
                label="GPUs idle until the host has launched the next kernels, per step, mean of the ranks", start_us=0.0, dur_us=refill, count=round(holds)
            ),
        ),
        fix=Fix(
            title="Read reduced metrics later, or not in every step",
            steps=(
                "Accumulate metrics on the device and reduce them in a single tensor, once in many steps.",
                "Copy what must be seen with non_blocking=True and read it a step later.",
                "Remove barriers from the step: each collective already is a barrier.",
            ),
            code=Code(
                before="dist.all_reduce(norm)\nlog(norm.item())",
                after="norms.append(norm)\nif step % 100 == 0:\n    total = torch.stack(norms)\n    dist.all_reduce(total)\n    log(total.mean().item())\n    norms.clear()",
            ),
            url="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization",
        ),
        edits=JobEdits(WithoutHolding(0.5), expected, expected),
        removes="the host's waits for collectives",
        quiet=f"hosts wait for {counted(holds, 'collective')} {PER_STEP}",
        confidence=0.85,
        cause="host",
        ranks=job.numbers,
    )
