"""Which rows are held against a new analysis: a few by default, an eighth more or all of them where ADVISOR_SAMPLES asks for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tests.golden.facts import LISTS, Row, entries
from tests.paths import ROOT

ANYWAY = re.compile(r"samples/[\w-]+/(slow|fixed)\.json\.gz")
"""What tests of rules analyse in any case: one analysis serves both."""

_FIGURES = re.compile(r"[0-9]+|(?<= in ).*")
"""And the rule that a symptom is folded into: that it is one is enough."""

OF_EACH_FILE = 100_000
"""Bytes that a small recording counts as: its analysis takes about as long as reading these."""


def read_here(rows: Mapping[str, Row]) -> set[str]:
    """The traces whose rows are held in this run of the tests."""
    asked = os.environ.get("ADVISOR_SAMPLES", "")
    if asked == "all":
        return {*rows}
    anyway = {trace for trace in rows if ANYWAY.fullmatch(trace)}
    return anyway | cover(rows, anyway) | ({*sorted(rows)[::8]} if asked == "many" else set())


def cover(rows: Mapping[str, Row], anyway: set[str]) -> set[str]:
    """Few small traces that conclude, with those, everything that any trace concludes: the most that is new for a byte first."""
    concluded = {trace: conclusions(row) for trace, row in rows.items()}
    cost = {trace: OF_EACH_FILE + size(ROOT / trace) for trace in rows}
    missing = set[str]().union(*concluded.values()) - set[str]().union(*(concluded[trace] for trace in anyway))
    taken: set[str] = set()
    while missing:
        best = max(sorted(rows), key=lambda trace: len(concluded[trace] & missing) / cost[trace])
        taken.add(best)
        missing -= concluded[best]
    return taken


def conclusions(row: Row) -> set[str]:
    """What a row says without its figures, and in which folder it lies."""
    told = {f"judged {row['judged']}", f"bottleneck {row['bottleneck']}", f"in {Path(row['trace']).parent}"}
    for column in LISTS:
        told |= {f"{column} {key} {_FIGURES.sub('', said)}" for key, said in entries(row, column)}
    return told


def size(recording: Path) -> int:
    """Bytes of a recording, all ranks of a job together; none of one that is gone."""
    files = recording.iterdir() if recording.is_dir() else [recording]
    return sum(file.stat().st_size for file in files if file.exists())
