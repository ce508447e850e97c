"""Ranks that have unequal amounts of work."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, Share, rule
from advisor.knowledge.collectives import Collective
from advisor.report.finding import Clear, Code, Evidence, Fix
from advisor.report.numbers import duration, percent, threshold
from advisor.report.wording.period import PER_STEP
from advisor.views.ranks.collectives import KINDS
from advisor.views.ranks.culprit import SAME_WORK, Culprit, received_by
from advisor.views.ranks.edits import Evened, JobEdits, MedianParts, Several, Transfers
from advisor.views.ranks.experts import Experts
from advisor.views.ranks.job import Job


@rule("load-imbalance", relies_on=("ranks",), min_saving_share=0.02)
def load_imbalance(job: Job, culprit: Culprit, experts: Experts, *, min_late_share: Share = 0.5) -> Outcome:
    """Ranks have unequal amounts of work

    What
    A rank has more to compute than the others: more or longer samples, a popular expert, or a pipeline stage
    with more layers.

    Why
    Ranks wait for each other in every step. The rank with most work determines the step time, and the others
    idle.

    How to fix
    Give each rank the same number of tokens, for example by grouping samples of similar length:

        sampler = LengthGroupedSampler(batch_size, lengths=lengths)   # or pack sequences
        loader = DataLoader(dataset, batch_size, sampler=sampler)

    For experts, use an auxiliary loss or a capacity factor. A server copies popular experts to other ranks
    (vLLM and SGLang: `--enable-eplb`). For pipelines, move layers between stages.

    When to ignore
    The recorded steps were unusual. Record others with different data and compare.

    How it is measured
    The job is replayed with each rank as fast as the others. The cause is imbalance if the slow rank launches
    more kernels or threads, receives more tokens, or takes longer for experts' GEMMs only. The same kernels at
    the same sizes indicate a slow GPU instead (`straggler`). The rank must be the last to arrive for
    `min_late_share` ({min_late_share}) of all waits. Savings below `min_saving_share` ({min_saving_share}) of the
    job's step are not reported.

    | Estimate | The slow rank's work |
    |---|---|
    | `low` | divided evenly, or half of that |
    | `expected` | as the others, or divided evenly |
    | `high` | as the others |

    References
    https://www.usenix.org/conference/osdi25/presentation/lin-jinkun
    https://arxiv.org/abs/2101.03961
    """
    rank = job.numbers[culprit.at]
    if culprit.cause != "imbalance":
        return Clear(why=f"no rank launches more computing than the others; rank {rank} takes longest")
    if culprit.late_share < min_late_share:
        return Clear(
            why=f"rank {rank} takes longest, but only {percent(culprit.late_share, min_late_share)} of all waits are for it (threshold {threshold(min_late_share)})"
        )
    most = MedianParts(ranks=(culprit.at,))
    even = Several((Evened(), *_exchanged(job)))
    expected = even if culprit.conserved else most
    excess, own = culprit.excess_us["compute"], float(job.part("compute")[culprit.at])
    return Found(
        title=f"Rank {rank} has more to do than the others",
        summary=f"Rank {rank} computes for {duration(own)} {PER_STEP}, {duration(excess)} more than the median rank, on more work; the others wait for it.",
        evidence=(
            Evidence(
                label=f"rank {rank}: computing beyond the median of the others, a step",
                start_us=job.ranks[culprit.at].facts.start_us,
                dur_us=max(excess, 0.0),
                count=job.steps,
            ),
        ),
        fix=Fix(
            title="Give every rank as much to do",
            steps=_steps(job, culprit),
            url="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
            risk="Grouping by length makes batches less random.",
        )
        if not (experts.at and job.ranks[culprit.at].facts.server)
        else SERVED_EXPERTS,
        edits=JobEdits(even if not culprit.conserved else Evened(share=0.5), expected, most),
        removes="computing of the rank beyond the others",
        quiet=f"rank {rank} computes {duration(excess)} {PER_STEP} more than the median rank",
        cause="imbalance",
        ranks=(rank,),
        at_most="high" if culprit.steady else "low",
    )


SERVED_EXPERTS = Fix(
    title="Balance experts over the ranks",
    steps=("Count tokens by expert, and place copies of popular experts on the ranks with less to do.",),
    code=Code(before="experts of each rank: as loaded", after="experts of each rank: by load, with copies of popular experts"),
    url="https://github.com/deepseek-ai/EPLB",
    risk="Each copy takes memory for its weights.",
)

_BY_WAY = {
    "data": "Data parallel: batch by tokens, not by samples, and sort samples of like length together.",
    "experts": "Experts: an auxiliary load-balancing loss, or a capacity factor that drops or re-routes the overflow.",
    "pipeline": "Pipeline: move layers from the longest stage; embedding and head count as layers.",
}


def _steps(job: Job, culprit: Culprit) -> tuple[str, ...]:
    """What fits the way in which ranks share their work first: experts get tokens by exchanges, of which the rank gets more if that is known;
    stages hand layers' results on."""
    kinds = {KINDS[kind] for kind in job.matched.kind.tolist()}
    received = received_by(job)
    others = float(np.median(np.delete(received, culprit.at)))
    alike = 0 < received[culprit.at] <= SAME_WORK * others
    if Collective.ALL_TO_ALL in kinds and not alike:
        first = "experts"
    else:
        first = "pipeline" if Collective.POINT_TO_POINT in kinds else "data"
    return (_BY_WAY[first], *(step for way, step in _BY_WAY.items() if way != first))


def _exchanged(job: Job) -> tuple[Transfers, ...]:
    """Exchanges of all with all, as long as their largest part: with parts of the mean size, so much shorter."""
    exchange, received = KINDS.index(Collective.ALL_TO_ALL), received_by(job)
    chosen = tuple(np.flatnonzero(job.in_window & (job.matched.kind == exchange)).tolist())
    return (Transfers(chosen, float(received.mean() / received.max())),) if chosen and received.max() > 0 else ()
