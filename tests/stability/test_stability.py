"""How changed traces are held against themselves, and a few that are."""

import json

import msgspec
import pytest

from advisor import analyze
from advisor.lab.stability.changes import CHANGES, Change
from advisor.lab.stability.held import compared, drawn, held
from advisor.lab.stability.shown import Stability, as_markdown
from advisor.report.finding import Skipped
from tests.command import advisor
from tests.paths import ROOT, sample, slow

pytestmark = slow

SAMPLES = ROOT / "samples"
ANY, TAKES = Change("durations", lambda trace, rng: trace), Change("no-shapes", lambda trace, rng: trace, takes="shapes")


@pytest.fixture(scope="module")
def report():
    return analyze(SAMPLES / "launch-gap" / "slow.json.gz").report


def with_first(report, **changed):
    first, *rest = report.findings
    return msgspec.structs.replace(report, findings=(msgspec.structs.replace(first, **changed), *rest))


def without_first(report, **more):
    return msgspec.structs.replace(report, findings=report.findings[1:], **more)


def test_the_same_report_flips_nothing(report):
    same = compared("t", ANY, report, report)
    assert same.findings == same.savings == sum(f.loud for f in report.findings) > 0 and (same.flips, same.moved, same.reasons) == (0, 0, [])


def test_a_finding_flips_where_it_becomes_low_or_goes_either_way(report):
    assert report.findings[0].severity == "high"
    for other in (with_first(report, severity="low"), without_first(report)):
        for pair in ((report, other), (other, report)):
            assert compared("t", ANY, *pair).flips == 1
    assert compared("t", ANY, report, with_first(report, severity="medium")).flips == 0, "both ask to be looked at"
    assert compared("t", ANY, report, None, "it cannot be read").flips == compared("t", ANY, report, report).findings


def test_what_a_change_takes_away_may_be_lacked(report):
    rule = report.findings[0].rule
    gone = without_first(report, skipped=(*report.skipped, Skipped(rule=rule, why="no shapes")))
    assert (compared("t", TAKES, report, gone).flips, compared("t", TAKES, report, gone).abstained) == (0, 1)
    assert compared("t", ANY, report, gone).flips == 1, "nothing was taken"
    assert compared("t", TAKES, gone, report).flips == 1, "less tells no more"
    assert compared("t", TAKES, report, without_first(report)).flips == 1, "the rule looked and is quiet"


def test_a_saving_moves_by_more_than_five_points_of_the_step(report):
    saving, step_us = report.findings[0].saving, report.headline.step_us
    for by, moved in ((0.045, 0), (0.055, 1)):
        less = saving.expected_us - by * step_us
        other = with_first(report, saving=msgspec.structs.replace(saving, low_us=min(saving.low_us, less), expected_us=less))
        assert compared("t", ANY, report, other).moved == moved


FEW = ("launch-gap/slow", "sync-stall/slow", "precision/slow", "unfused-attention/slow", "graph-candidate/products_behind_gpu.fixed")
"""Traces of a few steps each, whose findings rest on the host's time, on waits, on shapes and on kernels' names; and one of a CUDA graph."""


@pytest.fixture(scope="module")
def few():
    return held(SAMPLES, [sample(name) for name in FEW])


def test_each_change_is_tried(few):
    found, left = few
    assert not left and [one.change for one in found] == [change.name for change in CHANGES]
    assert {one.change for one in found if one.traces} == {change.name for change in CHANGES}, "each is tried"
    assert sum(one.flips for one in found) <= 0.03 * sum(one.findings for one in found)


def test_the_page_counts_what_is_there(few):
    found, left = few
    page = as_markdown(Stability("advisor validate samples --stability", len(FEW), left, found))
    assert f"of {sum(one.findings for one in found):,} findings flip" in page
    assert page.count("\n| `") == len(CHANGES) + sum(one.flips for one in found)


def test_a_lot_is_the_same_each_time():
    assert drawn(SAMPLES / "spellings", 5, 3) == drawn(SAMPLES / "spellings", 5, 3) != drawn(SAMPLES / "spellings", 5, 4)
    assert len(drawn(SAMPLES / "launch-gap", 99, 0)) == len(drawn(SAMPLES / "launch-gap", None, 0))


def test_the_command_writes_what_was_counted(tmp_path):
    target = tmp_path / "stability.json"
    done = advisor("validate", SAMPLES / "precision", "--stability", "--sample", "1", "--workers", "1", "-o", target, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(target.read_text())
    assert {"findings", "flips", "savings", "moved", "changes"} <= found.keys() and found["traces"] == 1
    assert found["findings"] == sum(change["findings"] for change in found["changes"])
    assert all({"change", "findings", "flips", "savings", "moved", "reasons"} <= change.keys() for change in found["changes"])
    assert advisor("validate", SAMPLES / "memory", "--stability", cwd=tmp_path).returncode == 3
    assert advisor("validate", SAMPLES / "precision", "--sample", "1", cwd=tmp_path).returncode == 2
