"""Recordings, each analysed once: tests of many kinds ask about the same samples, and tests/conftest.py keeps those in one process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from advisor.engine.fleet import reduced
from advisor.engine.reduce import Judging
from advisor.engine.run import analyze
from advisor.recordings.recording import Recording
from advisor.report.model import Report
from advisor.sources import read


@cache
def analysed(path: Path) -> Report:
    """The report as it is saved: without its picture, which would hold the whole trace."""
    return msgspec.structs.replace(analyze(path))


@cache
def summarised(job: Path) -> Recording:
    """A job's ranks, each summarised without a rule of its own."""
    return reduced(read(job), Judging(rules=()), executor="serial")
