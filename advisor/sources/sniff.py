"""Tells what a file is from its first bytes, and its name where those do not say."""

from __future__ import annotations

from pathlib import PurePath

from advisor.errors import TraceError

SQLITE_MAGIC = b"SQLite format 3\0"
SNIFF_BYTES = 4096

_SNAPSHOT = "Write a memory snapshot with torch.cuda.memory._dump_snapshot('snapshot.pickle') and give that."
_PICKLE = ("no pickle of protocol 2 to 5, as memory snapshots are, whatever its name", _SNAPSHOT)
_MEMORY_VIZ = ("the page that torch.cuda._memory_viz writes", f"Give the snapshot that it was made of. {_SNAPSHOT}")
_ZIP = ("a zip archive", "Unzip it and give the trace in it. (What torch.save writes is a zip archive too, and no trace.)")
_NSYS = ("an Nsight Systems report", "Export it first: nsys export --type sqlite {path}")
_PERFETTO = (
    "a binary Perfetto trace (protobuf)",
    "Convert it with Perfetto's traceconv json, or record with prof.export_chrome_trace('trace.json.gz').",
)

_MAGIC = (
    (b"PK\x03\x04", *_ZIP),
    (b"PK\x05\x06", *_ZIP),
    (b"\xfd7zXZ\x00", "an xz archive", "Unpack it first: xz -dk {path}"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "Unpack it first: zstd -d {path}"),
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


def is_json(head: bytes) -> bool:
    """Whether a file whose uncompressed bytes start with `head` may be JSON."""
    text = _text(head)
    # A list is one of events, so objects: `[1, 2, 3]` is none, and a file cut after its first byte tells nothing yet.
    listed = text.startswith(b"[") and text[1:].lstrip()[:1] in (b"", b"{", b"]")
    return (text.startswith(b"{") or listed) and b"\0" not in head


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
