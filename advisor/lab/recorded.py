"""Recordings on disk: the files of a recording's directory, how it replaces an earlier recording, and recordings of several processes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import PART

FILE = "recording.json"
TRACES = ("light.json.gz", "deep.json.gz", "light.xplane.pb")
CAPTURES = ("nsys.nsys-rep", "nsys.sqlite")
"""What Nsight Systems writes next to it."""
MANIFEST = "manifest.json"
"""Next to the directories of several processes: which each is."""
VERSION = 1  # of the manifest

_SEVERAL = ("rank[0-9]*", "process[0-9]*")
"""Directories of a single process: of a job's ranks, and of processes that are no ranks."""
_OF_RECORDINGS = b'"unprofiled_step_us"'
_OF_MANIFESTS = b'{\n "version": 1,\n "recorded": "'


class Part:
    """A directory for unfinished files, which no other process knows. It holds a lock as long as the process lives. So the next process that records
    there removes the files of a killed process."""

    def __init__(self, directory: Path) -> None:
        self.path = new_folder(directory / f"{PART}{os.getpid()}")
        self._handle = os.open(self.path, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks: it stays
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Take it away with all that is in it."""
        with suppress(OSError):  # a program that becomes a daemon closes all handles, and its own may have this number now
            if os.path.samestat(os.fstat(self._handle), os.stat(self.path)):
                os.close(self._handle)
        shutil.rmtree(self.path, ignore_errors=True)


def new_folder(path: Path) -> Path:
    """Make a directory of that name, with a number if the name is taken."""
    for count in range(10_000):
        folder = path.with_name(f"{path.name}-{count}") if count else path
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise UsageError(f"{path.parent} is full of unfinished recordings", "Give another directory.")


def _remove_left(directory: Path) -> None:
    """What killed processes have left unfinished."""
    for part in directory.glob(f"{PART}*/"):
        with suppress(OSError):
            handle = os.open(part, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(part)
            finally:
                os.close(handle)


def prepare(directory: Path) -> None:
    """Make the directory; an earlier recording in it stays until another takes its place. Raises UsageError if files there are none of ours."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file", "Give the path of a directory.")
    directory.mkdir(parents=True, exist_ok=True)
    captures = [directory / name for name in CAPTURES if (directory / name).exists()]
    if captures and not recordings(directory):
        raise UsageError(f"{captures[0]} is no recording of advisor's", "Give another directory.")
    for folder in (directory, *_folders(directory)):
        present = [folder / name for name in TRACES if (folder / name).exists()]
        if present and not (folder / FILE).exists():
            raise UsageError(f"{present[0]} is no recording of advisor's", "Give another directory.")
        if (folder / FILE).exists() and _OF_RECORDINGS not in (folder / FILE).read_bytes()[:4096]:
            raise UsageError(f"{folder / FILE} was not written by advisor", "Give another directory.")
    if (directory / MANIFEST).exists() and not (directory / MANIFEST).read_bytes().startswith(_OF_MANIFESTS):
        raise UsageError(f"{directory / MANIFEST} was not written by advisor", "Give another directory.")
    _remove_left(directory)


def recordings(directory: Path) -> dict[Path, tuple[int, int]]:
    """The file of the recording in a directory and those of its processes, each with a mark that changes when it is written again."""
    files = [path for path in (directory / FILE, *(folder / FILE for folder in _folders(directory))) if path.exists()]
    return {path: (status.st_ino, status.st_mtime_ns) for path, status in zip(files, map(Path.stat, files), strict=True)}


def said(path: Path) -> dict[str, Any]:
    """The content of a recording's file; {} if it cannot be read."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def holds_traces(saved: Mapping[str, Any]) -> bool:
    """Whether a recording has a trace, and not times alone."""
    return any(name in saved for name in ("light", "deep", "nsys"))


def write(path: Path, saved: Mapping[str, Any]) -> None:
    """Write a JSON file, replacing a file of that name: whole or not at all."""
    part = path.with_name(f"{PART}{path.name}")
    part.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def place(parts: Mapping[str, Path], directory: Path, stale: Sequence[Path]) -> None:
    """Put recordings in their final places: each by the name of its directory in `directory`, "" for `directory` itself. `stale` has the
    file of each earlier recording to remove. Nothing is removed before all its replacements exist."""
    with _directory_lock(directory):
        for path in stale:
            clear(path.parent)
        for name, part in parts.items():
            target = directory / name
            target.mkdir(exist_ok=True)
            clear(target)
            for file in (*CAPTURES, *TRACES, FILE):  # the last says what there is
                if (part / file).exists():
                    (part / file).replace(target / file)
        for path in stale:
            if path.parent != directory:
                remove_empty(path.parent)
        _write_manifest(directory)


def _write_manifest(directory: Path) -> None:
    """The recorded processes, if there are several. Machines of a job add theirs in turn."""
    rows = [(folder, said(folder / FILE)) for folder in _folders(directory) if (folder / FILE).exists()]
    if len(rows) < 2:
        (directory / MANIFEST).unlink(missing_ok=True)
        return
    ranks = [saved["rank"] for _, saved in rows if saved.get("world_size", 1) > 1]
    about = [
        {"folder": folder.name, **{name: saved[name] for name in ("rank", "world_size", "steps", "light", "deep") if name in saved}} for folder, saved in rows
    ]
    write(directory / MANIFEST, {"version": VERSION, "recorded": "job" if len(ranks) > 1 else "processes", "processes": about})


def clear(folder: Path) -> None:
    """Take a recording that `prepare` has seen out of its folder."""
    for name in (FILE, *TRACES, *CAPTURES):
        (folder / name).unlink(missing_ok=True)


def remove_empty(directory: Path) -> None:
    """Take away a directory that was made for a recording that did not come about, and those of its processes."""
    for folder in (*_folders(directory), directory):
        with suppress(OSError):  # it holds something
            folder.rmdir()


def _folders(directory: Path) -> Iterator[Path]:
    """Directories of single processes, in their order."""
    found = (folder for pattern in _SEVERAL for folder in directory.glob(f"{pattern}/"))
    return iter(sorted(found, key=lambda folder: (not folder.name.startswith("rank"), len(folder.name), folder.name)))


@contextmanager
def _directory_lock(directory: Path) -> Iterator[None]:
    """While no other process puts a recording there, as far as the file system shows."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
