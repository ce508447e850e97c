"""Shared by rules for measured kernels: each asks a question about every kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from advisor.engine.rule import Found, Outcome
from advisor.knowledge.how_to_record import counters
from advisor.knowledge.shares import HARDLY_ANY
from advisor.knowledge.structs import replace
from advisor.report.finding import Clear, Evidence, Fix, Severity, ShareSaved, Skipped, SourceLine
from advisor.report.numbers import cut
from advisor.views.kernels.limits import Gain
from advisor.views.kernels.measured import MeasuredKernel, MeasuredKernels, unlike
from advisor.views.replay.edits import Edits, WithDurations
from advisor.views.replay.gpu_work import GpuWork

BUSY_MEMORY = 0.3
"""No level of memory busier than this: traffic that is in vain costs latency, not time."""

MIN_SAVING = HARDLY_ANY
"""Share of a kernel's time below which a gain cannot be told from the noise of measuring it."""


class Seen(NamedTuple):
    """A fault of one kernel. `summary` goes on after the kernel's name: `touches 8.0 times …`."""

    summary: str
    gain: Gain
    confidence: float
    fix: Fix
    at_most: Severity = "high"
    """No more severe than this, whatever it gains."""


class Fine(NamedTuple):
    """A kernel that was looked at, and the value that was held against the threshold."""

    value: float


class Question(NamedTuple):
    """clear: text if no kernel has the fault, with {0} for the largest value and {count} for the kernels. sections: of ncu that collect the counters."""

    clear: str
    sections: tuple[str, ...]


def ask(measured: MeasuredKernels, question: Question, look: Callable[[MeasuredKernel], Seen | Fine | None]) -> Outcome:
    """A finding per kernel in which `look` sees the fault; `look` gives None if counters are missing."""
    found: list[Found] = []
    values: list[float] = []
    unknown = 0
    kernels_here = [k for k in measured.kernels if measured.join is None or len(measured.positions(k))]
    if not kernels_here:
        return Skipped(why="none of the measured kernels runs in the timeline", record_with="ncu --set full …, of the same program", missing="counters")
    for name, kernels in unlike(kernels_here).items():
        looked = [(kernel, look(kernel)) for kernel in kernels]
        unknown += sum(answer is None for _, answer in looked)
        values += [answer.value for _, answer in looked if isinstance(answer, Fine)]
        seen = [(kernel, answer) for kernel, answer in looked if isinstance(answer, Seen)]
        if seen:
            # A launch that the fault costs nothing, for something else holds it up, gives the others no weight.
            found.append(_found(measured, name, [pair for pair in seen if pair[1].gain.expected > 0] or seen))
    if found:
        return found
    if not values:
        pages = {kernel.profile.page for kernel in kernels_here}
        why = "this page lacks the counters that show it" if pages == {"details"} else "the report lacks the counters that show it"
        return Skipped(why=why, record_with=counters(question.sections, min(pages)), missing="counters")
    left = f" (of {unknown} kernels the counters were not collected)" if unknown else ""
    return Clear(why=question.clear.format(max(values), count=len(values)).replace("of 1 kernels", "of a single kernel") + left)


def _found(measured: MeasuredKernels, name: str, seen: list[tuple[MeasuredKernel, Seen]]) -> Found:
    """The launch that loses most represents all that have the fault. Joined to a timeline, what the step gains."""
    kernel, worst = max(seen, key=lambda pair: (pair[0].total_us * pair[1].gain.expected, pair[1].gain.expected))
    gain, shown = worst.gain, cut(name, _NAME)
    evidence = Evidence(
        label=name,
        start_us=0.0,
        dur_us=sum(k.total_us for k, _ in seen),
        count=sum(k.launches for k, _ in seen),
        device=kernel.profile.device,
        source=_line(kernel),
    )
    found = Found(
        summary=f"{shown} {worst.summary}",
        evidence=(evidence,),
        fix=worst.fix,
        saving=ShareSaved(low=gain.low, expected=gain.expected, high=gain.high, basis="bound"),
        quiet=f"{shown} {worst.summary}".rstrip("."),
        confidence=worst.confidence,
        at_most=worst.at_most,
    )
    return found if measured.join is None else _in_step(found, measured, measured.join.work, name, seen)


def _in_step(found: Found, measured: MeasuredKernels, work: GpuWork, name: str, seen: list[tuple[MeasuredKernel, Seen]]) -> Found:
    """The same where the kernels run in a timeline: each launch shorter by its share, for the replay."""
    parts = [(measured.positions(kernel), answer.gain) for kernel, answer in seen]
    at = np.concatenate([positions for positions, _ in parts])
    dur_us = work.dur_us[at]

    def shorter(of: Callable[[Gain], float]) -> WithDurations:
        return WithDurations(at, dur_us * (1 - np.concatenate([np.full(len(p), of(gain)) for p, gain in parts])))

    start_us, device, stream = (work.column(column)[at] for column in ("start_us", "device", "stream"))
    first = int(np.argmin(start_us))
    evidence = Evidence(
        label=name,
        start_us=float(start_us[first]),
        dur_us=float(dur_us.sum()),
        count=len(at),
        device=int(device[first]),
        stream=int(stream[first]),
        source=next((line for kernel, _ in seen if (line := _line(kernel))), None),
    )
    edits = Edits(shorter(lambda g: g.low), shorter(lambda g: g.expected), shorter(lambda g: g.high))
    return replace(found, evidence=(evidence,), edits=edits, saving=None, removes="part of this kernel's time")


def _line(kernel: MeasuredKernel) -> SourceLine | None:
    return SourceLine(*kernel.profile.source) if kernel.profile.source else None


_NAME = 80  # characters of a kernel's name in a sentence
