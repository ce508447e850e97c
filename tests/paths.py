"""Where traces for tests lie: the project's own samples, and the shared ones where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

ALL_SAMPLES = os.environ.get("ADVISOR_SAMPLES") == "all"
MANY_SAMPLES = ALL_SAMPLES or os.environ.get("ADVISOR_SAMPLES") == "many"
EACH = {"all": 1, "few": 64}.get(os.environ.get("ADVISOR_SAMPLES", ""), 8)
"""Of so many samples one is read where every one could be: all take a quarter of an hour, and a few are read on further Pythons."""


def sampled(recordings: Sequence[Any], each: int = EACH) -> list[Any]:
    """All of them as parameters, of which every `each`th is read and the others skip."""
    others = pytest.mark.skip(reason="one in so many is read: ADVISOR_SAMPLES=all reads every one")
    return [recording if at % each == 0 else pytest.param(recording, marks=others) for at, recording in enumerate(recordings)]


slow = pytest.mark.skipif(not MANY_SAMPLES, reason="starts many programs, or measures time: ADVISOR_SAMPLES=many runs it, as CI does")

once = pytest.mark.skipif(os.environ.get("ADVISOR_SAMPLES") == "few", reason="holds tables against traces, which are the same on every Python")

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces (../shared) are not here")


def shared_files(pattern: str) -> list[Path]:
    """Shared files by a pattern below ../shared; none where that folder is missing."""
    return sorted(SHARED.glob(pattern)) if SHARED.is_dir() else []
