"""The result of a rule: a problem, its certainty, the fix and its gain; or the reason for no finding."""

from __future__ import annotations

from math import inf
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from advisor.knowledge.how_to_record import Missing
from advisor.knowledge.shares import HARDLY_ANY
from advisor.report.recording import Unit as Unit

Severity = Literal["high", "medium", "low", "info"]
SEVERITIES: tuple[Severity, ...] = ("high", "medium", "low", "info")
LOUD: tuple[Severity, ...] = ("high", "medium")
"""Severities of what asks to be done; the others are notes."""
Basis = Literal["simulated", "bound", "measured"]
SUMMARY_CHARACTERS = 240
"""The limit of a finding's summary, a single line."""
Per = Literal["step", "request", "sample", "recording"]
"""The part that becomes shorter: the step, or the whole recording if it has no steps (a history of memory). With "request" or "sample", several of
them share a step as long as now."""
Feature = Literal["training", "loader", "torch", "jax", "cuda"]
"""Features of a program: a backward pass, a dataloader, or its framework."""
LEVEL = 0.8
"""The intended share of measured gains between low and high."""


class SourceLine(msgspec.Struct, frozen=True):
    """A place in the program's text; lines count from 1."""

    file: str
    line: int


class Evidence(msgspec.Struct, frozen=True):
    """A place in the trace that shows the problem; `count` repeats are folded into it, `dur_us` is their total."""

    label: str
    start_us: float
    dur_us: float
    count: int = 1
    device: int | None = None
    stream: int | None = None
    thread: int | None = None
    source: SourceLine | None = None
    bytes: int | None = None
    """Of memory, if that is the problem: the most held at once."""


class Code(msgspec.Struct, frozen=True):
    """The lines to change as they are, in the user's terms, and as they should be."""

    before: str
    after: str


class StackOption(msgspec.Struct, frozen=True):
    """A switch of a framework that a fix names: the framework, its version ("" if unknown), and the option as code."""

    framework: str
    version: str
    option: str


class Conditional(NamedTuple):
    """Sentences that only hold for programs with a feature."""

    feature: Feature
    text: str


class Advice(str):
    """A text of a fix in parts, some only for programs with a feature. The engine removes the others; then it is a plain text."""

    parts: tuple[str | Conditional, ...]

    def __new__(cls, *parts: str | Conditional) -> Advice:
        made = super().__new__(cls, " ".join(part.text if isinstance(part, Conditional) else part for part in parts))
        made.parts = parts
        return made


class Fix(msgspec.Struct, frozen=True):
    """The change, in a step or more."""

    title: str
    steps: tuple[str, ...]
    code: Code | None = None
    url: str = ""
    risk: str = ""
    holds_for: tuple[str, ...] = ()
    """Required features of the program: `training`, `torch`, `jax` and `cuda`; empty for any program. The engine adds the needs of the code."""
    stack: StackOption | None = None
    """The framework's own switch, if the fix uses its terms; else None."""
    intervention: str | None = None
    """What `advisor try` applies from outside to measure it (`advisor try --list`); None if it takes a change of the program."""

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError(f"the fix {self.title!r} has no step")


class Saving(msgspec.Struct, frozen=True, tag_field="unit", tag="us"):
    """The gain per step, in µs: 0 <= low <= expected <= high."""

    low_us: float
    expected_us: float
    high_us: float
    basis: Basis
    removes: str = ""
    level: float = LEVEL
    per: Per = "step"

    def __post_init__(self) -> None:
        _ordered(self.low_us, self.expected_us, self.high_us)

    @property
    def unit(self) -> str:
        return "us"

    @property
    def low(self) -> float:
        return self.low_us

    @property
    def expected(self) -> float:
        return self.expected_us

    @property
    def high(self) -> float:
        return self.high_us


class _Amount(msgspec.Struct, frozen=True, tag_field="unit"):
    low: float
    expected: float
    high: float
    basis: Basis
    removes: str = ""
    level: float = LEVEL

    def __post_init__(self) -> None:
        _ordered(self.low, self.expected, self.high)

    @property
    def unit(self) -> str:
        return str(self.__struct_config__.tag)


class BytesSaved(_Amount, frozen=True, tag="bytes"):
    """The reduction of the peak of memory, in bytes."""

    of: Literal["allocated", "reserved"] = "allocated"
    """The peak of the program's allocated bytes, or of its allocator's reserved bytes."""


class ShareSaved(_Amount, frozen=True, tag="share"):
    """The gain of a kernel, as a share of its own time."""


AnySaving: TypeAlias = Saving | BytesSaved | ShareSaved


def _ordered(low: float, expected: float, high: float) -> None:
    if not 0 <= low <= expected <= high < inf:
        raise ValueError(f"a saving is ordered and ends, not {low}, {expected}, {high}")


HIGH_SHARE, MEDIUM_SHARE, LOW_SHARE = 0.20, HARDLY_ANY, 0.01
"""Shares of the step that a fix must save to be high, medium or low. An unprofiled run can confirm a twentieth
against its own noise; a fifth is worth dropping other work for."""


