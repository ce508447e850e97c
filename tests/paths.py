"""Where traces for tests lie: the project's own samples, and the shared ones where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

ALL_SAMPLES = os.environ.get("ADVISOR_SAMPLES") == "all"
EACH = {"all": 1, "few": 64}.get(os.environ.get("ADVISOR_SAMPLES", ""), 8)
"""Of so many samples one is read where every one could be: all take many minutes, which only CI spends, and that once; on further Pythons a few do."""

once = pytest.mark.skipif(os.environ.get("ADVISOR_SAMPLES") == "few", reason="holds tables against traces, which are the same on every Python")

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces (../shared) are not here")


def shared_files(pattern: str) -> list[Path]:
    """Shared files by a pattern below ../shared; none where that folder is missing."""
    return sorted(SHARED.glob(pattern)) if SHARED.is_dir() else []
