"""Measurements and notes of `advisor record` next to its trace, as recordings carry them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from advisor.knowledge.framework_loops import LOOPS

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]{0,39}|")


def step_times(times: Any) -> tuple[float, ...]:
    """Measured step times in µs as a file holds them; none if they are no such times."""
    if not isinstance(times, list) or not all(type(us) in (int, float) and 0 < us <= sys.float_info.max for us in times):
        return ()
    return tuple(float(us) for us in times)


def frameworks_of(recording: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The frameworks that a recording names, of those that are known, with their versions, and their loops; what else is there is left out."""
    named, ran = recording.get("frameworks"), recording.get("loops")
    versions = (
        {name: version for name, version in named.items() if name in LOOPS and isinstance(version, str) and _VERSION.fullmatch(version)}
        if isinstance(named, dict)
        else {}
    )
    known = {f"{package}.{loop}" for package in versions for loop in LOOPS[package][1]}
    return versions, tuple(name for name in ran if isinstance(name, str) and name in known) if isinstance(ran, list) else ()


def as_recorded(times: tuple[float, ...], frameworks: Mapping[str, str], loops: tuple[str, ...]) -> dict[str, Any]:
    """The same as a trace or a recording holds it."""
    return {"unprofiled_step_us": list(times), **({"frameworks": dict(frameworks), "loops": list(loops)} if frameworks else {})}
