"""Recognises a file's kind from its first bytes, and from its name if those do not suffice."""

from __future__ import annotations

import re
from collections.abc import Callable

from advisor.errors import TraceError
from advisor.files import HEAD_BYTES
from advisor.knowledge import formats
from advisor.sources.opened import Opened

NSYS_REPORTS = (".nsys-rep", ".qdrep")
"""Suffixes of reports that only NVIDIA's nsys reads."""
SQLITE_MAGIC = b"SQLite format 3\0"
NCU_MAGIC = b"NVR\0"
COLUMNS_MAGIC = b"advisor columns\n"
PPROF_HEAD = b"\n\x04\x08\x01\x10\x02\n\x04\x08\x03\x10\x04"
"""JAX writes its two kinds of values first, their texts numbered 1 to 4: allocations/count and space/bytes."""
SNIFF_BYTES = HEAD_BYTES  # every format says what it is in fewer

_NCU_HEADER = rb'^"?(ID|Process ID)"?,.*"?Kernel Name"?'
_XLA_PROCESS = rb'"name"\s*:\s*"/(device:\w+:\d+|host:\w+)[^"]*"'


def is_sqlite(head: bytes) -> bool:
    """Any database: if it is no export, the reader reports its missing tables."""
    return head.startswith(SQLITE_MAGIC)


def is_ncu(head: bytes) -> bool:
    """A report by its first bytes, a CSV page by its header or by what ncu says before it."""
    if head.startswith(NCU_MAGIC):
        return True
    if b"\0" in head:
        return False
    told = head.lstrip(b"\xef\xbb\xbf\r\n ").startswith((b"==PROF==", b"==WARNING=="))
    return told or (b"Kernel Name" in head and re.search(_NCU_HEADER, head, re.MULTILINE) is not None)


def is_jax(head: bytes) -> bool:
    """Planes named as XLA's profiler names them, in protobuf or as processes of a Chrome trace."""
    return b'"process_name"' in head and re.search(_XLA_PROCESS, head) is not None if is_json(head) else is_xplane(head)


def is_memory(head: bytes) -> bool:
    """Any pickle of protocol 2 to 5, or a profile as JAX writes it. If a pickle is no snapshot, the reader reports the missing parts."""
    return (len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5) or head.startswith(PPROF_HEAD)


def is_xplane(head: bytes) -> bool:
    """Whether a file begins like an XSpace: with a plane that has its id, if any, before its name."""
    if not head.startswith(b"\x0a"):
        return False
    # The plane goes on behind what is at hand: only its first fields can be read.
    at = 1 + _varint_bytes(head[1:])
    if head[at : at + 1] == b"\x08":
        at += 1 + _varint_bytes(head[at + 1 :])
    size = head[at + 1] if len(head) > at + 1 else 0
    name = head[at + 2 : at + 2 + size]
    return head[at : at + 1] == b"\x12" and 0 < size < 128 and len(name) == size and bool(re.match(rb"/(device|host):|Task Environment$", name))


def _varint_bytes(data: bytes) -> int:
    return next((i + 1 for i, byte in enumerate(data[:10]) if byte < 128), 10)


def is_json(head: bytes) -> bool:
    """Whether a file may be JSON. `head`: its first uncompressed bytes."""
    text = _text(head)
    # A list is one of events, so objects: `[1, 2, 3]` is none, and a file cut after its first byte tells nothing yet.
    listed = text.startswith(b"[") and text[1:].lstrip()[:1] in (b"", b"{", b"]")
    return (text.startswith(b"{") or listed) and b"\0" not in head


_PROTON_TREE = re.compile(rb'\s*\[\s*\{\s*"(?:children|frame)"\s*:|\x92\x83\xa5frame\x82\xa4name')
_PROTON_TRACE = re.compile(rb'\{"displayTimeUnit":"(?:us|ns)","traceEvents":\[')
_OF_PROTON = (b'"call_stack":["ROOT"', b'{"args":{"name":"Trace"},"name":"process_name"', b'"Finalization Time (ns)"')


def is_proton_tree(head: bytes) -> bool:
    """A tree as Hatchet reads it, in JSON or MessagePack."""
    return _PROTON_TREE.match(head) is not None


def is_proton(head: bytes) -> bool:
    """Output of Triton's Proton: a tree, or a Chrome trace with stacks that begin at its root."""
    return is_proton_tree(head) or (_PROTON_TRACE.match(head) is not None and any(mark in head for mark in _OF_PROTON))


_ROCPROF_JSON = re.compile(rb'\s*\{\s*"rocprofiler-sdk-(?:json-)?tool"')


