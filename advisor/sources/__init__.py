"""Readers turn a file into a Timeline. `load` is the one place where paths are opened."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

from advisor.errors import TraceError
from advisor.sources import kineto, nsys
from advisor.sources.sniff import SNIFF_BYTES, SQLITE_MAGIC, refuse_foreign
from advisor.sources.stream import DEFAULT_MAX_BYTES, Progress, Stream
from advisor.timeline import Timeline

__all__ = ["DEFAULT_MAX_BYTES", "STDIN", "load"]

STDIN = "-"


def load(
    path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES, progress: Progress | None = None, processes: int | None = None
) -> Timeline:
    """Read the trace at `path`: a file, a TensorBoard log directory with one trace in it, or "-" for standard input.

    What a file is, its content says, not its suffix. Files that hold more than `max_bytes` uncompressed are refused.
    `progress(done, size)` is called with bytes of the file as they are read; size is None where it is not known.
    `processes`: 1 or 2; a large Kineto trace is read by two where there are two cores. The timeline is the same.
    Raises TraceError where the file cannot be read, is no trace or holds nothing to analyse.
    """
    path = os.fspath(path)
    processes = processes or _cores()
    if path == STDIN:
        return _load_file(sys.stdin.buffer, "standard input", None, max_bytes, progress, processes)
    try:
        if os.path.isdir(path):
            path = str(_only_trace(Path(path)))
        with open(path, "rb") as file:
            return _load_file(file, path, os.fstat(file.fileno()).st_size, max_bytes, progress, processes)
    except FileNotFoundError:
        raise TraceError(f"there is no file {path}", "Check the path; quote it if the shell may split it.") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be opened: {error.strerror or error}", "Check its permissions.") from None


def _cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load_file(
    file: BinaryIO, path: str, size: int | None, max_bytes: int, progress: Progress | None, processes: int
) -> Timeline:
    stream = Stream(file, size or None, max_bytes, progress)
    head = stream.peek(SNIFF_BYTES)
    if head.startswith(SQLITE_MAGIC):
        if path == "standard input":
            raise TraceError("an nsys export cannot be read from standard input", "Give the path of the .sqlite file.")
        _check_export(path, stream.compressed, size or 0, max_bytes)
        return nsys.read(path)
    if stream.truncated and not head:
        raise TraceError(f"{path} cannot be unpacked: {stream.truncated}", "Copy or record the file again.")
    refuse_foreign(head, path)
    return kineto.read(stream, path, processes=processes)


def _check_export(path: str, compressed: bool, size: int, max_bytes: int) -> None:
    """Refuse a database that SQLite cannot open where it lies, or that is larger than the limit."""
    if compressed:
        raise TraceError(f"{path} is a compressed nsys export, which SQLite cannot open", f"Unpack it first: gunzip -k {path}")
    if size > max_bytes:
        raise TraceError(
            f"{path} holds {size:,} bytes, more than {max_bytes:,}, the limit",
            f"If you trust it, raise the limit above that (--max-gib on the command line, max_bytes in Python, now {max_bytes:,}).",
        )


def _only_trace(directory: Path) -> Path:
    """The one trace in a directory, by the names that torch.profiler.tensorboard_trace_handler gives."""
    names = sorted(entry.name for entry in directory.iterdir() if entry.is_file())
    traces = [name for name in names if name.endswith((".pt.trace.json", ".pt.trace.json.gz"))]
    traces = traces or [name for name in names if name.endswith((".json", ".json.gz"))]
    if not traces:
        raise TraceError(
            f"the directory {directory} holds no trace (*.pt.trace.json, *.json, either with .gz)",
            "Give the path of the trace itself.",
        )
    if len(traces) > 1:
        shown = ", ".join(traces[:8]) + (f" and {len(traces) - 8} more" if len(traces) > 8 else "")
        raise TraceError(
            f"the directory {directory} holds {len(traces)} traces: {shown}", "Give one of them: one rank at a time."
        )
    return directory / traces[0]
