"""What the rules for measured kernels share: each asks one question of every kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from advisor.engine.rule import Found, Outcome
from advisor.report.model import Clear, Evidence, Fix, ShareSaved, Skipped
from advisor.views.kernels.limits import Gain
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels, unlike

MIN_SAVING = 0.05
"""Share of a kernel's time below which a gain cannot be told from the noise of measuring it."""


class Seen(NamedTuple):
    """A fault of one kernel. `summary` goes on after the kernel's name: `touches 8.0 times …`."""

    summary: str
    gain: Gain
    confidence: float
    fix: Fix


class Fine(NamedTuple):
    """A kernel that was looked at, and the value that was held against the threshold."""

    value: float


class Question(NamedTuple):
    """clear: what to say where no kernel has the fault, with {0} for the largest value and {count} for the kernels.
    sections: of ncu, which collect what it takes."""

    clear: str
    sections: tuple[str, ...]


def ask(measured: MeasuredKernels, question: Question, look: Callable[[MeasuredKernel], Seen | Fine | None]) -> Outcome:
    """One finding for each kernel that `look` sees the fault in; `look` gives None where what it takes was not collected."""
    found: list[Found] = []
    values: list[float] = []
    unknown = 0
    for name, kernels in unlike(measured.kernels).items():
        looked = [(kernel, look(kernel)) for kernel in kernels]
        unknown += sum(answer is None for _, answer in looked)
        values += [answer.value for _, answer in looked if isinstance(answer, Fine)]
        seen = [(kernel, answer) for kernel, answer in looked if isinstance(answer, Seen)]
        if seen:
            found.append(_found(name, seen))
    if found:
        return found
    if not values:
        sections = " ".join(f"--section {section}" for section in question.sections)
        return Skipped(why="the report does not hold the counters that tell", record_with=f"ncu {sections} …")
    left = f" (of {unknown} kernels the counters were not collected)" if unknown else ""
    return Clear(why=question.clear.format(max(values), count=len(values)) + left)


def _found(name: str, seen: list[tuple[MeasuredKernel, Seen]]) -> Found:
    """The launch that loses most stands for all that have the fault."""
    kernel, worst = max(seen, key=lambda pair: (pair[0].total_us * pair[1].gain.expected, pair[1].gain.expected))
    gain, shown = worst.gain, name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    return Found(
        summary=f"{shown} {worst.summary}",
        evidence=(
            Evidence(
                label=name,
                start_us=0.0,
                dur_us=sum(k.total_us for k, _ in seen),
                count=sum(k.launches for k, _ in seen),
                device=kernel.profile.device,
            ),
        ),
        fix=worst.fix,
        saving=ShareSaved(low=gain.low, expected=gain.expected, high=gain.high, basis="bound"),
        quiet=f"{shown} {worst.summary}".rstrip("."),
        confidence=worst.confidence,
    )


_NAME = 80
