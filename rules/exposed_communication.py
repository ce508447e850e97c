"""Communication that nothing hides, seen from one rank or from many."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.intervals import Floats, overlap_with
from advisor.report.finding import Clear
from advisor.report.numbers import counted, duration, percent, threshold
from advisor.report.wording.period import THE_STEP
from advisor.rules._collectives import HIDDEN, WAITING, sizes_known, transfer_us
from advisor.rules._exposed_in_job import RECORD, of_job
from advisor.rules._phrases import a_step
from advisor.rules._sums import needed
from advisor.rules.fixes import for_program, known_fix
from advisor.views.ranks.communication import Communication, OneRank
from advisor.views.replay.edits import Edits, WithDurations
from advisor.views.time.device_time import total
from advisor.views.trace.steps import FEWEST_LEFT

FEWEST_OPS = FEWEST_LEFT
"""A recording of fewer is a piece of a trace."""


@rule("exposed-communication", relies_on=("kernels", "ranks"))
def exposed_communication(seen: Communication, *, min_exposed_share: Share = 0.10, min_gain_share: Share = 0.03) -> Outcome:
    """Communication that overlaps no computing holds the step up

    What
    Collectives and transfers between ranks run while the GPU computes nothing.

    Why
    A collective kernel occupies the GPU while it waits for a link, or for a rank that has not arrived. Such a
    GPU looks busy but does no work.

    How to fix
    First find the cause. Record every rank and analyze their directory: the report names the rank that the
    others wait for.

        advisor analyze traces/        # rank0.json.gz, rank1.json.gz, …

    Then overlap the transfers: `DistributedDataParallel` buckets during the backward pass, `fully_shard`
    prefetch, or two alternating micro-batches for expert parallelism. For tensor parallelism, use one-shot
    all-reduce, a CUDA graph, or fewer ranks.

    When to ignore
    Recording itself delayed some ranks. Or no computation is left to overlap with.

    How it is measured
    The rule measures communication during which no other kernel runs, from `min_exposed_share` ({min_exposed_share}) of the
    step. With the traces of all ranks, waiting is known and only transfers count. Savings below
    `min_gain_share` ({min_gain_share}) are then not reported.

    | Case | `low` / `expected` / `high` |
    |---|---|
    | a single rank's trace | 0 / 35 % of the transfer / all exposed time |
    | all-reduces of a job | 20 / 35 / 70 % of the transfer |
    | gathers of a job | launched earlier; 65 / 40 / 10 % of the transfer is lost to slower kernels |

    References
    https://docs.pytorch.org/docs/stable/notes/ddp.html
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    if seen.job is not None and seen.exposure is not None:
        return of_job(seen.job, seen.exposure, min_gain_share)
    if seen.rank is None:
        return Clear(why="no communication was recorded")
    return _of_rank(seen.rank, min_exposed_share)


def _of_rank(one: OneRank, min_exposed_share: float) -> Outcome:
    steps, work, partition, witness = one.steps, one.work, one.partition, one.witness
    mine = np.flatnonzero(work.kernels.communication[work.rows])
    main = partition.main
    if not len(mine) or main is None:
        return Clear(why="no communication in the window")
    if len(work.rows) < FEWEST_OPS:
        return Clear(why=f"{counted(len(work.rows), 'GPU op')} {'are' if len(work.rows) > 1 else 'is'} too few to show a program")
    share = float(total(main.communication).sum()) / (steps.steps * work.step_us)
    count = work.a_step(mine)
    if share < min_exposed_share:
        return Clear(why=f"exposed communication takes {percent(share, min_exposed_share)} of {THE_STEP} (threshold {threshold(min_exposed_share)})")
    start = work.column("start_us")[mine]
    exposed: Floats = np.minimum(overlap_with(start, start + work.dur_us[mine], main.communication), work.dur_us[mine])
    at_once = one.sums.needed[work.rows[mine]]
    if exposed[at_once].sum() > exposed[~at_once].sum():
        return needed(one, mine[at_once], exposed[at_once])
    moving = np.where(at_once, 0.0, np.minimum(exposed, transfer_us(work, mine, WAITING)))
    rows = work.rows[mine]
    names = [str(name)[:100] for name in work.column("name")[mine]]
    edits = [exposed * 0.0, HIDDEN[1] * moving, np.where(at_once, 0.0, exposed)]
    spent = share * work.step_us
    # Recorded waits may be longer than the step that runs alone: other ranks' hosts were recorded too.
    whole = duration(work.step_us) if share <= 1 else f"the recorded {duration(steps.step_us)}"
    waiting = max(0.0, float((exposed - moving)[~at_once].sum())) / work.schedule.steps
    mostly_waits = waiting > 0.5 * spent
    return Found(
        summary=f"{a_step(count, 'collective', 'take', 'takes')} {duration(spent)} of {whole} without overlapping compute."
        + (_said(duration(waiting), sizes_known(work, mine[(exposed > moving) & ~at_once])) if waiting >= 0.01 * spent else "")
        + ("" if mostly_waits else " A single rank's trace cannot separate waiting from transfer."),
        edits=Edits(*(WithDurations(mine, work.dur_us[mine] - gone) for gone in edits)),
        removes="exposed communication",
        at_most_us=min(spent, work.step_us),
        status="possible" if mostly_waits else "found",
        at_least="low" if mostly_waits else "info",
        possible_why="a single rank's trace does not show which rank it waits for" if mostly_waits else "",
        decide_with="advisor analyze DIRECTORY, with the traces of all ranks in it" if mostly_waits else "",
        evidence=witness.of_gpu(rows, names),
        confidence=0.8,
        cause="communication",
        fix=for_program(one.program, "exposed-communication", _RECORD_TRAINING if one.program.training or one.program.framework == "jax" else RECORD),
    )


def _said(waiting: str, known: bool) -> str:
    """What of the exposed time may be waiting: at least so much where those of one size are compared."""
    if known:
        return f" At least {waiting} of it look like waiting for other ranks."
    return f" Sizes were not recorded; if they are equal, {waiting} of it is waiting for other ranks."


_RECORDED = (
    "Record the same steps on every rank, a file each in a directory, and run advisor analyze on the directory.",
    "If the ranks arrive together, the time is transfer: overlap it, or send less ({less}).",
    "If a rank is late, speed up that rank: the others' collectives then get shorter.",
)
_RECORD_TRAINING = known_fix("jobs", "record-training")
