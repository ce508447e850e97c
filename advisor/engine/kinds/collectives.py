"""The report of flight recorders: which collective ranks wait in, who did not come, which are not the same on all ranks, how fast they were."""

from __future__ import annotations

from typing import Literal

from advisor.engine.grade import Weight
from advisor.engine.outcome import Outcomes
from advisor.engine.rule import Found, Judged
from advisor.knowledge.counts import SHOWN
from advisor.knowledge.release import release
from advisor.recordings.flight import Call, FlightRecords
from advisor.recordings.recording import Recording
from advisor.report.model import Headline, Report
from advisor.report.numbers import counted
from advisor.report.numbers import size as bytes_of
from advisor.report.recording import Health, Recorded, SourceInfo
from advisor.views.flight.rounds import Mismatch, Rounds, Stuck, rows
from advisor.views.workspace import Workspace

_ALL = "TORCH_NCCL_DUMP_ON_TIMEOUT=1 on every rank, and the directory of all their dumps"
_TIMED = "TORCH_NCCL_ENABLE_TIMING=1, which times each collective on the device"


def health(workspace: Workspace) -> tuple[Health, ...]:
    """Whether all ranks' dumps are here, whether their collectives are the same, and whether they were timed."""
    records, rounds = workspace.get(FlightRecords), workspace.get(Rounds)
    known = {rank.rank for rank in records.ranks}
    absent = sorted({rank for one in records.ranks for ranks in one.groups.values() for rank in ranks} - known)
    alone = len(records.ranks) < 2
    whole = f"dumps of {counted(len(known), 'rank')} were read" + (f"; none of {_ranks(absent)}" if absent else "")
    wrong = "; ".join(_of_mismatch(rounds, one) for one in rounds.mismatches[:3])
    timed = rows(rounds)
    rates = [f"{row.kind} of {bytes_of(row.bytes)} between {row.ranks} ranks {row.bus_gbps:.3g} GB/s" for row in timed[:3]]
    speed = f"{counted(sum(int(row.calls) for row in timed), 'collective')} timed, by the rank that came last: {', '.join(rates)}"
    return (
        Health(check="ranks-read", status="degraded" if absent or alone else "ok", detail="; ".join((whole, *records.notes)), touches=("ranks",), record_with=_ALL if absent or alone else "", reason="not-recorded" if absent or alone else "absent", measured=float(len(absent)), threshold=0.0, unit="count"),
        Health(check="collectives-alike", status="failed" if wrong else "ok", detail=wrong or "every collective is the same on all ranks that called it", touches=("ranks",), reason="disagreement" if wrong else "absent", measured=float(len(rounds.mismatches)), threshold=0.0, unit="count"),
        Health(
            check="collectives-timed", status="ok" if timed else "degraded", detail=speed if timed else "no collective was timed on all its ranks, so their speed is not known",
            touches=(), record_with="" if timed else _TIMED, reason="absent" if timed else "not-recorded",
        ),
    )  # fmt: skip


def weigh(workspace: Workspace, found: Found) -> Weight:
    """No rule finds anything in a flight recorder's dump."""
    raise TypeError("no rule speaks of a flight recorder's dump")


def settle(workspace: Workspace, found: list[Judged]) -> list[Judged]:
    """As they are: there are none."""
    return found


def report(workspace: Workspace, recording: Recording, outcomes: Outcomes) -> Report:
    """The report: who waits for whom, and the collectives that were timed."""
    records, rounds = workspace.get(FlightRecords), workspace.get(Rounds)
    return Report(
        kind="collectives",
        source=SourceInfo(
            path=records.path, format="flight-recorder", bytes=records.bytes, events=sum(len(rank.calls) for rank in records.ranks),
            recorded=Recorded(shapes=False, stacks=any(call.line for rank in records.ranks for call in rank.calls), steps=0),
        ),
        devices=(), window=None, time=None, health=health(workspace), headline=_headline(records, rounds),
        findings=tuple(found.finding for found in outcomes.found), clear=tuple(outcomes.clear), skipped=tuple(outcomes.skipped), failed=tuple(outcomes.failed),
        collectives=rows(rounds), advisor=release(),
    )  # fmt: skip


