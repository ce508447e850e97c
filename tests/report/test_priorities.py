"""What to do first, and what is left out of the combined estimate."""

import msgspec
import pytest

from advisor.report.priorities import first_findings, other_findings, why_excluded
from advisor.report.saved import read_report
from tests.reports.examples import launch_bound

replace = msgspec.structs.replace


def test_what_is_sure_comes_before_what_is_unconfirmed_and_the_rest_follows():
    report = launch_bound()
    gap, stall, small = report.findings
    report = replace(report, findings=(gap, replace(stall, status="possible", severity="low"), small))
    first = first_findings(report)
    assert [f.title for f in first] == [gap.title, small.title, stall.title] and other_findings(report, first) == ()
    assert [f.title for f in first_findings(report, 1)] == [gap.title] and len(other_findings(report, first_findings(report, 1))) == 2


@pytest.mark.parametrize(
    ("change", "counted", "why"),
    [
        ({}, True, ""),
        ({}, False, "alternative"),
        ({"allowed": "we know"}, False, "allowed"),
        ({"status": "possible"}, False, "unconfirmed"),
        ({"saving": replace(launch_bound().findings[0].saving, per="request")}, False, "other-unit"),
    ],
)
def test_why_a_finding_is_left_out(change, counted, why):
    assert why_excluded(replace(launch_bound().findings[0], **change), counted) == why


def test_a_report_of_an_earlier_version_says_as_a_fact_what_it_leaves_out(tmp_path):
    report = launch_bound()
    gap, *rest = report.findings
    old = replace(report, findings=(replace(gap, left_out="an alternative to sync-stall"), *rest))
    (tmp_path / "old.json").write_bytes(old.to_json().replace(b'"excluded": "",', b""))
    loaded = read_report(tmp_path / "old.json")
    assert [f.excluded for f in loaded.findings] == ["alternative", "", ""] and gap.title not in {f.title for f in first_findings(loaded)}
