"""Scores of answers whose worth is known, and packets that do not give their answer away."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.agents.packets import CASES, NOTHING, TRAP, build, manifest, scored, table
from tests.paths import slow

TRUTH = {"change": "change-1", "gain": 0.5, "program": "p"}
RANGE = {"low": 0.4, "expected": 0.5, "high": 0.6}


@pytest.mark.parametrize(
    ("answer", "right", "false"),
    [
        ({"first_change": "change-1", **RANGE}, True, 0),
        ({"first_change": "change-1", **RANGE, "measured": True}, True, 1),
        ({"first_change": "change-1", "low": 0.7, "expected": 0.8, "high": 0.9}, True, 1),
        ({"first_change": "change-1", "low": 0.55, "expected": 0.55, "high": 0.55}, True, 0),
        ({"first_change": "change-1", "low": 0.7, "expected": 0.7, "high": 0.7}, True, 1),
        ({"first_change": "change-2", **RANGE}, False, 1),
        ({"first_change": NOTHING}, False, 0),
        ({"first_change": "change-1", "low": 0.6, "expected": 0.5, "high": 0.4}, True, 1),
        ({}, False, 0),
    ],
)
def test_an_answer_is_scored(answer: dict[str, Any], right: bool, false: int) -> None:
    found = scored(answer, TRUTH)
    assert (found["right"], len(found["false"])) == (right, false)


def test_the_known_gains_are_large() -> None:
    cases = manifest()
    assert all(cases[name]["slow_ms"] / cases[name]["fixed_ms"] >= 1.5 for name in (*CASES, TRAP))


@slow
def test_packets_are_the_same_for_both_sides_and_name_no_case(tmp_path: Path) -> None:
    build(tmp_path)
    for at in range(1, len(CASES) + 2):
        traces = {gzip.decompress((tmp_path / f"case-{at}-{side}" / "trace.json.gz").read_bytes()) for side in ("with", "without")}
        assert len(traces) == 1 and b"workloads/" not in traces.pop()
    (tmp_path / "case-1-with" / "answer.json").write_text(json.dumps({"first_change": "change-1", "low": 0.5, "expected": 0.9, "high": 0.97}))
    assert "with the kit: 1 of 1 best changes, 0 false claims" in table(tmp_path)
