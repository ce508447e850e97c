"""A job's ranks in a report: their step times, waits and communication."""

from __future__ import annotations

from typing import Literal

import msgspec


class RankStep(msgspec.Struct, frozen=True, array_like=True):
    """A step of a rank, in µs: as recorded, computing, and waiting for other ranks."""

    step_us: float
    compute_us: float
    wait_us: float


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a job: parts of its device's step in µs, as recorded. They sum to `step_us`."""

    rank: int
    host: str = ""
    step_us: float
    compute_us: float
    copy_us: float = 0.0
    wait_us: float = 0.0
    """Waits for other ranks: communication without overlapping work of this rank, before the last rank arrives."""
    transfer_us: float = 0.0
    """Exposed communication after that."""
    input_us: float = 0.0
    host_us: float = 0.0
    """Idle for other reasons of the host's."""
    other_us: float = 0.0
    lateness_us: float = 0.0
    """What each rank that waited for it waited, on average, while nothing of its own ran: a part of its `wait_us`."""
    by_step: tuple[RankStep, ...] = ()
    trace: str = ""
    """The name of its trace."""
    page: str = ""
    """The file of its own page, seen from the job's."""
    failed: str = ""
    """Why it could not be read; all else is 0 then."""


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """How collectives of different ranks were found to be the same, and whether that is proved."""

    method: str
    matched: int
    share: float = 1.0
    """Of all collectives that could be matched."""
    spread_us: float = 0.0
    """Median distance of the same collective's ends: all leave it together."""
    status: Literal["ok", "degraded", "failed"]
    detail: str = ""
    clock_offset_us: float = 0.0
    """Largest between two ranks' clocks; corrected."""
    missing: tuple[int, ...] = ()
    """Ranks of the job that no trace was given of, the first thousand."""


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one kind, group and size. Waits and transfers in µs a step, summed over ranks and divided by them."""

    kind: str
    group: str
    ranks: int
    bytes: int
    calls: float
    """A step."""
    wait_us: float
    transfer_us: float
    transfer_each_us: float
    """Median of one."""
    bus_gbps: float = 0.0
    """In 1e9 bytes a second, as nccl-tests has it; 0 if the size is unknown."""
    link_gbps: float = 0.0
    """One-way bandwidth of the link between the devices; 0 if unknown."""
    nodes: int = 0
    """Machines that the group's ranks run on; 0 if that is unknown."""


class RankCost(msgspec.Struct, frozen=True, kw_only=True):
    """The job's time over the ideal if only this rank keeps its own time."""

    rank: int
    slowdown: float


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """A job's time over the ideal, in which every rank takes the mean time in each part, and each transfer the median of its kind (Lin et al., OSDI 2025).
    `by_part`: with only that part of the ranks' time as it was.
    """

    slowdown: float
    by_part: dict[str, float]
    by_rank: tuple[RankCost, ...]
    worst_ranks: tuple[int, ...]
    """The slowest 3 % of the ranks, one at least."""
    explained_by_worst: float
    """Of what the job loses against the ideal, the share that returns when only these are as the ideal has them."""


class WaitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank waits for another, the last to come, in collectives: so many µs a step, a part of its `wait_us`."""

    rank: int
    waits_for: int
    wait_us: float


class ExpertRank(msgspec.Struct, frozen=True, kw_only=True):
    """Experts' GEMMs of a rank, in µs a step as recorded. received_share: of the elements that all-to-all exchanges deliver, None if the trace shows none."""

    rank: int
    us: float
    by_step_us: tuple[float, ...]
    received_share: float | None = None


class ExpertBalance(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly ranks share experts' GEMMs. hottest: the rank with most time. hottest_steps: its share of the steps in which it has most.
    balance: the mean over ranks divided by the largest, the median of steps; 1 is even."""

    ranks: tuple[ExpertRank, ...]
    hottest: int
    hottest_steps: float
    balance: float


class RankSpan(msgspec.Struct, frozen=True, array_like=True):
    """Activity of a rank's device in an interval: a part of `RankRow`, or `transfer`; µs from the start of the section."""

    part: str
    start_us: float
    end_us: float


class RankMoment(msgspec.Struct, frozen=True, kw_only=True):
    """A rank around a collective: its arrival and departure (None if it takes no part), and its device's time."""

    rank: int
    arrival_us: float | None
    end_us: float | None
    spans: tuple[RankSpan, ...]


class CollectiveMoment(msgspec.Struct, frozen=True, kw_only=True):
    """The collective with the longest waits, on a common clock: µs from the start of the section. `begin_us`: arrival of the last rank, `last`. `ranks`: the
    latest and earliest if there are many.
    """

    kind: str
    group: str
    bytes: int
    step: int
    last: int
    wait_us: float
    """All ranks' waits together."""
    begin_us: float
    span_us: float
    ranks: tuple[RankMoment, ...]
