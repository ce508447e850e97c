"""What a fix saves: of what, in which range, worked out how; and the two scales that a page explains."""

from __future__ import annotations

from collections.abc import Callable

from advisor.knowledge.shares import LITTLE
from advisor.report.finding import HIGH_SHARE, LEVEL, LOW_SHARE, MEDIUM_SHARE, AnySaving, BytesSaved, Finding, Saving, ShareSaved
from advisor.report.model import Report
from advisor.report.numbers import duration, percent, rough_duration, rough_percent, rough_size, size, span

WIDE = LITTLE
"""A saving whose ends differ by more than this share of what is expected is known to two digits at most."""

_EXACT: dict[type, Callable[[float], str]] = {Saving: duration, BytesSaved: size, ShareSaved: percent}
_ROUGH: dict[type, Callable[[float], str]] = {Saving: rough_duration, BytesSaved: rough_size, ShareSaved: rough_percent}

_NOUNS = {"trace": "step", "job": "step", "kernels": "kernel", "memory": "peak", "tpu": "step", "collectives": "step"}

_RECURRING = ("step", "run", "kernel")
"""What comes again and again, and saves each time."""


def scales(report: Report) -> str:
    """The two scales of doubt of a page. Used once a page, in every format that people read."""
    whole = {"kernels": "kernel's time", "memory": "peak"}.get(report.kind, step_noun(report))
    timed = any(isinstance(finding.saving, Saving) and per_whole(finding, report) == "per step" for finding in report.findings)
    above = "A saving counts launches and idle time that go with the named work: it may exceed that work's time. " if timed else ""
    return (
        f"A range is meant to hold the true saving {round(10 * LEVEL)} times in 10. {above}Severity is the expected saving: "
        f"high from {HIGH_SHARE:.0%} of the {whole}, medium from {MEDIUM_SHARE:.0%}, low from {LOW_SHARE:.0%}, else info. "
        "It is lower in doubt, if another finding includes the gain, or if other changes come first."
    )


def step_noun(report: Report) -> str:
    """What savings are parts of: `step`; `run` where a trace has no steps."""
    return "run" if report.window and report.window.basis == "whole" else _NOUNS[report.kind]


def whole_noun(finding: Finding, report: Report) -> str:
    """The whole that a saving is a part of, after "of the": a step, the step time per request, the peak."""
    if isinstance(finding.saving, Saving) and per_request(finding):
        return f"{step_noun(report)} time per {finding.saving.per}"
    if isinstance(finding.saving, BytesSaved):
        peak = "peak" if finding.saving.of == "allocated" else "reserved peak"
        return peak if report.kind == "memory" else f"{peak} of memory"
    of_recording = isinstance(finding.saving, Saving) and finding.saving.per == "recording"
    return "recorded time" if of_recording or report.kind == "memory" else step_noun(report)


def per_whole(finding: Finding, report: Report) -> str:
    """`per step`, or `of the peak`: what a saving is held against, after it."""
    noun = whole_noun(finding, report)
    if per_request(finding):
        return f"of {noun}"
    return f"per {noun}" if noun in _RECURRING else f"of the {noun}"


def per_request(finding: Finding) -> bool:
    """Whether the step keeps its length and serves more requests, or learns from more samples."""
    return isinstance(finding.saving, Saving) and finding.saving.per in ("request", "sample")


def amount(saving: AnySaving, value: float) -> str:
    """A value in the unit of a saving, with as many digits as its range allows."""
    wide = saving.high - saving.low > WIDE * saving.expected
    return (_ROUGH if wide else _EXACT)[type(saving)](value)


def gain(finding: Finding, report: Report) -> str:
    """`4.1 ms (33%)`: the expected saving and its share of the whole; "" if there is none."""
    saving = finding.saving
    if saving.expected <= 0:
        return ""
    part = rough_percent(report.share(finding))
    if isinstance(saving, ShareSaved):
        return part
    # Of a whole that is not known, as time in a snapshot of memory, there is no share.
    return f"{amount(saving, saving.expected)} ({part})" if report.whole(saving) > 0 else amount(saving, saving.expected)


def saves(finding: Finding, report: Report) -> str:
    """`gain`, with "of step time per request" if the step gets no shorter. Used where nothing next to it says of what."""
    saved = gain(finding, report)
    return f"{saved} of {whole_noun(finding, report)}" if saved and per_request(finding) else saved


def likely(saving: AnySaving) -> str:
    """`6.5 to 8.2 ms`: the range of a saving. Used beside every saving."""
    if saving.low <= 0 < saving.high:
        return f"up to {amount(saving, saving.high)}"
    return span(saving.low, saving.high, lambda value: amount(saving, value))


_BASES = {"simulated": "simulated", "bound": "estimated", "measured": "measured"}

_METHODS = {
    "simulated": "The recorded step was replayed on its own dependencies, with and without the work that the fix removes.",
    "bound": "The saving is the time above the least that the hardware needs for the same work.",
    "measured": "The time was measured in this trace.",
}

_ALLOCATIONS = "The recorded allocations were replayed with the fix, and the two peaks compared."


def saving_basis(finding: Finding) -> str:
    """How a saving was worked out, in a word: simulated, estimated or measured."""
    return _BASES.get(finding.saving.basis, finding.saving.basis)


def saving_method(finding: Finding) -> str:
    """What that word means. Used behind it: a hover on the page, `advisor explain`."""
    return _ALLOCATIONS if isinstance(finding.saving, BytesSaved) else _METHODS.get(finding.saving.basis, "")
