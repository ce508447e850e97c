"""Recordings, each analysed once: tests of many kinds ask about the same samples, and tests/conftest.py keeps those in one process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from advisor.engine.fleet import reduced
from advisor.engine.reduce import Judging
from advisor.engine.run import report_of
from advisor.recordings.recording import Recording
from advisor.report.model import Report
from advisor.sources import read


@cache
def analysed(path: Path) -> Report:
    """The report alone: a picture would hold the whole trace."""
    return report_of(path)


@cache
def summarised(job: Path) -> Recording:
    """A job's ranks, each summarised without a rule of its own."""
    return reduced(read(job), Judging(rules=()), executor="serial")
