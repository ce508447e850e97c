"""Locations of traces: files, directories and patterns here, and all stores that fsspec reaches (`s3://`, `gs://`, `abfs://` …)."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from advisor.errors import TraceError, UsageError

INSTALL = "Install the extra `fleet` with advisor (pip install '.[fleet]' in its checkout), and the package of the store, as s3fs or gcsfs."


def path_of(given: object) -> str:
    """A path as text. Raises UsageError for other objects, such as several paths or a recording."""
    if isinstance(given, (str, os.PathLike)) and isinstance(path := os.fspath(given), str):
        return path
    raise UsageError(f"{given!r} is no path", "Give the path of a trace, as text or pathlib.Path; for a job, the directory of its ranks.")


def is_remote(path: str) -> bool:
    """Whether a path is a URL of a store."""
    return "://" in path


def is_pattern(path: str) -> bool:
    """Whether a path names several files by wildcards."""
    return any(mark in path for mark in "*?[") and not (os.path.exists(path) and not is_remote(path))


def is_directory(path: str) -> bool:
    if not is_remote(path):
        return os.path.isdir(path)
    with _reaching(path):
        files, inner = _store(path)
        return bool(files.isdir(inner))


def names_in(path: str) -> list[str]:
    """Paths of the files in a directory, or that a pattern names; sorted."""
    if is_remote(path):
        scheme = path.split("://", 1)[0]
        with _reaching(path):
            files, inner = _store(path)
            found = files.glob(inner) if is_pattern(path) else [e["name"] for e in files.ls(inner, detail=True) if e["type"] == "file"]
        return sorted(f"{scheme}://{name}" for name in found)
    if is_pattern(path):
        return sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
    with os.scandir(path) as entries:
        return sorted(entry.path for entry in entries if entry.is_file())


def directories_in(path: str) -> list[str]:
    """Paths of the directories that a pattern matches, without any file in them; sorted. None if it is no pattern."""
    if not is_pattern(path):
        return []
    if is_remote(path):
        with _reaching(path):
            files, inner = _store(path)
            found = {f"{path.split('://', 1)[0]}://{name}": about["type"] == "directory" for name, about in files.glob(inner, detail=True).items()}
    else:
        found = {os.path.normpath(name): os.path.isdir(name) for name in glob.glob(path, recursive=True)}
    entered = {name.rpartition("/")[0] for name in found}
    return sorted(name for name, is_one in found.items() if is_one and name not in entered)


def open_binary(path: str) -> tuple[BinaryIO, int]:
    """The file and its size, 0 if that is not known. Raises TraceError if it cannot be opened."""
    if not is_remote(path):
        file = open(path, "rb")  # noqa: SIM115  the caller closes it
        return file, os.fstat(file.fileno()).st_size
    with _reaching(path):
        files, inner = _store(path)
        return cast("BinaryIO", _Reached(path, files.open(inner, "rb"))), int(files.size(inner) or 0)


def size_of(path: str) -> int:
    """Bytes of a file of this machine, or of the files in a directory; 0 if that is not known."""
    try:
        if is_remote(path):
            return 0
        return sum(os.stat(name).st_size for name in names_in(path)) if os.path.isdir(path) else os.stat(path).st_size
    except OSError:
        return 0


def fingerprint(path: str) -> str:
    """A value that changes with a file's content: its size and time, or its store's version; "" if nothing is known."""
    try:
        if is_remote(path):
            files, inner = _store(path)
            return str(files.ukey(inner))
        about = os.stat(path)
        return f"{about.st_size}:{about.st_mtime_ns}"
    except OSError:
        return ""


class _Reached:
    """A file of a store. Errors while reading are TraceErrors too: a store may fail, break off, or hold another file by now."""

    def __init__(self, path: str, file: Any) -> None:
        self._path, self._file = path, file

    def read(self, n: int = -1) -> bytes:
        with _reaching(self._path, "read", "Try again; a file that changes while it is read must be whole first."):
            return cast("bytes", self._file.read(n))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Reached:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextmanager
def _reaching(path: str, what: str = "opened", hint: str = "Check the address and the credentials of the store.") -> Iterator[None]:
    """Errors of a store as TraceError: each store's library has its own, and not all of them are OSErrors."""
    try:
        yield
    except TraceError:
        raise
    except FileNotFoundError:
        raise TraceError(f"there is no file {path}", "Check the path.") from None
    except Exception as error:
        raise TraceError(f"{path} cannot be {what}: {error or type(error).__name__}", hint) from error


def _store(path: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise TraceError(f"{path} is in a store, which needs fsspec", INSTALL) from None
    try:
        return fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise TraceError(f"{path} cannot be reached: {error}", INSTALL) from None
