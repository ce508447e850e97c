"""A timeline's own tables, as `advisor convert` writes them: a fraction of the trace's size, opened without parsing."""

from __future__ import annotations

from pathlib import PurePath

from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import Timeline
from advisor.sources.columns.layout import decode, encode
from advisor.sources.kineto.write import not_held, write
from advisor.sources.opened import Opened

__all__ = ["as_kineto", "encode", "named_as_columns", "record"]

SUFFIX = ".trace.zst"
CHECKED = True
"""Repairs of damaged records and of a device's clock were done before the file was written."""


def named_as_columns(path: PurePath) -> bool:
    """Whether a file is to hold columns, by its name."""
    return path.name.endswith(SUFFIX)


def record(opened: Opened) -> Recording:
    """The timeline that the file holds, which says what recorded it. Raises TraceError if the file is damaged or of a newer version."""
    timeline = _timeline(opened)
    return Recording("trace", opened.path, (replace(timeline, source=replace(timeline.source, path=opened.path)),))


def as_kineto(opened: Opened) -> bytes:
    """The file as Kineto's JSON. Raises TraceError if that cannot hold all of it."""
    timeline = _timeline(opened)
    if timeline.source.format != "kineto" or (lost := not_held(timeline)):
        what = ", ".join(lost) if timeline.source.format == "kineto" else f"what {timeline.source.format} recorded"
        raise TraceError(f"{opened.path} holds {what}, which has no place in Kineto's JSON", "Start from the recording that it was converted from.")
    return write(timeline)


def _timeline(opened: Opened) -> Timeline:
    return decode(opened.stream.read(opened.max_bytes), opened.path, opened.stream.truncated)
