"""Kernels that take longer while communication runs next to them."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from advisor.engine.rule import Found, Outcome, Range, Share, rule
from advisor.report.finding import Clear, Code, Evidence, Fix, Saving
from advisor.report.numbers import duration, percent, threshold
from advisor.report.wording.period import PER_STEP, THE_STEP
from advisor.views.ranks.job import Job


@rule("communication-contention", relies_on=("ranks",))
def communication_contention(job: Job, *, min_ratio: Annotated[float, Range(1.0)] = 1.25, min_share: Share = 0.05) -> Outcome:
    """Kernels run slower during communication

    What
    Collectives run on SMs and use memory bandwidth. Kernels that run at the same time get less of both.

    Why
    Overlap hides communication, but part of the gain is lost. A GEMM that is planned for all SMs needs a second
    wave for the last blocks.

    How to fix
    Give collectives fewer channels and measure:

        NCCL_MAX_CTAS=8 torchrun train.py

    Larger buckets also help, since fewer kernels then run during communication.

    When to ignore
    Communication takes longer than computing. Slowing it then costs more than the kernels gain.

    How it is measured
    The rule compares the same kernel with the same grid, during communication and without it. It reports a
    median ratio of `min_ratio` ({min_ratio}) or more, if the difference is `min_share` ({min_share}) of the step or more. A
    trace does not show how much a setting recovers, so the saving is between zero and the whole difference. The
    finding is unconfirmed.

    References
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-max-ctas
    https://github.com/NVIDIA/nccl/issues/1428
    """
    extra = np.array([s.facts.contended_us for s in job.ranks])
    ratio = np.array([s.facts.contention_ratio for s in job.ranks])
    lost, usual = float(np.median(extra)), float(np.median(ratio))
    share = lost / job.step_us if job.step_us else 0.0
    if usual < min_ratio or share < min_share:
        return Clear(
            why=f"kernels during communication take {usual:.2f} times as long as alone, {percent(share, min_share)} of {THE_STEP} (threshold {min_ratio} and {threshold(min_share)})"
        )
    return Found(
        summary=f"Kernels during communication take {usual:.2f} times as long as the same kernels alone, {duration(lost)} more {PER_STEP}.",
        evidence=(Evidence(label="kernel time beyond that of the same kernels alone, per step, median rank", start_us=0.0, dur_us=lost),),
        fix=Fix(
            title="Leave SMs to the GEMMs",
            steps=(
                "Limit the channels of collectives (NCCL_MAX_CTAS, or config.max_ctas of the process group) and measure.",
                "Use larger buckets, so that fewer kernels run during communication.",
            ),
            code=Code(before="torchrun train.py", after="NCCL_MAX_CTAS=8 torchrun train.py"),
            url="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-max-ctas",
            risk="Collectives on fewer channels are slower: the step can be longer.",
        ),
        saving=Saving(0.0, 0.0, lost, "bound", "slowdown of kernels during communication"),
        status="possible",
        possible_why="a trace does not show the speed with fewer channels",
        decide_with="NCCL_MAX_CTAS=8 torchrun …",
        confidence=0.6,
        at_most="low",
        cause="communication",
        ranks=job.numbers,
    )
