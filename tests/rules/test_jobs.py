"""Rules of a job on recorded jobs whose fault was put there: who, why, how much; and silence on those without one."""

from __future__ import annotations

import json

import pytest

from advisor.engine.fleet import reduced
from advisor.engine.reduce import Judging
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.sources import read
from tests.paths import ROOT

JOBS = ROOT / "samples" / "jobs"
CASES = json.loads((JOBS / "manifest.json").read_text())["cases"]
RULES = [rule for rule in catalog().values() if "ranks" in rule.relies_on]
LOUD = ("high", "medium")


def report_of(name):
    return run(reduced(read(JOBS / CASES[name]["dir"]), Judging(rules=()), executor="serial"), RULES)


# The correction for what recording cost leaves no idle time for its reads, though the job without them is faster.
HIDDEN = {"metrics_each": pytest.mark.xfail(reason="what recording costs hides the reads of this job")}


@pytest.mark.parametrize("name", [pytest.param(n, marks=HIDDEN.get(n, ())) for n, c in CASES.items() if c["rule"]])
def test_the_fault_is_found_first_with_its_culprit_and_cause(name):
    case, report = CASES[name], report_of(name)
    first = next(f for f in report.findings if f.severity in LOUD)
    assert first.rule in case["rule"] and not report.failed
    if "culprit" in case:
        alike = {"imbalance", "compute"}
        assert first.ranks[0] == case["culprit"] and (first.cause == case["why"] or {first.cause, case["why"]} <= alike)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.get("control")])
def test_a_job_without_a_fault_is_left_alone(name):
    report = report_of(name)
    assert not [f.rule for f in report.findings if f.severity in LOUD] and report.matching.status == "ok"


def test_the_predicted_gain_holds_against_the_job_without_the_fault():
    apart = []
    for name in ("ddp_backward_host", "input_slow_read", "input_copies", "tensor_more_compute", "ddp_forward_host_2"):
        report, case = report_of(name), CASES[name]
        measured = 1 - CASES[case["fixed"]]["step_ms"] / case["step_ms"]
        apart.append(abs(report.share(report.findings[0]) - measured))
    assert sorted(apart)[len(apart) // 2] <= 0.05
