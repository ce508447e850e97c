"""What two sides of a comparison differ in: frozen structs, serialised as they stand (JSON schema 1)."""

from __future__ import annotations

from typing import Literal

import msgspec

from advisor.report.encoded import as_json
from advisor.report.finding import AnySaving
from advisor.report.model import Kind

SCHEMA = 1  # of the JSON of a comparison

Verdict = Literal["faster", "slower", "unchanged", "within noise", "unknown"]
"""`unknown`: a side could not be judged, or the sides' steps are estimates that overlap, of recorders that differ."""
Status = Literal["new", "gone", "better", "worse", "same"]
Basis = Literal["class", "module and op", "family", "kernel"]


class Interval(msgspec.Struct, frozen=True):
    """A 95 % bootstrap interval of a change in µs a step; it holds 0 if the change is within the noise."""

    low_us: float
    high_us: float

    @property
    def beyond_noise(self) -> bool:
        """Whether it leaves 0 out."""
        return self.low_us > 0 or self.high_us < 0


class Row(msgspec.Struct, frozen=True):
    """One part of the change, in µs a step. `relation` says how kernels were matched; "" elsewhere."""

    name: str
    before_us: float
    after_us: float
    change_us: float
    noise: Interval | None = None
    relation: str = ""
    calls_before: float = 0.0
    calls_after: float = 0.0


class Table(msgspec.Struct, frozen=True):
    """One way to divide the change: the rows' changes sum to the change of the step. Largest first."""

    by: Basis
    rows: tuple[Row, ...]


class FindingChange(msgspec.Struct, frozen=True):
    """A rule on both sides; savings are shares of each side's own step, None if the rule found nothing."""

    rule: str
    title: str
    status: Status
    before_share: float | None
    after_share: float | None


class Applied(msgspec.Struct, frozen=True):
    """A finding that is gone: what its fix was predicted to gain, in µs of a step before."""

    rule: str
    title: str
    predicted: AnySaving


class Difference(msgspec.Struct, frozen=True):
    """Something that makes the two sides hard to compare. A serious one makes the comparison meaningless."""

    what: str
    before: str
    after: str
    serious: bool
    advice: str = ""


class Side(msgspec.Struct, frozen=True):
    """One side: its captures and their mean step."""

    paths: tuple[str, ...]
    step_us: float
    steps_us: tuple[float, ...]
    basis: str
    kernels: float
    kernel_us: float
    samples_per_s: float = 0.0
    """Samples or requests a second, 0 if the size of the batch is not known."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a comparison says."""

    schema: int = SCHEMA
    kind: Kind = "trace"
    """Of measured kernels what is called a step here is all of them together, as they run under the profiler."""
    advisor: str = ""
    before: Side
    after: Side
    change_us: float
    noise: Interval | None
    verdict: Verdict
    summary: str
    differences: tuple[Difference, ...]
    tables: tuple[Table, ...]
    kernel_time: tuple[Row, ...]
    """Kernels by name on all devices, overlaps counted: these do not sum to the change of the step."""
    findings: tuple[FindingChange, ...]
    applied: tuple[Applied, ...]

    @property
    def change_share(self) -> float:
        """Change of the step as a share of the step before."""
        return self.change_us / self.before.step_us if self.before.step_us else 0.0

    def to_json(self) -> bytes:
        """The comparison as JSON."""
        return as_json(self)
