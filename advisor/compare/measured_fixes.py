"""Fixes whose gain was measured: the lines that `advisor verify` and `advisor try` append to a ledger, `accuracy.jsonl`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from advisor.errors import TraceError
from advisor.knowledge.shares import NO_DIFFERENCE

FILE = "accuracy.jsonl"


@dataclass(frozen=True)
class PredictedGain:
    """A fix's predicted and measured gain, as shares of the step before it. name: the finding. rule: "" if no rule named the fix."""

    name: str
    rule: str
    low: float
    expected: float
    high: float
    measured: float

    @property
    def in_interval(self) -> bool:
        """Whether the measured gain is in the predicted interval."""
        return self.low - NO_DIFFERENCE <= self.measured <= self.high + NO_DIFFERENCE


@dataclass(frozen=True)
class MeasuredFix(PredictedGain):
    """A measurement of a ledger.

    measured_low, measured_high: ends of the measurement's interval, None without an interval. date: `2026-05-01`.
    """

    measured_low: float | None = None
    measured_high: float | None = None
    verdict: str = ""
    device: str = ""
    date: str = ""


def read(path: Path) -> tuple[MeasuredFix, ...]:
    """The measurements in the order in which they were made. Raises TraceError if a line is none."""
    try:
        return tuple(msgspec.json.Decoder(MeasuredFix).decode_lines(path.read_bytes()))
    except (OSError, msgspec.DecodeError) as error:
        raise TraceError(f"{path} is no ledger: {error}", "Its lines are written by: advisor verify --finding REPORT#FINDING") from None
