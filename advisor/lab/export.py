"""Writes a profiler's trace with measurements made without it, and hides torch's work for that."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OutputError, UsageError
from ..files import PART

if TYPE_CHECKING:
    from torch.profiler import profile

METADATA_KEY = "advisor_recording"
"""The top-level member of a trace with the measurements made without the profiler."""


def export(profiler: profile, path: Path, measured: dict[str, Any]) -> None:
    """Write a trace, compressed, with the measurements as its first member: whole or not at all."""
    # Two processes that write into one directory do not know of each other.
    plain, packed = (path.with_name(f"{PART}{os.getpid()}-{name}") for name in ("trace.json", path.name))
    try:
        profiler.export_chrome_trace(str(plain))
        # The level at which a trace takes a second to pack instead of four, and 10 % more room.
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
            if not _is_whole(source.seek(0, os.SEEK_END), source):
                raise OutputError(f"{plain} was cut off as torch.profiler wrote it", "Make room there, or give another directory.")
            while (head := source.read(1)).isspace():
                pass
            if head != b"{":
                raise UsageError("torch.profiler wrote no JSON object", "Record with another version of torch.")
            target.write(b"{" + json.dumps({METADATA_KEY: measured}).encode()[1:-1] + b",")
            shutil.copyfileobj(source, target, 1 << 20)
        packed.replace(path)
    finally:
        for left in (plain, packed):
            left.unlink(missing_ok=True)


def _is_whole(size: int, source: Any) -> bool:
    """Whether a JSON object ends at the end of the file: its writer does not report a full disk."""
    source.seek(max(size - 64, 0))
    whole = bool(source.read().rstrip().endswith(b"}"))
    source.seek(0)
    return whole


_ERRORS_ONLY = 2
"""Of c10's logging: 0 informs, 1 warns."""


@contextmanager
def unseen(settings: Mapping[str, str], memory: bool = False) -> Iterator[None]:
    """While a profiler runs: settings that its C++ reads from the environment, which `os.environ` does not show and a program's own override.

    It writes lines of its own to standard error, which are no output of the program's. With `memory` it also warns of every block that was allocated before.
    If it records stacks, it ends the thread's profile function, which is set again afterwards.
    """
    hook = sys.getprofile()
    set_here = {name: value for name, value in {"KINETO_LOG_LEVEL": "99", **settings}.items() if name not in os.environ}
    for name, value in set_here.items():
        os.putenv(name, value)
    level = _log_level() if memory else None
    before = level.value if level is not None else 0
    try:
        if level is not None:
            level.value = max(before, _ERRORS_ONLY)
        yield
    finally:
        if hook is not None and sys.getprofile() is None and callable(hook):  # cProfile's cannot be set from Python
            sys.setprofile(hook)
        if level is not None:
            level.value = before
        for name in set_here:
            if name in os.environ:  # the program, or torch, has set it meanwhile
                os.putenv(name, os.environ[name])
            else:
                os.unsetenv(name)


def _log_level() -> ctypes.c_int | None:
    """The least level that torch's C++ logs, if it can be set."""
    with suppress(OSError, ValueError):
        return ctypes.c_int.in_dll(ctypes.CDLL("libc10.so"), "FLAGS_caffe2_log_level")
    return None
