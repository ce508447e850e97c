"""Where traces for tests lie: the project's own samples, and the shared ones where they are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces (../shared) are not here")


def shared_files(pattern: str) -> list[Path]:
    """Shared files by a pattern below ../shared; none where that folder is missing."""
    return sorted(SHARED.glob(pattern)) if SHARED.is_dir() else []
