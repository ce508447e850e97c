"""What `jax.profiler` writes: an XPlane (`.xplane.pb`), and a Chrome trace made of it (`.trace.json.gz`, `perfetto_trace.json.gz`).

The XPlane is complete; the Chrome trace is cut at a million events and does not say what device it is.
"""

from __future__ import annotations

from io import BytesIO
from typing import BinaryIO

from advisor.errors import TraceError
from advisor.recording import Recording
from advisor.sources.jax import chrome, xplane
from advisor.sources.jax.tables import Tables
from advisor.sources.jax.walk import Walk
from advisor.sources.opened import STANDARD_INPUT, Opened
from advisor.sources.paths import open_binary
from advisor.sources.sniff import is_json
from advisor.sources.stream import Stream
from advisor.timeline import ReadIssue, Timeline

AGAIN = "Copy the file again, or record it again."


def recognises(opened: Opened) -> bool:
    """Planes named as XLA's profiler names them, in protobuf or as processes of a Chrome trace."""
    return chrome.recognises(opened.head) if is_json(opened.head) else xplane.recognises(opened.head)


def record(opened: Opened) -> Recording:
    """The recording of one process of JAX. Raises TraceError where it is damaged or holds no GPU work."""
    return Recording("trace", opened.path, (_chrome(opened) if is_json(opened.head) else _xplane(opened),))


def _chrome(opened: Opened) -> Timeline:
    stream, tables = opened.stream, Tables()
    data = stream.read(opened.max_bytes + 1)
    if stream.truncated:
        raise TraceError(f"{opened.path} is cut off: {stream.truncated}", AGAIN)
    planes, spans = chrome.planes(data, tables.texts)
    for plane in planes:
        tables.add(plane)
    lost = "a Chrome trace says neither which device it was nor which lines of the program its kernels come from"
    issues = [ReadIssue("poorer-format", f"{lost}; the .xplane.pb beside it does")]
    if spans >= chrome.MOST_EVENTS:
        detail = f"the exporter keeps {chrome.MOST_EVENTS:,} events, so this trace is cut; the .xplane.pb beside it is whole"
        issues.append(ReadIssue("complete-file", detail))
    return tables.timeline(opened.path, stream.total, issues)


def _xplane(opened: Opened) -> Timeline:
    tables = Tables()
    stream, again = opened.stream, opened.path
    file: BinaryIO
    if again == STANDARD_INPUT:
        data = stream.read(opened.max_bytes + 1)
        stream, file = Stream(BytesIO(data), len(data), opened.max_bytes), BytesIO(data)
    else:
        file = open_binary(again)[0]
    try:
        with file:
            heads = xplane.heads(Walk(stream))
            for plane in xplane.planes(Walk(Stream(file, None, opened.max_bytes)), heads, tables.texts):
                tables.add(plane)
            return tables.timeline(opened.path, stream.total, [])
    except ValueError as error:
        raise TraceError(f"{opened.path} is a damaged XPlane: {error}", AGAIN) from None
