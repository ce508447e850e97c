"""One rank that all others wait for."""

from __future__ import annotations

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.report.finding import Clear, Evidence
from advisor.report.numbers import duration, percent, threshold
from advisor.report.wording.period import EVERY_STEP, PER_STEP
from advisor.rules.fixes import known_fix
from advisor.views.ranks.culprit import CAUSES, Culprit
from advisor.views.ranks.edits import JobEdits, MedianParts
from advisor.views.ranks.job import Job

_TITLES = {
    "compute": "Rank {rank} computes longer than the others",
    "host": "Rank {rank}'s CPU code delays the others",
    "data-loading": "Rank {rank} waits for its input and delays the others",
    "copy": "Rank {rank} copies more than the others",
}
_FIXES = {cause: known_fix("jobs", f"straggler-{cause}") for cause in ("compute", "host", "data-loading", "copy")}

_JITTER = known_fix("jobs", "jitter")


@rule("straggler", relies_on=("ranks",), min_saving_share=0.02)
def straggler(job: Job, culprit: Culprit, *, min_late_share: Share = 0.5, min_explained: Share = 0.8, min_dispatch_share: Share = 0.25) -> Outcome:
    """A rank holds the others up

    What
    A collective begins when the last rank arrives. The same rank arrives later than the others in every step,
    and all others wait.

    Why
    The job's step takes as long as the slowest rank's step. The other GPUs look busy, because a waiting
    collective occupies them.

    How to fix
    The fix depends on the cause, which the finding names:

        DataLoader(..., num_workers=8)              # input: more workers on that rank
        if step % 1000 == 0 and rank == 0: save()   # host: fewer rank-0 duties in the step
        nvidia-smi -q -d CLOCK,PERFORMANCE          # compute: compare the GPU's clocks

    If ranks delay each other in turn, make rare work (garbage collection, checkpoints) happen on all ranks at
    the same time.

    When to ignore
    The rank did something rare in the recorded steps, such as a checkpoint.

    How it is measured
    Collectives are matched across ranks and the job is replayed. The straggler is the rank that costs the job
    most beyond the others' median. The rule divides this excess into computation, input, CPU and copies.

    | Condition | Value |
    |---|---|
    | `min_explained`: of the gain, by a single cause | {min_explained} |
    | `min_late_share`: of all waits, for this rank | {min_late_share} |
    | `min_dispatch_share`: of the step, if only launches are slower | {min_dispatch_share} |
    | `min_saving_share`: of the job's step | {min_saving_share} |

    References
    https://www.usenix.org/conference/osdi25/presentation/lin-jinkun
    https://docs.pytorch.org/docs/stable/distributed.html
    """
    rank, cause = job.numbers[culprit.at], culprit.cause
    why = f"rank {rank} as fast as the others would gain {percent(culprit.gain)} of the job's step"
    if culprit.late_share < min_late_share:
        return Clear(
            why=f"rank {rank} takes longest, but only {percent(culprit.late_share, min_late_share)} of all waits are for it (threshold {threshold(min_late_share)})"
        )
    if cause == "imbalance":
        return Clear(why=f"{why}, by having the same amount of work: load-imbalance covers that")
    if cause == "host" and culprit.dispatch:
        recording = job.true_step.recording_us / job.true_step.expected_us
        if culprit.gain < max(min_dispatch_share, recording):
            least = f"reported from {min_dispatch_share:.0%} and from the profiler overhead, {recording:.0%}"
            return Clear(why=f"{why}, by launching kernels as fast, but the profiler slows launches too. It is {least}")
    if culprit.explained < min_explained:
        return Clear(why=f"{why}; no single cause explains {min_explained:.0%} of that")
    edit = MedianParts(ranks=(culprit.at,))
    guessed = cause == "data-loading" and culprit.guessed
    spent = "host" if guessed else cause
    excess = culprit.excess_us[spent]
    # A recording without steps is one run from its beginning: a rank that came late to it, or met more for the first time, may not be late again.
    once = job.steps == 1 and all(one.facts.basis == "whole" for one in job.ranks)
    lead = f"Rank {rank} spends {duration(excess)} {PER_STEP} more than the median rank on {_GUESSED if guessed else _SPENT[cause]}"
    if not culprit.steady:
        return Found(
            title="Different ranks delay the others from step to step",
            summary=f"{lead}, but not in {EVERY_STEP}: this is jitter, and no single rank is the cause.",
            evidence=_evidence(job, culprit, spent),
            fix=_JITTER,
            edits=JobEdits(MedianParts(ranks=(culprit.at,), share=0.0), edit, edit),
            removes="the excess of the latest rank",
            quiet="no single rank delays the job",
            confidence=0.5,
            at_most="low",
            cause=cause,
            ranks=(rank,),
        )
    return Found(
        title=_TITLES[cause].format(rank=rank),
        summary=f"{lead}; the others wait for it." + (" The trace does not show its work; input is most likely." if guessed else ""),
        evidence=_evidence(job, culprit, spent),
        fix=_FIXES[cause],
        edits=JobEdits(MedianParts(ranks=(culprit.at,), parts=CAUSES[spent], share=0.7), edit, edit),
        removes="the rank's excess over the median of the others",
        quiet="no single rank delays the job",
        confidence=0.7 if guessed else 0.9,
        at_most="low" if once else "high",
        cause=cause,
        ranks=(rank,),
    )


_GUESSED = "the host before a step's first launch"
_SPENT = {"compute": "computing", "host": "its host's work", "data-loading": "waiting for input", "copy": "copies"}


def _evidence(job: Job, culprit: Culprit, cause: str) -> tuple[Evidence, ...]:
    one = job.ranks[culprit.at]
    start = one.facts.start_us
    made = [
        Evidence(label=f"rank {one.rank}: {_SPENT[c]} beyond the median of the others, a step", start_us=start, dur_us=max(us, 0.0), count=job.steps)
        for c, us in sorted(culprit.excess_us.items(), key=lambda item: (item[0] != cause, -item[1]))
        if us > 0 or c == cause
    ]
    late = float(job.lateness_us[culprit.at])
    if late > 0:
        made.append(
            Evidence(
                label=f"wait of the median rank for rank {one.rank} in collectives, per step",
                start_us=start,
                dur_us=late,
                count=job.steps,
            )
        )
    return tuple(made)
