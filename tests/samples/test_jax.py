"""Pairs of programs of JAX: each fault found first, its twin and the healthy one quiet, what was measured inside what was predicted."""

import gzip
import json
import re

import pytest

from advisor.lab.accuracy import listed
from tests.analysed import analysed
from tests.paths import MANY_SAMPLES, ROOT, sampled

JAX = ROOT / "samples" / "jax"
CASES = json.loads((JAX / "manifest.json").read_text())["cases"]
PAIRS = [name for name, case in CASES.items() if case["rule"] and "slow" in case.get("jax", {})]


def loud(path):
    report = analysed(JAX / path)
    assert not report.failed
    return [f for f in report.findings if f.severity in ("high", "medium") and not f.folded_into]


@pytest.mark.parametrize("name", sampled([*PAIRS], 1 if MANY_SAMPLES else 3))
def test_the_fault_is_found_first_and_its_twin_is_quiet(name):
    case = CASES[name]
    assert loud(case["jax"]["slow"])[0].rule == case["rule"]
    assert case["rule"] not in {f.rule for f in loud(case["jax"]["fixed"])}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["rule"] is None])
def test_a_healthy_program_is_quiet(name):
    assert not loud(CASES[name]["jax"]["fixed"])


def test_four_in_five_measured_gains_are_inside_the_interval():
    pairs = listed(JAX, analysed)
    assert {pair.name for pair in pairs} == {*PAIRS}
    assert sum(pair.in_interval for pair in pairs) >= 0.8 * len(pairs)


def test_every_line_is_one_of_the_program_that_recorded_them():
    lines = (JAX / "record.py").read_text().splitlines()
    report = analysed(JAX / CASES["attention"]["jax"]["slow"])
    (source,) = {e.source for f in report.findings if f.rule == "unfused-attention" for e in f.evidence[:1] if e.source}
    assert source.file.endswith("record.py") and 0 < source.line <= len(lines)


def test_nothing_of_the_machine_is_left_in_the_samples():
    for path in JAX.glob("*.gz"):
        raw = gzip.decompress(path.read_bytes())
        assert not re.findall(rb"/(?:home|root|work|tmp|mnt)/|\b(?:\d{1,3}\.){3}\d{1,3}\b", raw), path.name
