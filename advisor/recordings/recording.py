"""What one run left behind, whatever recorded it: one of five kinds, and the parts that views are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from advisor.errors import UsageError
from advisor.recordings.captures import CapturePart
from advisor.recordings.compile_log import CompileLog, CompileLogs
from advisor.recordings.served_load import LoadBeside
from advisor.recordings.snapshot import MemorySnapshot, SnapshotBeside
from advisor.report.model import Kind

Progress = Callable[[int, int | None], None]
"""Called with the bytes that were read so far, and how many there are, None if that is not known."""


class Recording(msgspec.Struct, frozen=True):
    """kind: what it is, and so which rules can speak of it. parts: one of each type, as a `Timeline`, each saying what it is `part_of`; a view that names such
    a type in the annotations of its `build` is made of it, and a rule runs where all that its views come from is here."""

    kind: Kind
    path: str
    parts: tuple[object, ...]


def with_memory(recording: Recording, memory: Recording) -> Recording:
    """A timeline with a memory snapshot of the same program. Raises UsageError if they are not that."""
    snapshot = next((part for part in memory.parts if isinstance(part, MemorySnapshot)), None)
    if snapshot is None:
        raise UsageError(f"{memory.path} is no memory snapshot but a recording of kind {memory.kind}", "Give with --memory a snapshot of the same program.")
    if recording.kind != "trace":
        raise UsageError(
            f"{recording.path} is no trace of a single process but a recording of kind {recording.kind}", "Leave out --memory, which goes with a trace."
        )
    return Recording(recording.kind, recording.path, (*recording.parts, SnapshotBeside(snapshot)))


def with_kernels(recording: Recording, kernels: Recording) -> Recording:
    """A timeline, or a job's, with the kernels of the same program that were measured one by one. Raises UsageError if they are not that."""
    if kernels.kind != "kernels":
        told = f"{kernels.path} is no report of Nsight Compute but a recording of kind {kernels.kind}"
        raise UsageError(told, "Give with --kernels a report of Nsight Compute of the same program.")
    if recording.kind not in ("trace", "job"):
        raise UsageError(f"{recording.path} is no trace but a recording of kind {recording.kind}", "Leave out --kernels, which goes with a trace or a job.")
    return Recording(recording.kind, recording.path, (*recording.parts, *kernels.parts))


def with_load(recording: Recording, load: LoadBeside) -> Recording:
    """A timeline, or a job's, with what clients or counters measured of its server. Raises UsageError if it is neither."""
    if recording.kind not in ("trace", "job"):
        raise UsageError(f"{recording.path} is no trace but a recording of kind {recording.kind}", "Leave out --serving, which goes with a trace or a job.")
    return Recording(recording.kind, recording.path, (*recording.parts, load))


def with_captures(recording: Recording, *captures: CapturePart) -> Recording:
    """A timeline with records of its graphs' captures; they replace those of the same type. Raises UsageError if it is none."""
    if recording.kind != "trace":
        raise UsageError(
            f"{recording.path} is no trace of a single process but a recording of kind {recording.kind}",
            "Leave out --capture, which goes with a trace or a job.",
        )
    return Recording(recording.kind, recording.path, (*(part for part in recording.parts if type(part) not in map(type, captures)), *captures))


def with_compile_logs(recording: Recording, logs: Sequence[CompileLog]) -> Recording:
    """A timeline with what torch.compile logged of the same program. Raises UsageError if it is none."""
    if recording.kind != "trace":
        raise UsageError(
            f"{recording.path} is no trace of a single process but a recording of kind {recording.kind}",
            "Leave out --compile-log, or give a single rank's trace.",
        )
    return Recording(recording.kind, recording.path, (*recording.parts, CompileLogs(tuple(logs))))
