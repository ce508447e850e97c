"""The questions that one asks of any profile, answered from the report."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from advisor.report.charts import Picture
from advisor.report.model import DeviceTime, Report
from advisor.reports import _phrases
from advisor.reports._numbers import counted, duration, percent, share
from advisor.reports.report._roofline import standing

BUSY = 0.9
"""A GPU that works this much of the step leaves little to gain by feeding it better."""
EXPOSED = 0.05
"""Exposed copies or communication under a twentieth of the step cannot be told from noise of an unprofiled run."""
NEAR_ROOF = 0.6
"""Large matrix products and copies reach 70 to 90 % of datasheet rates; less than this leaves something to tune."""
STEADY = 0.1
"""Steps that differ by less than a tenth are one kind of step."""
MIXED = 1 / 3
"""With a third of the time on either side of the ridge, neither is the bound."""
KNOWN = 0.5
"""Of the busy time: with less of it known, a mean speaks for the rest without right."""


class Answer(NamedTuple):
    """A question, how it came out, the answer, and the section that shows it."""

    question: str
    status: Literal["good", "look", "unknown"]
    answer: str
    link: str
    praise: str = ""
    """The answer as a sentence of its own, where it is good news."""


def checklist(report: Report, picture: Picture | None) -> list[Answer]:
    """Every question that this report can speak to."""
    time = max(report.time or (), key=lambda t: t.window_us - t.idle_us, default=None)
    made = [
        Answer("What bounds it?", "good" if not report.findings else "look", _first_up(report.headline.bottleneck) + ".", "#time")
    ]
    if time:
        made += [_busy(time), _overlap(time)]
    made += [_bound(report), _rates(report), _steady(picture), _wins(report)]
    trust = _phrases.trust(report)
    status: Literal["good", "look", "unknown"] = {"ok": "good", "unknown": "unknown"}.get(trust.status, "look")  # type: ignore[assignment]
    return [*made, Answer("Can the trace be trusted?", status, f"{trust.answer}: {trust.detail}", "#health")]


def _judged(question: str, good: bool, answer: str, link: str, praise: str) -> Answer:
    return Answer(question, "good" if good else "look", answer, link, praise if good else "")


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]


def _busy(time: DeviceTime) -> Answer:
    idle = [part for part in _phrases.slices(time) if part.idle]
    busy = 1 - share(time.idle_us, time.window_us)
    why = f"; idle {percent(1 - busy)}, mostly {idle[0].short.lower()}" if idle and busy < BUSY else ""
    answer = f"{percent(busy)} of the time{why}."
    return _judged("Is the GPU busy?", busy >= BUSY, answer, "#time", f"The GPU works {percent(busy)} of the time.")


def _overlap(time: DeviceTime) -> Answer:
    exposed = share(time.exposed_comm_us + time.exposed_copy_us, time.window_us)
    text = f"They run alone for {percent(exposed)} of the time." if exposed else "Yes: they never run alone."
    praise = "No copy or communication holds the GPU up" + (
        f": they run alone for {percent(exposed)} of the time." if exposed else "."
    )
    return _judged("Are copies and communication hidden?", exposed < EXPOSED, text, "#time", praise)


def _bound(report: Report) -> Answer:
    question = "Are its kernels memory- or compute-bound?"
    known = standing(report)
    if known is None or known.known < KNOWN:
        return Answer(question, "unknown", _unknown(report), "#roofline")
    memory, compute = percent(known.memory), percent(1 - known.memory)
    if min(known.memory, 1 - known.memory) > MIXED:
        text = (
            f"Some of each: by arithmetic intensity {memory} of kernel time is on the memory side, {compute} on the compute side."
        )
    else:
        side, part = ("Memory", memory) if known.memory >= 0.5 else ("Compute", compute)
        text = f"{side}: by arithmetic intensity {part} of kernel time is on that side."
    return Answer(question, "good", text, "#roofline")


def _rates(report: Report) -> Answer:
    question = "Do kernels reach the hardware’s rate?"
    known = standing(report)
    if known is None or known.known < KNOWN:
        return Answer(question, "unknown", _unknown(report), "#kernels")
    text = f"{percent(known.reached)} of their roofline on average, weighted by time."
    praise = f"Kernels reach {percent(known.reached)} of their roofline on average."
    return _judged(question, known.reached >= NEAR_ROOF, text, "#roofline", praise)


def _unknown(report: Report) -> str:
    if not report.source.recorded.shapes:
        return "Not known: shapes were not recorded (record_shapes=True)."
    return "Not known for most of the time: no formula for these kernels, or no datasheet for this GPU."


def _steady(picture: Picture | None) -> Answer:
    question = "Are the steps steady?"
    if picture is None:
        return Answer(question, "unknown", "A saved report does not hold the single steps.", "#steps")
    period = picture.steps.period_us
    if len(period) < 2:
        return Answer(question, "unknown", "Only one was recorded.", "#steps")
    spread = float((period.max() - period.min()) / max(float(np.median(period)), 1e-9))
    far = int(picture.steps.outlier.sum())
    text = f"{duration(float(period.min()))} to {duration(float(period.max()))} over {counted(len(period), 'step')}"
    return Answer(
        question, "good" if spread < STEADY else "look", text + (f", {counted(far, 'outlier')}." if far else "."), "#steps"
    )


def _wins(report: Report) -> Answer:
    rules = list(dict.fromkeys(f.rule for f in report.findings if f.severity in ("high", "medium") and not f.folded_into))
    if not rules:
        return Answer("Easy wins left?", "good", "None that gains a twentieth of the step.", "#findings")
    return Answer("Easy wins left?", "look", f"{counted(len(rules), 'rule')}: {', '.join(rules[:4])}.", "#findings")
