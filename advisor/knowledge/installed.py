"""Installed distributions, found by the names of their directories: importlib.metadata imports a parser of mail, a tenth of numpy's import."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Entry points of a group."""
    places = _places()
    if places is not None and not any(f"[{group}]" in _text(place, "entry_points.txt") for place in places):
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def version(distribution: str) -> str | None:
    """The version of a distribution, None if it is not installed."""
    places = _places()
    if places is not None:
        start = f"{distribution.replace('-', '_').lower()}-"
        found = [place for place in places if os.path.basename(place).lower().startswith(start)]
        lines = _text(found[0], "METADATA").splitlines() if found else ()
        if said := next((line[8:].strip() for line in lines if line.startswith("Version:")), None):
            return said
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@cache
def _places() -> tuple[str, ...] | None:
    """Directories of distributions' data in the order of sys.path, None if anything but such directories may hold some."""
    if any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path):
        return None
    found = []
    for path in dict.fromkeys(sys.path):
        try:
            names = os.listdir(path or ".")
        except OSError:
            if os.path.exists(path):
                return None  # a zip file
            continue
        if "EGG-INFO" in names or any(name.lower().endswith((".egg", ".egg-link")) for name in names):
            return None
        found += [os.path.join(path, name) for name in names if name.lower().endswith((".dist-info", ".egg-info"))]
    return tuple(found)


def _text(place: str, name: str) -> str:
    try:
        with open(os.path.join(place, name), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
