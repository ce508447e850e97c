"""Sixteen questions for any kernel, with answers for all measured kernels from the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from advisor.knowledge.op_tokens.families import PRODUCTS
from advisor.knowledge.shares import HARDLY_ANY, MOST, NEGLIGIBLE
from advisor.report.kernels import Check, KernelRow
from advisor.report.model import Answer
from advisor.report.numbers import counted, cut, percent

MATTERS, NOTHING = HARDLY_ANY, NEGLIGIBLE
"""Of the measured time: below the first share kernels give no answer for the program, below the second they are not worth a look."""
KNOWN = MOST
"""With less of the time collected, nothing is known of the rest."""


class Question(NamedTuple):
    """An answer is yes if none of these checks is a concern. families: of the examined kernels, all if empty."""

    id: str
    question: str
    checks: tuple[str, ...]
    families: tuple[str, ...] = ()


QUESTIONS = (
    Question("coalescing", "Are accesses to global memory coalesced?", ("coalescing",)),
    Question("vector-loads", "Do loads bring enough bytes a thread?", ("vector loads",)),
    Question("shared-memory", "Is what is read again kept in shared memory?", ("shared memory",)),
    Question("bank-conflicts", "Is shared memory free of bank conflicts?", ("bank conflicts",)),
    Question("caches", "Does L2 serve what is read again?", ("L2 hit rate",)),
    Question("spills", "Do registers suffice, without spills?", ("spills",)),
    Question("occupancy", "Is occupancy 50 to 75 %, or enough to keep a unit busy?", ("occupancy",)),
    Question("limits", "Do registers and shared memory let enough blocks fit?", ("limits",)),
    Question("warp-size", "Are blocks multiples of a warp, 32 threads?", ("warp size",)),
    Question("grid", "Does the grid fill the GPU, to the last wave?", ("launch size", "tail")),
    Question("divergence", "Do the threads of a warp stay together?", ("divergence",)),
    Question("stalls", "Do warps issue without long waits?", ("stalls",)),
    Question("atomics", "Are atomic operations spread over many addresses?", ("atomics",)),
    Question("tensor-cores", "Do matrix products use Tensor Cores?", ("Tensor Cores",), tuple(str(family.value) for family in PRODUCTS)),
    Question("precision", "Is there little double precision?", ("precision",)),
    Question("flags", "Was it compiled with optimisation?", ("flags",)),
)


class _Told(NamedTuple):
    """The results of a question's checks for a kernel."""

    row: KernelRow
    weight: float
    status: str
    detail: str


def kernel_checklist(rows: Sequence[KernelRow]) -> tuple[Answer, ...]:
    """All questions, in a fixed order; `figure` is the share of the measured time in kernels of concern."""
    # Where no time was collected each kernel counts alike.
    timed = any(row.total_us for row in rows)
    weighed = [(row, row.total_us if timed else 1.0) for row in rows if row.counted]
    return tuple(_answer(question, weighed) for question in QUESTIONS)


def _answer(asked: Question, rows: Sequence[tuple[KernelRow, float]]) -> Answer:
    told = [_told(asked, row, weight) for row, weight in rows if not asked.families or row.family in asked.families]
    whole, known = sum(one.weight for one in told), [one for one in told if one.status != "not collected"]
    bad = [one for one in known if one.status == "concern"]
    if not told:
        return _not_recorded(asked, "no matrix product, convolution or attention was measured" if asked.families else "no kernel was measured")
    share = sum(one.weight for one in bad) / whole if whole else 0.0
    if share < MATTERS and (not known or sum(one.weight for one in known) < KNOWN * whole):
        return _not_recorded(asked, next(one.detail for one in told if one.status == "not collected"))
    yes = share < MATTERS
    shown = max(bad or known, key=lambda one: one.weight)
    if len(told) == 1:
        where = shown.detail
    elif bad:
        begins, takes = ("in all but", "which take ") if yes else ("not in", "")
        where = f"{begins} {len(bad)} of {counted(len(told), 'kernel')}, {takes}{percent(share)} of the measured time. The longest of these, {_named(shown)}"
    else:
        where = f"in {'all' if len(known) == len(told) else f'{len(known)} of'} {counted(len(told), 'kernel')}; in the longest, {_named(shown)}"
    detail = f"{where[:1].upper()}{where[1:]}."
    return Answer(
        id=asked.id,
        question=asked.question,
        answer="yes" if yes else "no",
        detail=detail,
        link="#why",
        figure=share,
        good=False if not yes else None if share >= NOTHING else True,
    )


def _named(one: _Told) -> str:
    return f"{cut(one.row.name, 60)}: {one.detail}"


def _told(asked: Question, row: KernelRow, weight: float) -> _Told:
    """A concern if any of the checks is, not collected if all are."""
    checks = [check for check in row.counted.checks if check.check in asked.checks] if row.counted else []
    worst = next((check for status in ("concern", "ok", "not collected") for check in checks if check.status == status), _MISSING)
    return _Told(row, weight, worst.status, worst.detail)


_MISSING = Check("", "not collected", "an earlier version saved no answer")


def _not_recorded(asked: Question, why: str) -> Answer:
    return Answer(id=asked.id, question=asked.question, answer="not recorded", detail=f"{why[:1].upper()}{why[1:]}.", link="#why")
