"""The questions that one asks of any profile, as a page shows them: the report's own answers, and what only the picture knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from advisor.report import wording
from advisor.report.charts import Picture
from advisor.report.model import Report
from advisor.report.numbers import counted, duration
from advisor.report.recording import matrix_units
from advisor.reports import _text

STEADY = 0.1
"""Steps that differ by less than a tenth are one kind of step."""

Status = Literal["good", "look", "open", "unknown"]
"""Good news, worth a look, neither, or not known from this recording."""

_MARKS: dict[bool | None, Status] = {True: "good", False: "look", None: "open"}


class Answer(NamedTuple):
    """A question, how it came out, the answer, and the section that shows it."""

    question: str
    status: Status
    answer: str
    link: str
    praise: str = ""
    """The answer as a sentence of its own, if it is good news."""


_PRAISE = {
    "gpu-busy": "The GPU is busy",
    "communication": "No communication is exposed",
    "copies": "No copy is exposed",
    "tensor-cores": "{units} are used",
    "utilisation": "The hardware is well used",
}
"""Answers worth praising if nothing was found."""

ASKED = ("trace", "kernels")
"""Kinds of recordings of which questions are asked."""


def checklist(report: Report, picture: Picture | None) -> list[Answer]:
    """What bounds it, the questions that one asks of any profile or kernel, whether the steps are steady, whether the recording can be trusted."""
    if report.kind not in ASKED or report.host_time:
        return []
    head = report.headline
    bound = Answer(
        "What bounds it?",
        "good" if not report.findings and head.judged == "yes" else "look",
        f"{_text.first_up(head.bottleneck)}.",
        "#time" if report.time else "#why",
    )
    trust = wording.trust(report)
    status: Status = {"ok": "good", "unknown": "unknown"}.get(trust.status, "look")  # type: ignore[assignment]
    made = [bound, *(_shown(report, at) for at in range(len(report.checklist))), *([_steady(picture)] if report.kind == "trace" else [])]
    recording = "trace" if report.kind == "trace" else "report"
    return [*made, Answer(f"Can the {recording} be trusted?", status, f"{trust.answer}: {trust.detail}", "#health")]


def tally(answers: Sequence[Answer]) -> str:
    """How many of them came out how, in a line."""
    said = (("look", "to look at"), ("open", "neither"), ("unknown", "not known"), ("good", "good"))
    counts = [(sum(answer.status == status for answer in answers), what) for status, what in said]
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def _shown(report: Report, at: int) -> Answer:
    item = report.checklist[at]
    if item.answer == "not recorded":
        return Answer(item.question, "unknown", f"Not recorded: {item.detail[:1].lower()}{item.detail[1:]}", item.link)
    praised = item.good and report.headline.judged == "yes" and item.id in _PRAISE
    praise = f"{_PRAISE[item.id].format(units=matrix_units(report.devices))}: {item.detail[:1].lower()}{item.detail[1:]}" if praised else ""
    return Answer(item.question, _MARKS[item.good], f"{item.answer.capitalize()}. {item.detail}", item.link, praise)


def _steady(picture: Picture | None) -> Answer:
    question = "Are the steps steady?"
    if picture is None:
        return Answer(question, "unknown", "A saved report does not hold individual steps.", "#steps")
    period = picture.steps.period_us
    if len(period) < 2:
        return Answer(question, "unknown", "A single step was recorded.", "#steps")
    spread = float((period.max() - period.min()) / max(float(np.median(period)), 1e-9))
    far = int(picture.steps.outlier.sum())
    text = f"{duration(float(period.min()))} to {duration(float(period.max()))} over {counted(len(period), 'step')}, as recorded"
    return Answer(question, "good" if spread < STEADY else "look", text + (f", {counted(far, 'outlier')}." if far else "."), "#steps")
