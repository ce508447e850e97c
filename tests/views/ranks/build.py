"""Ranks of a job in a few lines: each rank's own work before every collective, in µs; the rest follows."""

from __future__ import annotations

from advisor.knowledge.structs import replace
from advisor.recordings.timeline import Timeline
from advisor.views.ranks.job import Job, RankSummaries
from advisor.views.ranks.summary import RankSummary
from advisor.views.workspace import Workspace
from tests.build import Trace

TRANSFER_US = 100.0


def rank_timeline(
    rank: int,
    own: list[list[float]],
    job: list[list[list[float]]],
    *,
    collective: str = "allreduce",
    size: int = 1 << 22,
    group: str = "0",
    members: str = "",
    trains: bool = False,
) -> Timeline:
    """One rank of a job whose ranks do `job[rank][step]` µs of work before each of the step's collectives. trains: a range says that it updates parameters."""
    trace, times = Trace(), _times(job)
    begin, host = 10_000.0, 0.0  # the host has issued everything before the device begins
    for number, step in enumerate(own):
        trace.step(host, 10.0, number + 1)
        if trains:
            trace.note("Optimizer.step#SGD.step", host, 1.0)
        for work, (start, arrive, leave) in zip(step, times[rank][number], strict=True):
            trace.launch(host + 1, start + begin, start + begin + work, "gemm")
            trace.launch(
                host + 3, arrive + begin, leave + begin, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", stream=7,
                collective=collective, collective_dtype="BFloat16", group_size=len(job), in_elements=size, out_elements=size, group=group,
                group_ranks=members or str(list(range(len(job)))),
            )  # fmt: skip
            host += 5
        host += 10
    last = times[rank][-1][-1][2] + begin
    trace.step(host, 10.0, len(own) + 1).launch(host + 1, last, last + 2, "gemm")
    made = trace.timeline()
    return replace(made, source=replace(made.source, rank=rank, world_size=len(job)))


def _times(job: list[list[list[float]]]) -> list[list[list[tuple[float, float, float]]]]:
    """Start of the work, arrival and end of each collective, by rank and step: all leave together, after the last has come."""
    ready = [0.0] * len(job)
    made: list[list[list[tuple[float, float, float]]]] = [[] for _ in job]
    for step in range(len(job[0])):
        for rank in range(len(job)):
            made[rank].append([])
        for which in range(len(job[0][step])):
            arrive = [ready[r] + job[r][step][which] for r in range(len(job))]
            leave = max(arrive) + TRANSFER_US
            for rank in range(len(job)):
                made[rank][step].append((ready[rank], arrive[rank], leave))
                ready[rank] = leave
    return made


def summary_of(timeline: Timeline) -> RankSummary:
    return Workspace(timeline).get(RankSummary)


def job_of(work: list[list[list[float]]], **how: object) -> Job:
    """The job of ranks that do so much work before each collective of each step."""
    return Job.build(RankSummaries(tuple(summary_of(rank_timeline(r, own, work, **how)) for r, own in enumerate(work))))  # type: ignore[arg-type]
