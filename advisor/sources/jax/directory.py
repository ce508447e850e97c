"""A directory that `jax.profiler` wrote: `plugins/profile/DATE/HOST.xplane.pb` below the log's root, one file a host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_WHERE = ("", "*", "profile/*", "plugins/profile/*")
_PROFILES = (".xplane.pb", ".xplane.pb.gz")
_CHROME = ".trace.json.gz"
"""Made of a profile: a run's files only if it holds no profile."""


def newest_run(directory: Path) -> list[str]:
    """The files of a run, one a host: those in the directory itself, else of the newest run below it. None of them if it holds no run."""
    near = nearest_runs(directory)
    return files_of(near[-1]) if near else []


def nearest_runs(directory: Path) -> list[Path]:
    """The runs of which the newest is read, the oldest first: the directory itself, else those nearest below it.

    Runs are named by their date, as `2026_01_31_12_00_00`, and so the last by name is the newest.
    """
    return next((found for found in _by_place(directory) if found), [])


def every_run(directory: Path) -> list[Path]:
    """All runs of a directory: itself, then those below it, wherever they may lie."""
    return [run for found in _by_place(directory) for run in found]


def files_of(run: Path) -> list[str]:
    """The files of a run, one a host. Raises PermissionError if it may not be looked into."""
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
    """Whether a run's files lie there. One that may not be looked into counts: only who reads it has to be told so."""
    try:
        return bool(files_of(directory))
    except PermissionError:
        return True


def whole_profile(trace: str) -> str:
    """The XPlane of which a Chrome trace was made, "" if it does not stand next to it: both bear the host's name."""
    for suffix in (".trace.json.gz", ".trace.json"):
        if trace.endswith(suffix):
            named = [trace.removesuffix(suffix) + other for other in _PROFILES]
            return next((path for path in named if Path(path).is_file()), "")
    return ""
