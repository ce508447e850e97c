"""Gradients that are averaged more often than they are used."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge.collectives import Collective
from advisor.report.finding import Clear, Code, Evidence, Fix
from advisor.report.numbers import counted, duration, times
from advisor.report.wording.period import A_STEP, PER_STEP
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.edits import JobEdits, LessComputing, Several, Transfers
from advisor.views.ranks.job import Job


@rule("redundant-communication", relies_on=("ranks",), min_saving_share=0.02)
def redundant_communication(job: Job) -> Outcome:
    """Gradients are averaged after every micro-batch, though used once

    What
    A step accumulates gradients over several micro-batches, and each backward pass averages them over all
    ranks.

    Why
    Only the last average is used. The others move the same bytes for nothing and make the ranks wait for each
    other.

    How to fix
    Average only after the last micro-batch:

        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            with nullcontext() if last else model.no_sync():
                model(part).backward()

    With `fully_shard`, use `set_requires_gradient_sync(False)`.

    When to ignore
    Memory has no room for full gradients between micro-batches, for example if they are sharded.

    How it is measured
    The rule counts forward passes of the averaging wrapper per step, and all-reduces that repeat as often with
    the same sizes in the same order. The job is replayed without those of all micro-batches except the last.
    Savings below `min_saving_share` ({min_saving_share}) of the job's step are not reported.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    passes = round(float(np.median([s.facts.accumulations for s in job.ranks])))
    if passes < 2:
        return Clear(why=f"a single forward pass {PER_STEP} of a wrapper that averages gradients")
    repeated = _repeats(job, passes)
    if not repeated:
        return Clear(why=f"{passes} forward passes {A_STEP}, gradients averaged once")
    matched = job.matched
    moved = float(matched.transfer_us[list(repeated)].sum()) / job.steps
    issue_us = float(np.median([s.facts.collective_host_us for s in job.ranks])) * len(repeated) / job.steps
    # Kernels that these collectives slowed run as alone.
    beside = LessComputing(((1 - 1 / passes) * float(np.median([s.facts.contended_us for s in job.ranks])),))
    edit = Several((Transfers(repeated, 0.0, issue_us), beside))
    return Found(
        summary=f"Gradients are averaged {times(passes)} {PER_STEP} and used once: {counted(len(repeated) / job.steps, 'all-reduce is', 'all-reduces are')} for nothing, {duration(moved)} of transfers.",
        evidence=(
            Evidence(label="all-reduces of micro-batches before the last, a step", start_us=0.0, dur_us=moved, count=max(round(len(repeated) / job.steps), 1)),
        ),
        fix=Fix(
            title="Average gradients after the last micro-batch only",
            steps=("Run the forward and backward pass of every micro-batch but the last inside model.no_sync().",),
            code=Code(
                before="for part in parts:\n    model(part).backward()",
                after="for i, part in enumerate(parts):\n    last = i == len(parts) - 1\n    with nullcontext() if last else model.no_sync():\n        model(part).backward()",
            ),
            url="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
            holds_for=("training",),
            risk="With sharded gradients, each rank holds full gradients until the last micro-batch.",
        ),
        edits=JobEdits(Transfers(repeated, 0.0), edit, edit),
        removes="averages of all micro-batches but the last",
        quiet=f"gradients are averaged {times(passes)} {PER_STEP}",
        cause="communication",
        ranks=job.numbers,
    )


def _repeats(job: Job, passes: int) -> tuple[int, ...]:
    """The all-reduces of all micro-batches but the last: of each step's, if they repeat `passes` times alike."""
    matched = job.matched
    first = job.ranks[0]
    mine = np.flatnonzero(matched.of == 0)
    step = first.step[matched.row[mine]]
    reduce = matched.kind[matched.collective[mine]] == KINDS.index(Collective.ALL_REDUCE)
    found: list[int] = []
    for number in range(job.steps):
        here = mine[(step == number) & reduce & job.in_window[matched.collective[mine]]]
        here = here[np.argsort(first.launch_us[matched.row[here]], kind="stable")]
        each = len(here) // passes
        if each == 0 or len(here) % passes:
            continue
        sizes = matched.bytes[matched.collective[here]].reshape(passes, each)
        if (sizes == sizes[0]).all():
            found += matched.collective[here[: each * (passes - 1)]].tolist()
    return tuple(found)
