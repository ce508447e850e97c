"""Where traces for tests lie: the project's own samples, and the shared ones where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

ALL_SAMPLES = os.environ.get("ADVISOR_SAMPLES") == "all"
EACH = 1 if ALL_SAMPLES else 8
"""Of so many samples one is read where every one could be: all take many minutes, which only CI spends."""

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces (../shared) are not here")


def shared_files(pattern: str) -> list[Path]:
    """Shared files by a pattern below ../shared; none where that folder is missing."""
    return sorted(SHARED.glob(pattern)) if SHARED.is_dir() else []
