"""What CI systems read: SARIF, JUnit and GitLab's code quality, each held against what it must be."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import msgspec
import pytest

import advisor
from advisor.reports.report import gitlab, junit, sarif
from tests.paths import ROOT
from tests.reports.examples import EXAMPLES

# The schema of OASIS, as published; it is written in draft 4 of JSON schema.
VALIDATOR = jsonschema.Draft4Validator(json.loads((Path(__file__).parent / "schemas" / "sarif-2.1.0.json").read_text()))


def with_lines():
    return advisor.analyze(ROOT / "samples" / "sync-stall" / "slow.json.gz").report


REPORTS = {**EXAMPLES, "analysed": with_lines}


def test_the_schema_refuses_what_is_no_sarif():
    assert not VALIDATOR.is_valid({"version": "2.1.0"}) and not VALIDATOR.is_valid({"version": "2.1.0", "runs": [{"results": []}]})


@pytest.mark.parametrize("name", REPORTS)
def test_sarif_is_valid_and_has_a_result_a_finding(name):
    report = REPORTS[name]()
    made = json.loads(sarif.render(report))
    VALIDATOR.validate(made)
    (run,) = made["runs"]
    assert len(run["results"]) == min(len(report.findings), 500)
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [ids[r["ruleIndex"]] for r in run["results"]] == [r["ruleId"] for r in run["results"]]
    assert len(set(ids)) == len(ids)


def test_sarif_points_at_the_line_where_one_was_recorded_and_at_what_ran_where_not():
    report = with_lines()
    finding = report.findings[0]
    results = json.loads(sarif.render(report))["runs"][0]["results"]
    line = next(e.source for e in finding.evidence if e.source)
    place = results[0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": line.file, "uriBaseId": "SRCROOT"}, "region": {"startLine": line.line}}
    bare = msgspec.structs.replace(finding, evidence=tuple(msgspec.structs.replace(e, source=None) for e in finding.evidence))
    result = json.loads(sarif.render(msgspec.structs.replace(report, findings=(bare,))))["runs"][0]["results"][0]
    assert result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == finding.evidence[0].label


def test_sarif_carries_the_page_as_help_and_levels_by_severity():
    run = json.loads(sarif.render(with_lines()))["runs"][0]
    rule = next(r for r in run["tool"]["driver"]["rules"] if r["id"] == "sync-stall")
    assert "When to ignore" in rule["help"]["text"] and rule["helpUri"].startswith("https://")
    levels = {"high": "error", "medium": "warning", "low": "note", "info": "note"}
    report = EXAMPLES["launch-bound"]()
    for finding, result in zip(report.findings, json.loads(sarif.render(report))["runs"][0]["results"], strict=True):
        assert result["level"] == ("note" if finding.folded_into else levels[finding.severity])


def test_sarif_fingerprints_outlive_times_and_tell_rules_apart():
    report = EXAMPLES["launch-bound"]()
    slower = [
        msgspec.structs.replace(f, evidence=tuple(msgspec.structs.replace(e, start_us=e.start_us + 7, dur_us=e.dur_us * 2) for e in f.evidence))
        for f in report.findings
    ]
    prints = [
        [r["partialFingerprints"]["advisor/v1"] for r in json.loads(sarif.render(x))["runs"][0]["results"]]
        for x in (report, msgspec.structs.replace(report, findings=tuple(slower)))
    ]
    assert prints[0] == prints[1] and len(set(prints[0])) == len(prints[0])


def test_sarif_suppresses_what_is_allowed_and_reports_what_broke():
    report = EXAMPLES["hostile"]()
    allowed = msgspec.structs.replace(report.findings[0], allowed="it is wanted")
    run = json.loads(sarif.render(msgspec.structs.replace(report, findings=(allowed,))))["runs"][0]
    assert run["results"][0]["suppressions"][0]["justification"] == "it is wanted"
    assert run["invocations"][0]["executionSuccessful"] is (not report.failed)
    assert len(run["invocations"][0]["toolExecutionNotifications"]) >= len(report.failed)


@pytest.mark.parametrize("name", REPORTS)
def test_junit_has_a_case_a_rule_and_counts_them(name):
    report = REPORTS[name]()
    suite = ET.fromstring(junit.render(report).encode()).find("testsuite")
    cases = suite.findall("testcase")
    rules = {f.rule for f in report.findings}
    assert len(cases) == int(suite.get("tests"))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(key)) == sum(case.find(tag) is not None for case in cases)
    if name != "hostile":
        assert len(cases) == len(rules) + len(report.clear) + len(report.skipped) + len(report.failed)


@pytest.mark.parametrize("char", ["\ufffe", "\uffff", "\ufdd0", "\ud800", "\x00", "\x0b", "\x7f"], ids=ascii)
def test_what_no_text_may_hold_leaves_every_format_readable(char):
    """Unicode has characters that are none, of which XML allows no two: whatever a name holds, their readers read what we write."""
    report = EXAMPLES["launch-bound"]()
    first = msgspec.structs.replace(report.findings[0], summary=f"kernel a{char}b", title=f"a{char}b")
    report = msgspec.structs.replace(report, findings=(first,), source=msgspec.structs.replace(report.source, path=f"a{char}b.json"))
    assert ET.fromstring(junit.render(report).encode()).find("testsuite").get("name").startswith("a\\")
    assert json.loads(sarif.render(report)) and json.loads(gitlab.render(report)) and char not in gitlab.render(report)


def test_junit_fails_for_what_matters_only():
    report = with_lines()
    low = tuple(msgspec.structs.replace(f, severity="low") for f in report.findings)
    for findings, failures in ((report.findings, "1"), (low, "0")):
        shown = msgspec.structs.replace(report, findings=findings[:1])
        assert ET.fromstring(junit.render(shown).encode()).get("failures") == failures


@pytest.mark.parametrize("name", REPORTS)
def test_gitlab_gets_what_it_asks_for(name):
    report = REPORTS[name]()
    issues = json.loads(gitlab.render(report))
    assert len(issues) == min(len([f for f in report.findings if not f.allowed]), 500)
    for issue in issues:
        assert issue["severity"] in ("info", "minor", "major", "critical", "blocker") and issue["location"]["lines"]["begin"] >= 1
        assert set(issue) - {"engine_name"} == {"description", "check_name", "fingerprint", "severity", "location"} and issue["location"]["path"]
