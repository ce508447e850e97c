"""Reading and analysing stay within a factor of what parsing alone takes, on the same machine at the same time.

The factors are some two and a half times what is measured (docs/performance.md), so that noise passes and a change in
kind fails: work in Python for each event where there was none, a file read twice.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks import generate
from tests.benchmarks.measure import Cost, side_by_side

MB = 50
ROUNDS = 4
RATIOS = {"load_alone": 11.0, "analyze": 28.0}
"""To the bare parse. At this size imports are half of the reading's time."""

PEAK_BYTES = {"load_alone": 0.5 * MB * 1e6 + 150e6, "analyze": 0.5 * MB * 1e6 + 170e6}
"""Beside half of the file: the interpreter and its libraries, and for an analysis what 26 rules keep of one step."""


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cost]:
    path: Path = tmp_path_factory.mktemp("speed") / "trace.json"
    generate.kineto(path, MB * 10**6)
    return side_by_side(dict.fromkeys(("simdjson", *RATIOS), sys.executable), path, ROUNDS)


@pytest.mark.parametrize("subject", RATIOS)
def test_time_against_the_bare_parse(subject: str, costs: dict[str, Cost]) -> None:
    assert not costs[subject].why
    ratio = costs[subject].seconds / costs["simdjson"].seconds
    assert ratio <= RATIOS[subject], f"{subject} takes {ratio:.1f} times the bare parse"


@pytest.mark.parametrize("subject", PEAK_BYTES)
def test_memory_against_the_file(subject: str, costs: dict[str, Cost]) -> None:
    assert costs[subject].peak_bytes <= PEAK_BYTES[subject]
