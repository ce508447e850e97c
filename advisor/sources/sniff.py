"""Tells what a file is from its first bytes, and its name where those do not say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath

from advisor.errors import TraceError

SQLITE_MAGIC = b"SQLite format 3\0"
NCU_MAGIC = b"NVR\0"
COLUMNS_MAGIC = b"advisor columns\n"
PPROF_HEAD = b"\n\x04\x08\x01\x10\x02\n\x04\x08\x03\x10\x04"
"""JAX writes its two kinds of values first, their texts numbered 1 to 4: allocations/count and space/bytes."""
SNIFF_BYTES = 4096  # every format says what it is in fewer

_NCU_HEADER = rb'^"?(ID|Process ID)"?,.*"?Kernel Name"?'
_XLA_PROCESS = rb'"name"\s*:\s*"/(device:\w+:\d+|host:\w+)[^"]*"'

_SNAPSHOT = "Write a memory snapshot with torch.cuda.memory._dump_snapshot('snapshot.pickle') and give that."
_PICKLE = ("no pickle of protocol 2 to 5, as memory snapshots are, whatever its name", _SNAPSHOT)
_MEMORY_VIZ = ("the page that torch.cuda._memory_viz writes", f"Give the snapshot that it was made of. {_SNAPSHOT}")
_ZIP = ("a zip archive", "Unzip it and give the trace in it. (What torch.save writes is a zip archive too, and no trace.)")
_NSYS = ("an Nsight Systems report", "Export it first: nsys export --type sqlite {path}")
_PERFETTO = (
    "a binary Perfetto trace (protobuf)",
    "Convert it with Perfetto's traceconv json, or record with prof.export_chrome_trace('trace.json.gz').",
)
# Of gzip and zstd one layer is unpacked before anybody looks at what the file is.
_PACKED_TWICE = "Unpack it once, with gunzip or zstd -d, and give what comes of that."

_MAGIC = (
    (b"PK\x03\x04", *_ZIP),
    (b"PK\x05\x06", *_ZIP),
    (b"\xfd7zXZ\x00", "an xz archive", "Unpack it first: xz -dk {path}"),
    (b"\x1f\x8b", "packed twice: it unpacks to another gzip file", _PACKED_TWICE),
    (b"\x28\xb5\x2f\xfd", "packed twice: it unpacks to another zstd file", _PACKED_TWICE),
    (b"BZh", "a bzip2 archive", "Unpack it first: bzip2 -dk {path}"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "Unpack it first: 7z x {path}"),
    (b"\xff\xfe", "text in UTF-16", "Save it as UTF-8. (PowerShell's > writes UTF-16.)"),
    (b"\xfe\xff", "text in UTF-16", "Save it as UTF-8. (PowerShell's > writes UTF-16.)"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "Fetch it: git lfs pull"),
)

_SUFFIX = {
    ".nsys-rep": _NSYS,
    ".qdrep": _NSYS,
    ".qdstrm": _NSYS,
    ".pftrace": _PERFETTO,
    ".perfetto-trace": _PERFETTO,
    ".pb": ("a protobuf file that begins with no plane of XLA's profiler", "Give the .xplane.pb as jax.profiler wrote it, or the .trace.json.gz beside it."),
    ".riegeli": ("an archive of JAX's continuous profiling", "Record without it: jax.profiler.trace writes an .xplane.pb."),
    ".pickle": _PICKLE,
    ".pkl": _PICKLE,
    ".pt": _PICKLE,
    ".pth": _PICKLE,
}


def is_sqlite(head: bytes) -> bool:
    """Any database: what it lacks to be an export is said when it is read."""
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
    """Any pickle of protocol 2 to 5 (what it lacks to be a snapshot is said when it is read), or a profile as JAX writes it."""
    return (len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5) or head.startswith(PPROF_HEAD)


def is_xplane(head: bytes) -> bool:
    """Whether a file begins as an XSpace does: with a plane whose id, if any, comes before its name."""
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
    """Whether a file whose uncompressed bytes start with `head` may be JSON."""
    text = _text(head)
    # A list is one of events, so objects: `[1, 2, 3]` is none, and a file cut after its first byte tells nothing yet.
    listed = text.startswith(b"[") and text[1:].lstrip()[:1] in (b"", b"{", b"]")
    return (text.startswith(b"{") or listed) and b"\0" not in head


def is_columns(head: bytes) -> bool:
    """A timeline's tables as `advisor convert` writes them."""
    return head.startswith(COLUMNS_MAGIC)


SOURCES: dict[str, Callable[[bytes], bool]] = {"columns": is_columns, "nsys": is_sqlite, "ncu": is_ncu, "jax": is_jax, "memory": is_memory, "kineto": is_json}
"""What tells from a file's first bytes, unpacked, that it is for one of the packages of `advisor.sources`: those that a few bytes tell
before JSON, which could be anything. It stands here so that no package is imported to tell."""


def source_of(head: bytes) -> str:
    """The package that reads a file which begins so, the first that recognises it; "" where none does."""
    return next((name for name, recognises in SOURCES.items() if recognises(head)), "")


def _text(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


def refuse_foreign(head: bytes, path: str) -> TraceError:
    """Why a file that no source knows cannot be read, and what to do."""
    if not head:
        return TraceError(f"{path} is empty", "The program was perhaps stopped before the profiler wrote its trace.")
    if not head.strip():
        return TraceError(f"{path} holds nothing but blanks", "Record the trace again.")
    what, hint = _identify(head, _text(head), path)
    return TraceError(f"{path} is {what}, not a trace that advisor reads", hint.format(path=path))


def _identify(head: bytes, text: bytes, path: str) -> tuple[str, str]:
    for magic, what, hint in _MAGIC:
        if head.startswith(magic):
            return what, hint
    if head[257:262] == b"ustar":
        return "a tar archive", "Unpack it first: tar xf {path}"
    suffix = PurePath(path.removesuffix(".gz")).suffix.lower()
    if suffix in _SUFFIX:
        return _SUFFIX[suffix]
    if text.startswith(b"<") and b"MemoryViz" in head:
        return _MEMORY_VIZ
    if text.startswith(b"[") and b"\0" not in head:
        return "JSON, but a list of values instead of events", "Give the file that the profiler wrote: its list holds objects."
    if text.startswith(b"<"):
        return "HTML or XML", "A download may have given a login page: download the trace itself."
    record = "Give a torch.profiler trace (.json, .json.gz) or an nsys export (.sqlite)."
    if b"\0" in head or sum(byte < 9 for byte in head) > 2:
        return "a binary file of a kind that is not known", record
    return f"text but not JSON (it starts with {text[:24].decode('utf-8', 'replace')!r})", record