def is_rocprof(head: bytes) -> bool:
    """JSON of rocprofv3, or a database with a table of rocpd on its first page. (If that page is too small, `nsys` sees it by its tables.)"""
    return _ROCPROF_JSON.match(head) is not None or (is_sqlite(head) and b"rocpd_" in head)


_FLIGHT_JSON = re.compile(
    rb'\s*\{[^{}\[\]]{0,400}"entries"\s*:\s*\[\s*(?:\{\s*"(?:collective_seq_id|duration_ms|frames|record_id|input_dtypes|pg_id)"|\]\s*,\s*"(?:nccl_|pg_))'
)
_FLIGHT_KEYS = (b"pg_config", b"pg_status", b"collective_seq_id")


def is_flight(head: bytes) -> bool:
    """A dump of the flight recorder: a pickle or JSON with its own members."""
    pickled = len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
    return (pickled and sum(key in head for key in _FLIGHT_KEYS) > 1) or _FLIGHT_JSON.match(head) is not None


def is_columns(head: bytes) -> bool:
    """A timeline's tables as `advisor convert` writes them."""
    return head.startswith(COLUMNS_MAGIC)


SOURCES: dict[str, Callable[[bytes], bool]] = {
    "columns": is_columns,
    "rocprof": is_rocprof,
    "nsys": is_sqlite,
    "ncu": is_ncu,
    "jax": is_jax,
    "flight": is_flight,
    "memory": is_memory,
    "proton": is_proton,
    "kineto": is_json,
}
"""Recognition of a file for a package of `advisor.sources` by its first unpacked bytes. Formats with distinct bytes come
before JSON, which could be anything. It is here so that recognition imports no package."""


def source_of(head: bytes) -> str:
    """The package that reads a file which begins so, the first that recognises it; "" if none does."""
    return next((name for name, recognises in SOURCES.items() if recognises(head)), "")


def _text(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


def refused(known: formats.Format, path: str, holds: str = "") -> TraceError:
    """Why a file of a known format is not read, its useful content in `holds`, and the file to give instead."""
    more = f" ({holds})" if holds else ""
    return TraceError(f"{path} is {known.name}, not a trace that advisor reads: {known.why}{more}", known.instead(path))


def refuse_known(opened: Opened) -> None:
    """Raises TraceError for a file that a source accepted, but with content of another format, which is not read."""
    known = formats.of_content(opened.stream.peek(formats.HEAD_BYTES))
    if known and known.read == "no":
        raise refused(known, opened.path)


class NoTrace(TraceError):
    """A file that a source took for its own holds nothing of it. `looked_at` may know it better."""


def looked_at(error: NoTrace, head: bytes, path: str) -> TraceError:
    """The error, or a refusal that names the file's kind. For a file that begins as a trace does, the error is better."""
    known = None if _OF_TRACES.search(head) else formats.of_look(head)
    if known is None:
        return error
    names = formats.members_of(head)
    return refused(known, path, f"members {', '.join(names[:6])}{' and more' if len(names) > 6 else ''}" if names else "")


_OF_TRACES = re.compile(rb'"traceEvents"|"schemaVersion"|"deviceProp|"ph"\s{0,9}:\s{0,9}"')


def refuse_foreign(head: bytes, path: str) -> TraceError:
    """Why a file that no source knows cannot be read, and what to do."""
    if not head:
        return TraceError(f"{path} is empty", "The program was perhaps stopped before the profiler wrote its trace.")
    if not head.strip():
        return TraceError(f"{path} holds nothing but blanks", "Record the trace again.")
    if known := formats.of_head(head, path):
        return refused(known, path, _columns(head) if known.group == "looks" else "")
    what, hint = _described(head, _text(head))
    return TraceError(f"{path} is {what}, not a trace that advisor reads", hint)


def _columns(head: bytes) -> str:
    columns = formats.columns_of(head)
    return f"columns {', '.join(columns[:6])}{' and more' if len(columns) > 6 else ''}" if columns else ""


def _described(head: bytes, text: bytes) -> tuple[str, str]:
    """The likely kind of a file of no known format."""
    if text.startswith(b"[") and b"\0" not in head:
        return "JSON, but a list of values instead of events", "Give the file that the profiler wrote: its list holds objects."
    record = "Give a torch.profiler trace (.json, .json.gz) or an nsys export (.sqlite)."
    if b"\0" in head or sum(byte < 9 for byte in head) > 2:
        return "a binary file of a kind that is not known", record
    return f"text but not JSON (it starts with {text[:24].decode('utf-8', 'replace')!r})", record