def _headline(records: FlightRecords, rounds: Rounds) -> Headline:
    """What keeps the job: a collective that is not the same on all ranks explains a hang, so it is said first."""
    alone = len(records.ranks) < 2
    judged: Literal["yes", "no"] = "no" if alone else "yes"
    why = "a single rank's dump does not show the calls of the others" if alone else ""
    first = rounds.mismatches[0] if rounds.mismatches else None
    if first and rounds.stuck:
        return Headline(
            bottleneck="collectives differ", summary=f"{_of_mismatch(rounds, first)}. {_of_stuck(rounds, rounds.stuck[0])}", judged=judged, judged_why=why
        )
    if rounds.stuck:
        return Headline(bottleneck="hung", summary=_of_stuck(rounds, rounds.stuck[0]), judged=judged, judged_why=why)
    if rounds.messages:
        rank, call = rounds.messages[0]
        told = f"Rank {rank} waits in {_called(call)} no. {call.sequence}, a message between two ranks; {counted(len(rounds.messages), 'message')} in all did not get through."
        return Headline(bottleneck="hung", summary=told, judged=judged, judged_why=why)
    if first:
        return Headline(bottleneck="collectives differ", summary=f"{_of_mismatch(rounds, first)}.", judged=judged, judged_why=why)
    told = f"All {len(rounds.rounds):,} collectives of {counted(len(records.ranks), 'rank')} completed: no rank waits."
    return Headline(bottleneck="no hang", summary=told, judged=judged, judged_why=why)


def _group(rounds: Rounds, name: str) -> str:
    said = rounds.descriptions.get(name, "")
    return f"group {name}" + (f" ({said})" if said and said != name else "")


def _called(call: Call) -> str:
    return (call.name or "a collective") + (f" at {call.line}" if call.line else "")


def _of_stuck(rounds: Rounds, stuck: Stuck) -> str:
    one = stuck.round
    call = one.calls[stuck.waiting[0]]
    waits = f"{_ranks(stuck.waiting).capitalize()} {'waits' if len(stuck.waiting) == 1 else 'wait'} in {_called(call)}, no. {one.sequence} of {_group(rounds, one.group)}"
    if stuck.missing:
        rank = stuck.missing[0]
        last = rounds.last.get((rank, one.group))
        came = f"the last that rank {rank} called there is no. {last.sequence}, {_called(last)}" if last else f"rank {rank} called none there"
        return f"{waits}; {_ranks(stuck.missing)} did not come to it: {came}."
    if stuck.unknown:
        return f"{waits}; all ranks that left a dump came to it, and {_ranks(stuck.unknown)} left none: look whether {'it' if len(stuck.unknown) == 1 else 'they'} died."
    idle = tuple(rank for rank in stuck.waiting if rank not in stuck.started)
    if stuck.started and idle:
        return f"{waits}; all came to it, and the devices of {_ranks(idle)} did not begin it: look at what runs on them before it."
    return f"{waits}; all of its ranks came to it, so look at the devices and the links between them."


def _of_mismatch(rounds: Rounds, one: Mismatch) -> str:
    told = "; ".join(f"{what} on {_ranks(ranks)}" for what, ranks in one.told.items())
    where = f"no. {one.round.sequence} of {_group(rounds, one.round.group)}"
    return (
        f"Collective {where} is not the same on all ranks: {told}"
        if one.differs == "operation"
        else f"{one.round.name}, {where}, has inputs of several sizes: {told}"
    )


def _ranks(ranks: tuple[int, ...] | list[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2`, the first of many."""
    shown = ", ".join(map(str, ranks[:SHOWN])) + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
