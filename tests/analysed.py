"""Recordings, each analysed once: tests of many kinds ask about the same samples, and tests/conftest.py keeps those in one process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from advisor.engine.run import analyze
from advisor.report.model import Report


@cache
def analysed(path: Path) -> Report:
    """The report as it is saved: without its picture, which would hold the whole trace."""
    return msgspec.structs.replace(analyze(path))
