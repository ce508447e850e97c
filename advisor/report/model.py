"""The result of an analysis: frozen structs, serialised without changes (JSON schema 2; fields are added, never renamed)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from advisor.report.compile_log import CompileCosts
from advisor.report.encoded import as_json
from advisor.report.finding import AnySaving, BytesSaved, Clear, Failed, Finding, Saving, Skipped
from advisor.report.host_time import HostTime
from advisor.report.host_waits import HostWaits
from advisor.report.kernels import KernelRow, UtilizationRow
from advisor.report.memory import Memory, TracedMemory
from advisor.report.numbers import duration
from advisor.report.ranks import CollectiveMoment, CollectiveRow, ExpertBalance, Matching, RankRow, Slowdown, WaitRow
from advisor.report.recording import DeviceInfo, DeviceTime, FrameworkInfo, Health, Prediction, SourceInfo, UnseenWork, Window
from advisor.report.serving import Serving
from advisor.report.step import CategoryRow, OpRow, Part, PathPart, Rates, Work

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 2
"""2: `headline.step_us` is the step without a profiler. Reports of schema 1, with the recorded step, are still read."""

Kind = Literal["trace", "job", "kernels", "memory", "tpu", "collectives"]
"""The kind of a recording, and so of its report: the timeline of a process, the ranks of a job, single measured kernels, or snapshots of memory. Or the
cores of a TPU, which get no advice."""

DEVICE_BOUND = ("compute-bound", "memory-bound", "gpu-bound", "copy-bound")
"""Bottlenecks that a faster host leaves as they are."""

UNKNOWN = "unknown"
"""The bottleneck of a recording that carries no verdict."""


class Together(msgspec.Struct, frozen=True):
    """The best set of fixes that go together: the step with all of them, and the ids of their findings."""

    step_us: Prediction
    findings: tuple[str, ...]


JudgedReason = Literal[
    "", "no-gpu-work", "captured-only", "one-time-work", "checks-failed", "cut-off", "few-ops", "copies-only", "hardly-works", "first-pass", "host-unseen",
    "allocates", "overhead", "elsewhere", "unused-idle", "rules-failed", "contradiction", "ranks-unread", "not-judged",
]  # fmt: skip
"""Why a recording was judged in part or not at all."""


class Headline(msgspec.Struct, frozen=True):
    """The report in a line. `predicted_step_us` is a replay with every fix, not a sum of savings; None if nothing has steps."""

    bottleneck: str
    summary: str
    step_us: float | None = None
    predicted_step_us: Prediction | None = None
    judged: Literal["yes", "partly", "no"] = "yes"
    """Whether the recording could be judged: "nothing found" and "could not look" are different."""
    judged_why: str = ""
    judged_reason: JudgedReason = ""
    """The same as a fact: `judged_why` words it."""
    together: Together | None = None
    """The fixes that `predicted_step_us` has; None if it has none."""


class Answer(msgspec.Struct, frozen=True):
    """A question to any profile: yes, no or not recorded, the figure behind the answer (a share, 0 to 1), and whether that is good news. The section
    of the page shows the details."""

    id: str
    question: str
    answer: Literal["yes", "no", "not recorded"]
    detail: str
    link: str
    figure: float | None = None
    good: bool | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result of an analysis. Each selected rule is in exactly one of the four lists. Fields that a kind lacks are None."""

    # These two stand first in the JSON, so that a reader knows at once what it holds.
    schema: int = SCHEMA
    advisor: str = ""
    kind: Kind = "trace"
    source: SourceInfo
    devices: tuple[DeviceInfo, ...]
    window: Window | None
    time: tuple[DeviceTime, ...] | None
    health: tuple[Health, ...]
    headline: Headline
    findings: tuple[Finding, ...]
    clear: tuple[Clear, ...]
    skipped: tuple[Skipped, ...]
    failed: tuple[Failed, ...]
    kernels: tuple[KernelRow, ...] = ()
    utilization: tuple[UtilizationRow, ...] = ()
    critical_path: tuple[PathPart, ...] = ()
    critical_path_after: tuple[PathPart, ...] = ()
    """The bottleneck of the combined estimate. Empty without findings."""
    breakdown: tuple[Part, ...] = ()
    work: Work = Work()
    memory: Memory | None = None
    traced_memory: tuple[TracedMemory, ...] = ()
    rates: Rates | None = None
    checklist: tuple[Answer, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    matching: Matching | None = None
    collectives: tuple[CollectiveRow, ...] = ()
    waits: tuple[WaitRow, ...] = ()
    """Of a job: who waits for whom, most first."""
    worst: CollectiveMoment | None = None
    slowdown: Slowdown | None = None
    ops: tuple[OpRow, ...] = ()
    """Framework ops by name, most GPU time first."""
    unseen: tuple[UnseenWork, ...] = ()
    """Work that was not recorded, failed or was not read, by kind: no figure of the report contains it."""
    categories: tuple[CategoryRow, ...] = ()
    """Of a TPU: its HLO ops by category, most time first."""
    framework: FrameworkInfo | None = None
    """The framework of the fixes' terms; None for terms of PyTorch or CUDA."""
    host_waits: HostWaits | None = None
    """Of a trace: every call that waits for the GPU. None unless it was asked for."""
    compile_costs: CompileCosts | None = None
    """Of a trace: graph breaks and recompilations of torch.compile. None unless its log was given."""
    host_time: HostTime | None = None
    """Of a trace without GPU work: the step's time on the CPU, by part."""
    serving: Serving | None = None
    """Of an inference server: its steps by phase and batch. None if no marks are of a server."""
    experts: ExpertBalance | None = None
    """Of a job with experts' GEMMs."""

    @property
    def traced(self) -> Window:
        """The window. Raises TypeError if the recording is of a kind without steps."""
        if self.window is None:
            raise TypeError(f"a report of kind {self.kind} has no window")
        return self.window

    @property
    def step_us(self) -> float:
        """The step that savings are parts of; 0 if nothing has steps."""
        return self.headline.step_us or 0.0

    @property
    def evidence_steps(self) -> int:
        """The number of recorded steps behind the counts and times of evidence: formats show them per step, like savings."""
        return self.window.steps if self.window is not None and self.kind != "memory" else 1

    def added_us(self, time: DeviceTime) -> float:
        """Profiler overhead in the device's window, all of it idle time."""
        return min(self.window.recording_us * self.window.steps, time.idle.profiler) if self.window else 0.0

    def whole(self, saving: AnySaving) -> float:
        """The whole that a saving is a share of, in its unit."""
        if isinstance(saving, BytesSaved):
            return float(self.memory.peak(saving.of)) if self.memory else 0.0
        return self.step_us if isinstance(saving, Saving) else 1.0

    def share(self, finding: Finding) -> float:
        """The share of the whole that a finding's fix is expected to save, 0 to 1."""
        whole = self.whole(finding.saving)
        return min(finding.saving.expected / whole, 1.0) if whole > 0 else 0.0

    def tables(self) -> dict[str, pd.DataFrame]:
        """The report's lists as DataFrames by name; see `advisor.report.tables`."""
        from advisor.report.tables import tables

        return tables({name: getattr(self, name) for name in self.__struct_fields__})

    def __repr__(self) -> str:
        head = self.headline
        found = f"{len(self.findings)} finding{'' if len(self.findings) == 1 else 's'}"
        step = f", {duration(self.step_us)}" if self.step_us else ""
        return f"<Report of {self.source.path}: {head.bottleneck}{step}, {found}>"

    def to_json(self) -> bytes:
        """The report as JSON of this schema."""
        return as_json(self)

    @classmethod
    def from_json(cls, data: bytes) -> Report:
        """Read a saved report. Raises msgspec.DecodeError or ValidationError if it is no report."""
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.ValidationError:
            return msgspec.convert(_upgraded(msgspec.json.decode(data)), cls)


def _upgraded(saved: Any) -> Any:
    """A saved report of an earlier version with the newer fields: savings had a single unit."""
    found = saved.get("findings") if isinstance(saved, dict) else None
    for finding in found if isinstance(found, list) else ():
        if isinstance(finding, dict) and isinstance(finding.get("saving"), dict):
            finding["saving"].setdefault("unit", "us")
    return saved
