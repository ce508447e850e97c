"""A zip or tar archive with a single recording: the recording's bytes, as if it were a plain file."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, BinaryIO, cast

import msgspec

from advisor.errors import TraceError
from advisor.knowledge import formats
from advisor.report.numbers import counted
from advisor.sources.stream import BOMB_FLOOR, BOMB_RATIO, DEFAULT_MAX_BYTES, Stream

if TYPE_CHECKING:
    import tarfile

_ZIP_MAGIC = b"PK\x03\x04"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257  # POSIX tar

_RECORDING = re.compile(r"\.(?:json|sqlite|pickle|pb|ncu-rep|csv)(?:\.gz|\.zst)?$")
"""Names of recordings: other files in an archive, such as a log, are ignored."""

_MOST_FILES = 1000
"""Greatest number of files in an archive: nobody packs a recording with more."""

_UNKNOWN: tuple[type[Exception], ...] = (NotImplementedError, RuntimeError)
"""What zipfile raises of a method that it does not know, and of a password."""


class Packed(msgspec.Struct, frozen=True):
    """The recording in an archive. size: its bytes unpacked. command: unpacks the archive. told: the ignored files, "" if there are none."""

    file: BinaryIO
    size: int
    command: str
    told: str = ""


def unpacked(file: BinaryIO, path: str, max_bytes: int) -> Packed | None:
    """The recording in an archive; None if the file is none, or cannot be read twice. The file is at its start before and after.

    Raises TraceError if the archive is damaged, holds no recording, or several.
    """
    if not file.seekable():
        return None
    zipped = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
    file.seek(0)
    if zipped:
        return _guarded(_of_zip, file, path, max_bytes)
    tarred = Stream(file).peek(_TAR_MAGIC_AT + len(_TAR_MAGIC)).endswith(_TAR_MAGIC)
    file.seek(0)
    return _guarded(_of_tar, file, path, max_bytes) if tarred else None


def _guarded(read: Callable[[BinaryIO, int], Packed], file: BinaryIO, path: str, max_bytes: int) -> Packed:
    """The result of `read`; libraries' errors for a damaged archive become TraceError."""
    try:
        return read(file, max_bytes)
    except _damaged() as error:
        raise TraceError(f"{path} is a damaged archive: {error}", "Copy it again, or unpack it and give the trace in it.") from None
    except _UNKNOWN as error:
        raise TraceError(f"{path} is an archive that cannot be unpacked here: {error}", "Unpack it, and give the trace in it.") from None


def _damaged() -> tuple[type[Exception], ...]:
    import tarfile
    import zipfile

    return zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError


def _of_zip(file: BinaryIO, max_bytes: int) -> Packed:
    import zipfile

    archive = zipfile.ZipFile(file)
    entries = {entry.filename: entry for entry in archive.infolist()[:_MOST_FILES] if not entry.is_dir()}
    name, told = _single_recording(list(entries), "zip")
    entry = entries[name]
    if entry.file_size > BOMB_FLOOR and entry.file_size > BOMB_RATIO * entry.compress_size and max_bytes <= DEFAULT_MAX_BYTES:
        raise TraceError(
            f"{name} in the archive unpacks to more than {BOMB_RATIO} times its size ({entry.compress_size:,} to {entry.file_size:,} bytes), as no trace does",
            f"It looks like a bomb. If you trust it, raise the limit: --max-gib {DEFAULT_MAX_BYTES / 2**30 + 1:.0f}, or max_bytes above {DEFAULT_MAX_BYTES:,}.",
        )
    return Packed(cast("BinaryIO", _Member(archive.open(entry))), entry.file_size, "unzip", told)


def _of_tar(file: BinaryIO, max_bytes: int) -> Packed:
    """Read twice: only the end shows that nothing else is in it, and compressed data cannot be skipped."""
    found = [member.name for member in _members(_tar(file, max_bytes))]
    file.seek(0)
    name, told = _single_recording(found, "tar")
    archive = _tar(file, max_bytes)
    member = next(member for member in _members(archive) if member.name == name)
    inner = archive.extractfile(member)
    assert inner is not None
    return Packed(cast("BinaryIO", _Member(inner)), member.size, "tar xf", told)


def _tar(file: BinaryIO, max_bytes: int) -> tarfile.TarFile:
    import tarfile

    return tarfile.open(fileobj=cast("BinaryIO", Stream(file, None, max_bytes)), mode="r|")


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The files of an archive, in order; no links, and none with holes, which cannot be read through."""
    for at, member in enumerate(archive):
        if at >= _MOST_FILES:
            return
        if member.isreg() and not member.issparse():
            yield member


def _single_recording(names: Sequence[str], kind: str) -> tuple[str, str]:
    """The recording among an archive's files, and a note on the others. Raises TraceError if there is not exactly a single recording."""
    files = [name for name in names if not _hidden(name)]
    recordings = [name for name in files if _RECORDING.search(name)] if len(files) > 1 else files
    if len(recordings) == 1:
        left = len(files) - 1
        (name,) = recordings
        return (
            name,
            f"{PurePosixPath(name).name} was read of the archive; {counted(left, 'other file')} in it {'was' if left == 1 else 'were'} not" if left else "",
        )
    shown = ", ".join((recordings or files)[:4]) + (" and more" if len(recordings or files) > 4 else "")
    holds = f"{counted(len(recordings), 'recording')} ({shown})" if recordings else f"no recording ({shown or 'it is empty'})"
    if not recordings and (known := formats.of_entries(files)):
        raise TraceError(f"the file is a {kind} archive of {holds}, but {known.name}: {known.why}", known.instead("DIRECTORY"))
    raise TraceError(
        f"the file is a {kind} archive of {holds}",
        "Unpack it, and give a trace, or the directory of a job's traces. (A file of torch.save is a zip archive too, and no trace.)",
    )


def _hidden(name: str) -> bool:
    """Files that operating systems add: `__MACOSX/`, `.DS_Store`, `._trace.json`."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


class _Member(io.RawIOBase):
    """A file of an archive, read from its start; a damaged file cannot be read."""

    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        try:
            return self._inner.read(-1 if size is None else size)
        except (*_damaged(), *_UNKNOWN) as error:
            raise OSError(f"its archive is damaged ({error})") from None
