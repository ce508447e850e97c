"""Why captures may not be comparable: other devices, other marks of a step, other work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from statistics import fmean
from typing import Literal, NamedTuple

import msgspec

from advisor.compare.model import Difference
from advisor.knowledge.collectives import Collective
from advisor.knowledge.shares import LITTLE, UNUSUAL
from advisor.report.model import Report
from advisor.report.numbers import counted, interval, three
from advisor.report.recording import Prediction

FLOPS_SHARE = LITTLE
"""Steps whose FLOPs differ by more than this do other work: a fix moves or fuses work, it hardly changes its amount."""

OTHER_WORK, SAME_MODULES, SAME_OPS = UNUSUAL, 0.2, 0.4
"""Steps are of different programs if FLOPs differ by more than half, and less than a fifth of the time is in modules of the same names, or two fifths in
ops. A fix that renames everything, such as compiling, keeps FLOPs; a larger batch keeps names.
"""


def differences_between(before: Sequence[Report], after: Sequence[Report]) -> Iterable[Difference]:
    """Differences besides time between captures, also within a side: these are averaged as repetitions. Serious if times cannot be compared."""
    every = (*before, *after)

    def told(what: str, of: Callable[[Report], str], advice: str, serious: bool = False) -> Iterable[Difference]:
        if len({of(report) for report in every} - {""}) > 1:
            old, new = (" or ".join(dict.fromkeys(filter(None, map(of, side)))) or "unknown" for side in (before, after))
            yield Difference(what, old, new, serious, advice)

    yield from told("device", lambda r: _devices(r) if _named(r) else "", "Record each on the same GPU.", serious=True)
    yield from told("number of ranks", lambda r: str(sum(not rank.failed for rank in r.ranks)), "Compare jobs of as many ranks.", serious=True)
    split = len({ways for report in every if (ways := _split(report)) is not None}) > 1
    sharded = len({frozenset(row.kind for row in report.collectives) & _SHARDS for report in every if report.collectives}) > 1
    yield from told("what ranks exchange", _exchanged, OTHER_SPLIT if split else OTHER_SHARDS if sharded else OTHER_KINDS, serious=split)
    yield from told("number of devices", lambda r: str(len(r.devices)), "Record each with the same number of GPUs.", serious=True)
    marked = {basis_of(report) == "whole" for report in every}
    steps = "Mark the steps of each in the same way: prof.step() after each."
    yield from told("what marks a step", _mark_in_words, steps, serious=len(marked) > 1)
    if marked == {True}:
        old, new = (_range_in_words([r.work.kernels for r in side], lambda n: counted(n, "kernel")) for side in (before, after))
        if old != new:
            yield Difference("amount of work in unmarked recordings", old, new, False, steps)
    if before[0].kind != "kernels":  # a report and its pages are of one profiler
        yield from told("profiler", lambda r: r.source.format, "Each profiler slows the host in its own way: use one.")
    yield from told("what was recorded", _recorded, "Shapes and stacks slow the host: record each alike.")
    yield from _of_work(before, after)
    old, new = _judged(before), _judged(after)
    if {report.headline.judged for report in every if report.kind in _JUDGED_BY_TIME} - {"yes"}:
        yield Difference("what could be judged", old, new, False, "What a capture lacks looks like a change of the program.")


_JUDGED_BY_TIME = ("trace", "job")
"""Kinds with an unreliable step if they cannot be judged. Of TPUs and measured kernels only advice is missing then."""
_JUDGED = {"no": "nothing", "partly": "a part", "yes": "everything"}


def _judged(side: Sequence[Report]) -> str:
    """How far the least of a side's captures could be judged, and why no further: `a part (the file ends early)`."""
    least = min((report.headline for report in side), key=lambda head: [*_JUDGED].index(head.judged))
    return _JUDGED[least.judged] + (f" ({least.judged_why.rstrip('.')})" if least.judged != "yes" else "")


def unknown_because(before: Sequence[Report], after: Sequence[Report]) -> str:
    """Why a change of the step says nothing of the program; "" if it may. One recorder adds much the same to both sides, however widely
    that is estimated; of two the estimates' intervals have to be apart."""
    unjudged = [name for side, name in ((before, "before"), (after, "after")) if any(r.headline.judged == "no" for r in side if r.kind in _JUDGED_BY_TIME)]
    if unjudged:
        return f"The recording {' and the one '.join(unjudged)} could not be judged, so no change can be told."
    if len({(report.source.format, _recorded(report)) for report in (*before, *after)}) == 1:
        return ""
    old, new = (_true_step(side) for side in (before, after))
    if old is None or new is None or max(old.low, new.low) > min(old.high, new.high):
        return ""
    told = " and ".join(f"{interval(step.low, step.high)} {side}" for step, side in ((old, "before"), (new, "after")))
    return f"Recorded in other ways, the step takes an estimated {told} when nobody records: these overlap, so no change can be told."


