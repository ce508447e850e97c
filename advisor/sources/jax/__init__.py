"""What `jax.profiler` writes: an XPlane (`.xplane.pb`), and a Chrome trace made of it (`.trace.json.gz`, `perfetto_trace.json.gz`).

The XPlane is complete; the Chrome trace is cut at a million events and does not say what device it is.
"""

from __future__ import annotations

import os
from io import BytesIO
from typing import BinaryIO

from advisor.errors import TraceError
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import ReadIssue, Timeline
from advisor.recordings.tpu import TpuProfile
from advisor.sources.jax import chrome, directory, xplane
from advisor.sources.jax.tables import Tables
from advisor.sources.jax.walk import Walk
from advisor.sources.opened import Opened
from advisor.sources.paths import open_binary
from advisor.sources.sniff import is_json
from advisor.sources.stream import Stream

_REPLACED, _CHANCE = "\N{REPLACEMENT CHARACTER}".encode(), 3
"""What represents bytes that are no text; so many of them may are in names."""
AGAIN = "Copy the file again, or record it again."


def record(opened: Opened) -> Recording:
    """The recording of a JAX process. Raises TraceError if it is damaged or holds no work of a device."""
    if not is_json(opened.head):
        return _recording(_xplane(opened, []))
    if whole := directory.whole_profile(opened.path):
        try:
            return _instead(opened, whole)
        except (TraceError, OSError):
            pass  # what was asked for is here
    return _recording(_chrome(opened))


def _recording(part: Timeline | TpuProfile) -> Recording:
    return Recording(part.part_of, part.source.path if isinstance(part, Timeline) else part.path, (part,))


def _instead(opened: Opened, whole: str) -> Recording:
    """The whole profile, which is next to the given file with less data."""
    told = ReadIssue(
        "fuller-file", f"{os.path.basename(whole)} was read in place of {os.path.basename(opened.path)}, which holds less of the same profile", "ok"
    )
    file, size = open_binary(whole)
    with file:
        stream = Stream(file, size, opened.max_bytes)
        return _recording(_xplane(Opened(whole, stream, stream.peek(len(opened.head)), size, opened.max_bytes), [told]))


def _chrome(opened: Opened) -> Timeline | TpuProfile:
    stream, tables = opened.stream, Tables()
    data = stream.read(opened.max_bytes + 1)
    if stream.truncated:
        raise TraceError(f"{opened.path} is cut off: {stream.truncated}", AGAIN)
    planes, spans = chrome.planes(data, tables.texts)
    for plane in planes:
        tables.add(plane)
    of_ops = "which lines of the program its kernels come from" if "GPU" in tables.accelerators else "what its peak rates are"
    lost = f"a Chrome trace says neither which device it was nor {of_ops}"
    issues = [ReadIssue("poorer-format", f"{lost}; the .xplane.pb that it was made of does")]
    if spans >= chrome.MOST_EVENTS:
        detail = f"the exporter keeps {chrome.MOST_EVENTS:,} events, so this trace is cut; the .xplane.pb that it was made of is whole"
        issues.append(ReadIssue("complete-file", detail, cut=True))
    return tables.part(opened.path, stream.total, issues)


def _xplane(opened: Opened, issues: list[ReadIssue]) -> Timeline | TpuProfile:
    tables = Tables()
    stream, again = opened.stream, opened.path
    file: BinaryIO
    if not opened.reopens:
        data = stream.read(opened.max_bytes + 1)
        stream, file = Stream(BytesIO(data), len(data), opened.max_bytes), BytesIO(data)
    else:
        file = open_binary(again)[0]
    try:
        with file:
            heads = xplane.heads(Walk(stream))
            for plane in xplane.planes(Walk(Stream(file, None, opened.max_bytes)), heads, tables.texts):
                tables.add(plane)
            return tables.part(opened.path, stream.total, issues)
    except ValueError as error:
        as_text = "; bytes that no text has were replaced in it, as where a file is copied as text" if opened.head.count(_REPLACED) > _CHANCE else ""
        raise TraceError(f"{opened.path} is a damaged XPlane: {error}{as_text}", AGAIN) from None
