"""JUnit XML: a test a rule, for CI systems that show nothing else."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from advisor.report.finding import Finding
from advisor.report.model import Report
from advisor.report.wording import aside, gain, unseen, whole_noun
from advisor.reports._clean import Limits, clean

NAME = "junit"
SUFFIX = ".junit.xml"

_LIMITS = Limits(text=1_000, findings=500, evidence=5)


def render(report: Report) -> str:
    """A suite: rules with a finding of medium severity or more fail, broken ones err, those that could not look are skipped."""
    shown = clean(report, _LIMITS)
    by_rule: dict[str, list[Finding]] = {}
    for finding in shown.findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    failing = [rule for rule, found in by_rule.items() if any(_fails(f) for f in found)]
    counts = {
        "tests": len(by_rule) + len(shown.clear) + len(shown.skipped) + len(shown.failed),
        "failures": len(failing),
        "errors": len(shown.failed),
        "skipped": len(shown.skipped),
    }
    counted = {key: str(value) for key, value in counts.items()}
    suites = ET.Element("testsuites", {"name": "advisor", **counted})
    suite = ET.SubElement(suites, "testsuite", {"name": shown.source.path, **counted})
    if told := unseen(shown):
        ET.SubElement(ET.SubElement(suite, "properties"), "property", {"name": "unseen", "value": told})
    for rule, found in by_rule.items():
        text = "\n\n".join(_told(finding, shown) for finding in found)
        if rule in failing:
            ET.SubElement(_case(suite, rule), "failure", {"type": found[0].severity, "message": found[0].summary}).text = text
        else:
            ET.SubElement(_case(suite, rule), "system-out").text = text
    for quiet in shown.clear:
        ET.SubElement(_case(suite, quiet.rule), "system-out").text = quiet.why
    for skipped in shown.skipped:
        record = f"; record it with: {skipped.record_with}" if skipped.record_with else ""
        ET.SubElement(_case(suite, skipped.rule), "skipped", {"message": skipped.why + record})
    for failed in shown.failed:
        ET.SubElement(_case(suite, failed.rule), "error", {"message": failed.error})
    ET.indent(suites, " ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _case(suite: ET.Element, rule: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", {"classname": "advisor", "name": rule})


def _fails(finding: Finding) -> bool:
    return finding.loud and not finding.folded_into and not finding.allowed


def _told(finding: Finding, report: Report) -> str:
    saves = gain(finding, report)
    gained = f"saves {saves} of the {whole_noun(finding, report)}" if saves else "no gain expected"
    return f"{finding.severity.capitalize()} severity, {gained}. {finding.summary}{aside(finding)}\nFix: {finding.fix.title}. {' '.join(finding.fix.steps)}"