def severity_of(saving: AnySaving, whole: float) -> Severity:
    """How much a finding matters, by the share of the whole (the step's µs, the peak's bytes, 1) that its fix is expected to save."""
    share = saving.expected / whole if whole > 0 else 0.0
    if share >= HIGH_SHARE:
        return "high"
    if share >= MEDIUM_SHARE:
        return "medium"
    return "low" if share >= LOW_SHARE else "info"


class Change(msgspec.Struct, frozen=True):
    """The effect of a part of a fix on a step in the replay, in µs and ops a step."""

    edit: str
    ops_removed: float = 0.0
    ops_changed: float = 0.0
    gpu_us: float = 0.0
    """GPU time that it takes away; likewise of the host."""
    host_us: float = 0.0
    waits_removed: float = 0.0


Excluded = Literal["", "allowed", "unconfirmed", "frees-memory", "other-unit", "alternative", "same-graphs"]
"""Why the combined estimate leaves a finding out; "" if it does not. The team allows it, it is unconfirmed, it saves bytes, or it shortens a request
but not the step. Or it is an alternative: another way to the gain of other findings, or to the same CUDA graphs."""


class Finding(msgspec.Struct, frozen=True):
    """A problem, its certainty, the fix and its gain. The engine fills in `rule`."""

    title: str
    summary: str
    severity: Severity
    confidence: float
    saving: AnySaving
    evidence: tuple[Evidence, ...]
    fix: Fix
    rule: str = ""
    id: str = ""
    """The rule and an ordinal, `launch-gap-1`: the same in every report of the same trace."""
    status: Literal["found", "possible"] = "found"
    """A possible finding is low at most. `possible_why` is the counter-evidence, "" for a possible effect of the profiler. The command `decide_with`
    decides."""
    possible_why: str = ""
    decide_with: str = ""
    cause: str = ""
    """Of a job: compute, imbalance, host, data-loading, copy or communication."""
    ranks: tuple[int, ...] = ()
    """The ranks it holds for, the culprit first."""
    folded_into: str = ""
    """The rule of the cause: its fix already removes most of this symptom."""
    covered_by: str = ""
    """Of an unconfirmed finding, the rule that already gains most of this with its fix."""
    allowed: str = ""
    """Why the team lives with this; "" if it does not."""
    checks: tuple[str, ...] = ()
    """The health checks it rests on: each of them passed, or at worst degraded."""
    lines_with: str = ""
    """How to record its lines of source, if the recording has none."""
    edits: tuple[Change, ...] = ()
    """The expected effect of the fix on the step, part by part."""
    left_out: str = ""
    """Why the combined estimate leaves this out; "" if it does not, and if no step is predicted."""
    excluded: Excluded = ""
    """The same as a fact: `left_out` words it."""
    alternative_to: tuple[str, ...] = ()
    """Rules with the same gain by another fix, if known; also if both fixes are CUDA graphs."""
    evidence_us: float | None = None
    """The recorded time of its evidence per step, like `saving`; if places are nested, of the largest alone. None without times, and in older
    reports."""

    @property
    def loud(self) -> bool:
        """Whether it asks for something to be done, rather than notes it."""
        return self.severity in LOUD

    @property
    def shortens(self) -> bool:
        """Whether the fix, as far as it is known to help, makes the step itself shorter."""
        return isinstance(self.saving, Saving) and self.saving.per == "step" and self.status == "found"

    def __post_init__(self) -> None:
        if not self.evidence:
            raise ValueError(f"the finding {self.title!r} has no evidence")
        if "\n" in self.summary or len(self.summary) > SUMMARY_CHARACTERS:
            raise ValueError(f"the summary of {self.title!r} does not fit one line")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence is 0 to 1, not {self.confidence}")


ClearReason = Literal["", "below-threshold", "small-gain", "absent", "already-fixed", "well-used", "not-applicable", "cannot-tell"]
"""Why a rule found nothing: a value below its threshold, too small a gain, or no such pattern. Or the fix is there already, the hardware is used well,
the rule is for other programs, or no evidence shows that a fix helps."""


class Clear(msgspec.Struct, frozen=True):
    """A rule looked and found nothing: `why` says the reason, with the value and the threshold if there are any."""

    why: str
    rule: str = ""
    reason: ClearReason = ""
    measured: float | None = None
    threshold: float | None = None
    unit: Unit = ""


SkippedReason = Literal["", "not-recorded", "check-failed", "not-supported", "covered"]
"""Why a rule was skipped: missing data, a failed check that it relies on, another kind of recording, or another rule that covers it."""


class Skipped(msgspec.Struct, frozen=True):
    """A skipped rule: the missing data, and how to record it."""

    why: str
    record_with: str = ""
    rule: str = ""
    reason: SkippedReason = ""
    check: str = ""
    """The check that failed, if that is the reason."""
    missing: Missing = ""
    """What `record_with` records, if other programs take another tool for it."""


class Failed(msgspec.Struct, frozen=True):
    """A rule broke; the others went on."""

    rule: str
    error: str
