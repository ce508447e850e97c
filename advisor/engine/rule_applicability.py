"""Refuses rules that were requested by name but do not apply to the recording, since silence would look like a good result."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.engine.kinds import ABSTAINS
from advisor.engine.rule import Rule
from advisor.errors import UsageError
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.recordings.recording import Recording
from advisor.recordings.snapshot import MemorySnapshot, SnapshotBeside
from advisor.recordings.timeline import Timeline
from advisor.report.model import Kind
from advisor.views.ranks.job import RankSummaries
from advisor.views.workspace import Workspace, speaks_of

_PARTS: dict[Kind, tuple[type, str]] = {
    "trace": (Timeline, "a trace of one process"),
    "job": (RankSummaries, "the traces of a job's ranks"),
    "kernels": (KernelProfiles, "a report of Nsight Compute"),
    "memory": (MemorySnapshot, "a memory snapshot"),
    "tpu": ABSTAINS["tpu"],
}
"""What rules look at in a recording of each kind, and its name. No rule looks at dumps of collectives; on a TPU those of a timeline abstain."""


def check_fits(recording: Recording, rules: Iterable[Rule]) -> None:
    """Raises UsageError for a rule that applies neither to this recording, nor to its ranks, nor to an attached file."""
    parts = [_PARTS[recording.kind][0]] if recording.kind in _PARTS else []
    parts += [Timeline] if recording.kind == "job" else []
    parts += [MemorySnapshot] if any(isinstance(part, SnapshotBeside) for part in recording.parts) else []
    for rule in rules:
        if Workspace(*recording.parts).can_build(rule.function) or any(speaks_of(rule.function, part) for part in parts):
            continue
        looks_at = [called for kind, (part, called) in _PARTS.items() if kind not in ABSTAINS and speaks_of(rule.function, part)]
        raise UsageError(
            f"the rule {rule.id} does not look at a recording of kind {recording.kind}, as {recording.path} is",
            f"It is for {' or '.join(looks_at)}." if looks_at else "Leave it out.",
        )
