"""Makes a recording's names safe to show. Secrets are masked as it is read, so that no report, comparison, picture or message can show
them. The longest names are clipped, since every rule looks through every name.

A secret may be a launch command in a thread's name, or a token in a range: its author did not expect readers."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from advisor.knowledge.secrets import masked, masked_each, shown
from advisor.knowledge.structs import replace
from advisor.recordings.columns import Categorical, Table
from advisor.recordings.flight import FlightRecords
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.recordings.recording import Recording
from advisor.recordings.snapshot import MemorySnapshot
from advisor.recordings.timeline import TABLES, Timeline
from advisor.recordings.tpu import TpuProfile
from advisor.sources.ranks import JobTraces

T = TypeVar("T")


LONGEST_NAME = 10_000
"""Characters. The longest that was ever met has 5,133; looking through a megabyte takes a second."""


def without_secrets(recording: Recording) -> Recording:
    """The recording with what looks like a secret in its names as `[secret]`, unless the user wants to see it, and the longest clipped."""
    return replace(recording, parts=tuple(_part(part) for part in recording.parts))


def _fit(text: str) -> str:
    return text if shown() else masked(text)


def _name(text: str) -> str:
    return _fit(_clipped(text))


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"


def _part(part: T) -> T:
    made: object = part
    if isinstance(part, Timeline):
        made = _timeline(part)
    elif isinstance(part, KernelProfiles):
        made = replace(part, kernels=tuple(replace(k, name=_name(k.name)) for k in part.kernels), devices={i: _fit(n) for i, n in part.devices.items()})
    elif isinstance(part, MemorySnapshot):
        stacks = tuple(tuple(frame._replace(name=_name(frame.name), file=_name(frame.file)) for frame in stack) for stack in part.stacks)
        made = replace(part, stacks=stacks, marks=tuple(mark._replace(name=_name(mark.name)) for mark in part.marks))
    elif isinstance(part, FlightRecords):
        ranks = tuple(
            replace(
                one,
                label=_fit(one.label),
                calls=tuple(call._replace(name=_name(call.name), line=_fit(call.line)) for call in one.calls),
                descriptions={group: _fit(text) for group, text in one.descriptions.items()},
            )
            for one in part.ranks
        )
        made = replace(part, ranks=ranks)
    elif isinstance(part, TpuProfile):
        ops = tuple(op._replace(name=_name(op.name), category=_fit(op.category), scope=_fit(op.scope), source=_fit(op.source)) for op in part.ops)
        cores = tuple(replace(core, name=_fit(core.name)) for core in part.cores)
        made = replace(part, ops=ops, cores=cores, programs=tuple(_fit(name) for name in part.programs))
    elif isinstance(part, JobTraces):
        made = replace(part, traces=tuple(replace(t, timeline=t.timeline and _timeline(t.timeline)) for t in part.traces))
    return made  # type: ignore[return-value]


def _timeline(timeline: Timeline) -> Timeline:
    tables = {name: _table(name, getattr(timeline, name)) for name in TABLES}
    devices = tuple(replace(device, name=_name(device.name)) for device in timeline.devices)
    metadata = {key: _fit(value) if isinstance(value, str) else value for key, value in timeline.source.metadata.items()}
    changed: dict[str, Any] = {name: table for name, table in tables.items() if table is not getattr(timeline, name)}
    if not changed and devices == timeline.devices and metadata == timeline.source.metadata:
        return timeline
    return replace(timeline, devices=devices, source=replace(timeline.source, metadata=metadata), **changed)


def _table(name: str, frame: Table) -> Table:
    """The table, the same object if nothing in it changes: each distinct text is checked once."""
    changed = {}
    for column, dtype in TABLES[name].items():
        if dtype != "str":
            continue
        values = frame[column]
        recorded = values.categories.tolist()
        texts = [_clipped(text) for text in recorded] if column == "name" else recorded
        texts = texts if shown() else masked_each(texts)
        if texts != recorded:
            distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
            renumbered = np.array([*(distinct[text] for text in texts), -1], np.int32)
            changed[column] = Categorical(renumbered[values.codes], categories=list(distinct))
    return frame.with_columns(**changed) if changed else frame
