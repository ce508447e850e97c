"""A directory that `jax.profiler` wrote: `plugins/profile/DATE/HOST.xplane.pb` below the log's root, one file a host."""

from __future__ import annotations

from pathlib import Path

_WHERE = ("", "*", "profile/*", "plugins/profile/*")
_SUFFIXES = (".xplane.pb", ".xplane.pb.gz", ".trace.json.gz")
"""The first of these that a run has are its files: the others are made of them."""


def newest_run(directory: Path) -> list[str]:
    """The files of a run, one a host: those in the directory itself, else of the newest run below it. None of them where it holds no run."""
    found = runs(directory)
    return found[-1] if found else []


def runs(directory: Path) -> list[list[str]]:
    """The files of each run, one a host, the oldest run first: of the directory itself, else of those below it.

    Runs are named by their date, as `2026_01_31_12_00_00`, and so the last by name is the newest.
    """
    for where in _WHERE:
        there = sorted(p for p in directory.glob(where) if p.is_dir()) if where else [directory]
        if found := [files for run in there if (files := _files(run))]:
            return found
    return []


def _files(run: Path) -> list[str]:
    # Only below `profile` is a Chrome trace known to be one of XLA's.
    for suffix in _SUFFIXES if run.parent.name == "profile" else _SUFFIXES[:2]:
        if found := sorted(str(p) for p in run.iterdir() if p.name.endswith(suffix) and p.is_file()):
            return found
    return []


def whole_profile(trace: str) -> str:
    """The XPlane of which a Chrome trace was made, "" where it does not stand beside it: both bear the host's name."""
    for suffix in (".trace.json.gz", ".trace.json"):
        if trace.endswith(suffix):
            named = [trace.removesuffix(suffix) + other for other in _SUFFIXES[:2]]
            return next((path for path in named if Path(path).is_file()), "")
    return ""
