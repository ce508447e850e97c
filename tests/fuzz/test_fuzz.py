"""Some inputs of each target, every input that ever broke a law, and what the harness itself promises."""

from __future__ import annotations

import re
import time

import pytest

from advisor.sources.sniff import SOURCES
from tests.fuzz.harness import KEPT, Progress, made, run, signature, strict, tried
from tests.fuzz.targets import TARGETS, Target
from tests.paths import MANY_SAMPLES

SECONDS = 0.5 if MANY_SAMPLES else 0.1
"""Of processor time, a target: `python -m tests.fuzz` runs as long as one likes, and `.ci/run` for minutes."""

BY_NAME = {target.name: target for target in TARGETS}
FOUND = sorted(KEPT.glob("*/*"))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_laws_hold_of_inputs_with_the_structure_of_real_ones(target: Target) -> None:
    with strict():
        first = made(target, 0)  # what inputs are made from is made once
        began, number = time.process_time(), 0
        assert not tried(target, first)
        while time.process_time() - began < SECONDS:
            number += 1
            broken = tried(target, made(target, number))
            assert not broken, f"python -m tests.fuzz {target.name} --number {number}\n{broken}"


@pytest.mark.parametrize("path", FOUND, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_what_once_broke_a_law_does_not_any_more(path) -> None:
    with strict():
        broken = tried(BY_NAME[path.parent.name], path.read_bytes())
    assert not broken, broken


def test_every_source_is_fuzzed() -> None:
    assert SOURCES.keys() <= {target.reads for target in TARGETS}


def test_a_number_says_the_input() -> None:
    for target in TARGETS:
        if target.name not in ("nsys", "analysis", "summaries"):  # files that say when they were made
            assert made(target, 3) == made(target, 3), target.name


def test_what_breaks_is_kept_and_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys) -> None:
    def check(data: bytes) -> bool:
        assert data != b"2"
        return data != b"3"

    target = Target("kineto", "kineto", lambda rng: b"%d" % rng.randrange(4), check, goal=40)
    monkeypatch.setattr("tests.fuzz.harness.TARGETS", (target,))
    (at,) = run([target], tmp_path, 60).values()
    assert at.next == 40 and at.next > at.refused > 0 and at.most_mb > 0 and len(at.broken) == 1 and len(list(tmp_path.glob("kineto-*.bin"))) == 1
    assert next(tmp_path.glob("*.bin")).read_bytes() == b"2" and "AssertionError" in next(tmp_path.glob("*.txt")).read_text()
    longer = Target(*(getattr(target, name) for name in ("name", "reads", "make", "check")), goal=50)
    (again,) = run([longer], tmp_path, 60).values()
    assert again.next == 50 and again.broken == at.broken and isinstance(again, Progress)
    assert re.fullmatch(r"test_fuzz.py:line \d+: AssertionError", signature(next(tmp_path.glob("*.txt")).read_text()))
