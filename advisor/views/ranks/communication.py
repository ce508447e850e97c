"""What communication is judged on: one rank's trace, or all ranks of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from advisor.views.ranks.exposure import Exposure
from advisor.views.ranks.job import Job
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.time.device_time import Partition
from advisor.views.trace.evidence import Witness
from advisor.views.trace.needed_sums import NeededSums
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps


class OneRank(msgspec.Struct, frozen=True):
    """The views of a single trace, which cannot tell waiting from transfer."""

    steps: Steps
    work: GpuWork
    partition: Partition
    witness: Witness
    sums: NeededSums
    program: Program


class Communication(msgspec.Struct, frozen=True):
    """Either `rank`, or `job` with `exposure`."""

    builds: ClassVar[tuple[Callable[..., Any], ...]] = ()
    rank: OneRank | None = None
    job: Job | None = None
    exposure: Exposure | None = None

    @classmethod
    def of_job(cls, job: Job, exposure: Exposure) -> Communication:
        return cls(job=job, exposure=exposure)

    @classmethod
    def of_rank(cls, steps: Steps, work: GpuWork, partition: Partition, witness: Witness, sums: NeededSums, program: Program) -> Communication:
        return cls(rank=OneRank(steps, work, partition, witness, sums, program))


Communication.builds = (Communication.of_job, Communication.of_rank)
