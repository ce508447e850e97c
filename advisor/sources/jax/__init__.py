"""What `jax.profiler` writes: an XPlane (`.xplane.pb`), and a Chrome trace made of it (`.trace.json.gz`, `perfetto_trace.json.gz`).

The XPlane is complete; the Chrome trace is cut at a million events and does not say what device it is.
"""

from __future__ import annotations

from advisor.errors import TraceError
from advisor.recording import Recording
from advisor.sources.jax import chrome, xplane
from advisor.sources.jax.tables import Tables
from advisor.sources.opened import Opened
from advisor.sources.sniff import is_json
from advisor.timeline import ReadIssue, Timeline

AGAIN = "Copy the file again, or record it again."


def recognises(opened: Opened) -> bool:
    """Planes named as XLA's profiler names them, in protobuf or as processes of a Chrome trace."""
    return chrome.recognises(opened.head) if is_json(opened.head) else xplane.recognises(opened.head)


def record(opened: Opened) -> Recording:
    """The recording of one process of JAX. Raises TraceError where it is damaged or holds no GPU work."""
    return Recording("trace", opened.path, (_read(opened),))


def _read(opened: Opened) -> Timeline:
    stream, tables = opened.stream, Tables()
    data = stream.read(opened.max_bytes + 1)
    issues: list[ReadIssue] = []
    if stream.truncated:
        raise TraceError(f"{opened.path} is cut off: {stream.truncated}", AGAIN)
    if is_json(opened.head):
        planes, spans = chrome.planes(data)
        for plane in planes:
            tables.add(plane)
        if spans >= chrome.MOST_EVENTS:
            detail = f"the exporter keeps {chrome.MOST_EVENTS:,} events, so this trace is cut; the .xplane.pb beside it is whole"
            issues.append(ReadIssue("complete-file", detail))
    else:
        try:
            for plane in xplane.planes(memoryview(data)):
                tables.add(plane)
        except ValueError as error:
            raise TraceError(f"{opened.path} is a damaged XPlane: {error}", AGAIN) from None
    return tables.timeline(opened.path, stream.total, issues)
