"""Pipeline stages that stand idle while the pipeline fills and drains."""

from __future__ import annotations

from typing import Annotated

from advisor.engine.rule import Found, Outcome, Range, Share, rule
from advisor.report.finding import Clear, Code, Evidence, Fix, Saving
from advisor.report.numbers import duration, percent, threshold
from advisor.report.wording.period import THE_STEP
from advisor.views.ranks.job import Job
from advisor.views.ranks.pipeline import Pipeline


@rule("pipeline-bubble", relies_on=("ranks",), min_saving_share=0.03)
def pipeline_bubble(job: Job, pipeline: Pipeline, *, most_micro_batches: Annotated[int, Range(1)] = 64, min_bubble_share: Share = 0.1) -> Outcome:
    """Pipeline stages wait while the pipeline fills and drains

    What
    A batch passes through the pipeline stages in few micro-batches. The last stage waits for the first
    micro-batch, and the first stage waits for the gradients to return.

    Why
    With p stages and m micro-batches, each stage idles for (p - 1) / (m + p - 1) of the step. Its sends and
    receives occupy the GPU meanwhile, so it looks busy.

    How to fix
    Use more micro-batches:

        schedule = Schedule1F1B(stage, n_microbatches=16)      # was: ScheduleGPipe(stage, 8)

    Or use an interleaved schedule with several short stages per rank, or a zero-bubble schedule.

    When to ignore
    Micro-batches are so small that their kernels do not fill the GPU. The replay shows this.

    How it is measured
    Stages and micro-batches come from matched messages between ranks. The schedule is replayed with two, four
    and eight times as many micro-batches, up to `most_micro_batches` ({most_micro_batches}). Kernels never become shorter than
    the shortest kernel, and the host launches more of them. The saving is that of twice as many. The rule
    reports bubbles of `min_bubble_share` ({min_bubble_share}) of the step or more. Savings below `min_saving_share` ({min_saving_share}) of
    the job's step are not reported.

    References
    https://arxiv.org/abs/2104.04473
    https://docs.pytorch.org/docs/stable/distributed.pipelining.html
    """
    p, m = pipeline.stages, pipeline.micro_batches
    if p < 2:
        return Clear(why="no stages that send to each other in order")
    if pipeline.bubble_share < min_bubble_share:
        return Clear(why=f"{p} stages wait for {percent(pipeline.bubble_share, min_bubble_share)} of {THE_STEP} (threshold {threshold(min_bubble_share)})")
    tried = {k * m: pipeline.replayed_us(k * m) for k in (2, 4, 8, 16) if k * m <= most_micro_batches}
    now = pipeline.replayed_us(m)
    best = min(tried, key=lambda n: (tried[n], n), default=m)
    # The smallest number that comes close to the best asks least of the batch.
    best = next((n for n in sorted(tried) if tried[n] <= 1.03 * tried[best]), best)
    gain = max(0.0, 1 - tried.get(best, now) / now) if now else 0.0
    double = max(0.0, 1 - tried.get(2 * m, now) / now)
    # A measured doubling holds; what further ones gain the replay knows less well, so they are named and not promised.
    further = f", and on to {best} as long as {THE_STEP} gets shorter" if best > 2 * m else ""
    quiet = f"{p} stages in {m} micro-batches wait for {percent(pipeline.bubble_share)} of {THE_STEP}; more micro-batches replay no faster"
    step, true_us = job.step_us, job.true_step.expected_us
    low, high = 0.7 * min(double, gain), min(1.0, max(1.3 * gain, gain))
    return Found(
        summary=f"{p} stages wait for {pipeline.bubble_share:.0%} of {THE_STEP} while {m} micro-batches go through them. "
        f"With {2 * m}, {THE_STEP} replays in {duration(true_us * (1 - double))} instead of {duration(true_us)}.",
        evidence=(
            Evidence(label="waits in sends and receives, a step, mean of the stages", start_us=0.0, dur_us=pipeline.bubble_share * true_us, count=m),
            *(
                Evidence(label=f"the step with {n} micro-batches, replayed", start_us=0.0, dur_us=us * true_us / now, count=n)
                for n, us in sorted({m: now, **tried}.items())
            ),
        ),
        fix=Fix(
            title=f"Divide the batch into {2 * m} micro-batches" if best > m else "Interleave the stages",
            steps=(
                f"Raise the number of micro-batches from {m} to {2 * m} at the same batch size{further}.",
                "Or interleave: give each rank several short stages (Interleaved1F1B), which divides the bubble by their number.",
            ),
            code=Code(before=f"ScheduleGPipe(stage, n_microbatches={m})", after=f"Schedule1F1B(stage, n_microbatches={2 * m})"),
            url="https://docs.pytorch.org/docs/stable/distributed.pipelining.html",
            risk="Smaller micro-batches mean smaller kernels; with GPipe all micro-batches' activations are held at once.",
        ),
        saving=Saving(low * step, double * step, high * step, "simulated", "the waits of the stages"),
        removes="the waits of the stages",
        quiet=quiet,
        cause="communication",
        ranks=pipeline.ranks,
    )
