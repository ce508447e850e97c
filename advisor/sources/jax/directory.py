"""A directory of `jax.profiler`: `plugins/profile/DATE/HOST.xplane.pb` below the log's root, a file per host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_WHERE = ("", "*", "profile/*", "plugins/profile/*")
_PROFILES = (".xplane.pb", ".xplane.pb.gz")
_CHROME = ".trace.json.gz"
"""Made of a profile: a run's files only if it holds no profile."""


def newest_run(directory: Path) -> list[str]:
    """The files of a run, one per host: those in the directory itself, else of the newest run below it. Empty without a run."""
    near = nearest_runs(directory)
    return files_of(near[-1]) if near else []


def nearest_runs(directory: Path) -> list[Path]:
    """The candidate runs, the oldest first: the directory itself, else the nearest runs below it. The newest is read.

    Runs are named by their date, as `2026_01_31_12_00_00`, and so the last by name is the newest."""
    return next((found for found in _by_place(directory) if found), [])


def every_run(directory: Path) -> list[Path]:
    """All runs of a directory: itself, then those below it, wherever they may lie."""
    return [run for found in _by_place(directory) for run in found]


def files_of(run: Path) -> list[str]:
    """The files of a run, one per host. Raises PermissionError if the directory is not readable."""
    there = {str(path) for path in run.iterdir() if path.is_file()}
    # A profile and what packed it are one.
    profiles = sorted(name for name in there if name.endswith(_PROFILES) and not (name.endswith(".gz") and name.removesuffix(".gz") in there))
    if profiles or os.path.basename(os.path.dirname(os.path.abspath(run))) != "profile":
        return profiles
    # Only below `profile` is a Chrome trace known to be one of XLA's.
    return sorted(name for name in there if name.endswith(_CHROME))


def _by_place(directory: Path) -> Iterator[list[Path]]:
    for where in _WHERE:
        yield [run for run in (sorted(directory.glob(where)) if where else [directory]) if run.is_dir() and _is_run(run)]


def _is_run(directory: Path) -> bool:
    """Whether a run's files are there. An unreadable directory counts: the error is raised when it is read."""
    try:
        return bool(files_of(directory))
    except PermissionError:
        return True


def whole_profile(trace: str) -> str:
    """The XPlane that a Chrome trace was made from, "" if it is not next to it: both have the host's name."""
    for suffix in (".trace.json.gz", ".trace.json"):
        if trace.endswith(suffix):
            named = [trace.removesuffix(suffix) + other for other in _PROFILES]
            return next((path for path in named if Path(path).is_file()), "")
    return ""