def _true_step(side: Sequence[Report]) -> Prediction | None:
    """The mean step without a recorder; None if that of a capture was not worked out."""
    steps = [report.window.true_step_us for report in side if report.window and report.window.true_step_us]
    if len(steps) < len(side):
        return None
    return Prediction(*(fmean(values) for values in zip(*map(msgspec.structs.astuple, steps), strict=True)))


def _of_work(before: Sequence[Report], after: Sequence[Report]) -> Iterable[Difference]:
    """Whether the steps of all captures do the same: each is held against each, on whichever side they are."""
    known = [[report for report in side if report.work.flops > 0] for side in (before, after)]
    every = [report for side in known for report in side]
    if len(every) < 2:
        return
    old, new = (f"{_range_in_words([r.work.flops for r in side], _flop)} a step" if side else "unknown" for side in known)
    flops = [report.work.flops for report in every]
    other = (_in_common(*pair) for pair in combinations(every, 2) if max(of := [r.work.flops for r in pair]) > OTHER_WORK * min(of))
    if common := next((common for common in other if not common.of_one_program), None):
        advice = f"Only {common.share:.0%} of their time is in {common.of} of the same names: these are two programs."
        yield Difference("program", old, new, True, advice)
    elif max(flops) - min(flops) > FLOPS_SHARE * max(flops):
        yield Difference("work", old, new, False, "If batch or model changed, compare the time per sample instead.")


def _range_in_words(values: Sequence[float], write: Callable[[float], str]) -> str:
    """One number as it is written, or the least and the most of several."""
    return " to ".join(dict.fromkeys((write(min(values)), write(max(values)))))


def basis_of(report: Report) -> str:
    """The source of step boundaries; of a recording without steps its kind."""
    return report.window.basis if report.window else report.kind


_MARKS = {
    "profiler-step": "the profiler's schedule",
    "nvtx": "a range",
    "detected": "a repeating sequence of launches",
    "whole": "nothing (the whole recording)",
}


def _mark_in_words(report: Report) -> str:
    return _MARKS.get(basis_of(report), basis_of(report))


OTHER_SPLIT = "Ranks that share their work in other ways run two programs: compare jobs that share it alike."
OTHER_KINDS = "What ranks exchange beside, as buffers that are broadcast, takes time of its own."
OTHER_SHARDS = "A model that is sharded where it was copied is another one to each rank: memory and links decide, not the step alone."

_SHARDS = {Collective.ALL_GATHER.value, Collective.REDUCE_SCATTER.value}
_SPLITS = {Collective.POINT_TO_POINT.value, Collective.ALL_TO_ALL.value}
"""Messages hand layers' results on, as in pipelines, and all-to-all hands samples to experts: what all ranks reduce or gather is how they average or
shard the same model, which a fix may change."""


def _exchanged(report: Report) -> str:
    """The kinds of collectives of a job, "" if none are known."""
    return ", ".join(sorted({row.kind for row in report.collectives}))


def _split(report: Report) -> bool | None:
    """Whether ranks hand work on to each other; None if nothing tells. Which way is not asked: NCCL runs all-to-all in kernels named for messages."""
    return any(row.kind in _SPLITS for row in report.collectives) if report.collectives else None


def _named(report: Report) -> bool:
    """Whether the devices' names are known: a CSV page of Nsight Compute may leave them out."""
    return report.kind != "kernels" or any(d.name for d in report.devices)


class _Common(NamedTuple):
    share: float
    of: Literal["modules", "ops"]

    @property
    def of_one_program(self) -> bool:
        return self.share >= (SAME_MODULES if self.of == "modules" else SAME_OPS)


def _in_common(before: Report, after: Report) -> _Common:
    """The share of the steps' busy time that is in modules (of programs that record them; else in ops) of names that both have."""
    sides = [[part for part in report.breakdown if part.kind != "idle"] for report in (before, after)]
    modules = all(sum(p.us for p in side if p.module) > 0.5 * sum(p.us for p in side) for side in sides)
    times: list[dict[str, float]] = []
    for side in sides:
        whole = sum(p.us for p in side) or 1.0
        found: dict[str, float] = {}
        for part in side:
            name = (part.module if modules else part.op) or part.name
            found[name] = found.get(name, 0.0) + part.us / whole
        times.append(found)
    return _Common(sum(min(share, times[1].get(name, 0.0)) for name, share in times[0].items()), "modules" if modules else "ops")


def _flop(count: float) -> str:
    """`3.63 GFLOP`, `3.88 TFLOP`."""
    scale, unit = next((pair for pair in ((1e15, "P"), (1e12, "T"), (1e9, "G")) if count >= 0.9995 * pair[0]), (1e6, "M"))
    return f"{three(count / scale)} {unit}FLOP"


def _devices(report: Report) -> str:
    return " and ".join(sorted({d.name for d in report.devices})) or "no GPU"


def _recorded(report: Report) -> str:
    recorded = report.source.recorded
    kinds = [name for name in ("shapes", "stacks", "memory") if getattr(recorded, name)]
    return ", ".join(kinds) or "neither shapes nor stacks"
