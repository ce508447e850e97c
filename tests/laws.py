"""Laws that every report of a trace keeps: what it says in one place bounds what it says in another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from advisor.report.finding import SEVERITIES, Finding, Saving
from advisor.report.model import Report
from advisor.report.priorities import first_findings, other_findings
from advisor.report.recording import DeviceTime
from advisor.reports import formats
from advisor.reports._text import anchors

NEAR = 1e-6
"""Of a whole: sums of floats."""
OF_THE_PATH = 0.01
"""Of the path: what a replay's steady window and the recorded one differ by."""


def broken(report: Report) -> list[str]:
    """The laws that a report of one process breaks, each in a sentence; none where all hold."""
    return [said for law in (shares, gaps, together, evidence, order) for said in law(report)]


def shares(report: Report) -> Iterator[str]:
    """What is divided into parts is the sum of them."""
    for time in report.time or ():
        parts = time.compute_us + time.exposed_comm_us + time.exposed_copy_us + time.exposed_memset_us + time.idle_us
        idle = time.idle
        causes = idle.sync + idle.data_loading + idle.launch + idle.allocator + idle.host + idle.dependency + idle.profiler + idle.unknown
        if abs(parts - time.window_us) > NEAR * time.window_us or abs(causes - time.idle_us) > NEAR * time.window_us:
            yield f"the parts of device {time.device} are {parts} of {time.window_us} µs, its causes {causes} of {time.idle_us}"
    for path in (report.critical_path, report.critical_path_after):
        if path and abs(sum(part.share for part in path) - 1) > NEAR:
            yield "the shares of a critical path are not all of it"


def gaps(report: Report) -> Iterator[str]:
    """What stands between two ops on the critical path is time for which a device idles."""
    idle = max((max(t.idle_us / t.window_us, _unrecorded_idle(report, t)) for t in report.time or () if t.window_us > 0), default=0.0)
    between = sum(part.share for part in report.critical_path if part.link == "kernel-to-kernel")
    if between > idle + OF_THE_PATH:
        yield f"gaps take {between:.1%} of the critical path, and no device idles for more than {idle:.1%}"


def _unrecorded_idle(report: Report, time: DeviceTime) -> float:
    added = report.added_us(time)
    return (time.idle_us - added) / (time.window_us - added) if time.window_us > added else 0.0


def together(report: Report) -> Iterator[str]:
    """All fixes that go together gain no less than each of them, and than each that is only another way to the gain of one."""
    head, step = report.headline, report.step_us
    after = head.predicted_step_us
    if after is None:
        return
    counted = {finding.id for finding in report.findings if _counts(finding)}
    if not after.low <= after.expected <= after.high <= step * (1 + NEAR):
        yield "the step with every fix is not in its own range"
    if {*(head.together.findings if head.together else ())} != counted:
        yield f"the set that goes together is {head.together}, the findings that are not left out are {sorted(counted)}"
    if head.together and head.together.step_us != after:
        yield "the step of the best set is not the step with every fix"
    ways = {finding.rule for finding in report.findings if finding.id in counted}
    for finding in report.findings:
        stands_aside = bool({*finding.alternative_to} & ways)
        sure = finding.confidence >= 0.5 and finding.saving.low > 0
        if (finding.id in counted or (stands_aside and sure)) and step - after.expected < finding.saving.expected - NEAR * step:
            yield f"{finding.id} alone gains {finding.saving.expected:.1f} µs, all fixes together {step - after.expected:.1f}"


def _counts(finding: Finding) -> bool:
    return not finding.left_out and bool(finding.edits)


def evidence(report: Report) -> Iterator[str]:
    """Evidence is told of one step, as savings are."""
    for finding in report.findings:
        if finding.evidence_us is None:
            continue
        each = [item.dur_us / report.evidence_steps for item in finding.evidence]
        most = sum(each) if sum(each) <= report.traced.step_us else max(each)
        if abs(finding.evidence_us - most) > NEAR * max(most, 1.0):
            yield f"{finding.id} is told of {finding.evidence_us} µs a step, and its evidence takes {most}"


def order(report: Report) -> Iterator[str]:
    """One order of findings, in every format: those that are allowed last, then by severity, what shortens the step first, then by gain. Formats that
    people read from the top begin with what to do first."""
    keys = [(bool(f.allowed), SEVERITIES.index(f.severity), not f.shortens, -f.saving.expected) for f in report.findings if isinstance(f.saving, Saving)]
    if keys != sorted(keys):
        yield "findings do not stand by severity and gain"
    rules = [finding.rule for finding in report.findings]
    if [result["ruleId"] for result in json.loads(formats()["sarif"].render(report))["runs"][0]["results"]] != rules:
        yield "SARIF has another order of findings"
    if [finding["rule"] for finding in json.loads(formats()["json"].render(report))["findings"]] != rules:
        yield "JSON has another order of findings"
    first = first_findings(report)
    listed = (*first, *other_findings(report, first))
    marks = {
        "html": [re.escape(f'id="{anchor}"') for anchor in anchors(report.findings)],
        "markdown": [rf"\| {at} \| [^|\n]*{_word(f)}[^|\n]*\| {f.severity} \|" for at, f in enumerate(listed, 1)],
        "text": [rf"\n{at} {f.severity.upper()} +{_word(f)}" for at, f in enumerate(listed, 1)],
    }
    for name, found in marks.items():
        shown = formats()[name].render(report)
        places = [match.start() if (match := re.search(mark, shown)) else -1 for mark in found]
        shortened = places.index(-1) if -1 in places else len(places)  # a format shows as many as it has room for
        if places[:shortened] != sorted(places[:shortened]) or {*places[shortened:]} - {-1} or not shortened >= min(len(places), 3):
            yield f"{name} has another order of findings"


def _word(finding: Finding) -> str:
    """The first word of its title, which no format breaks or escapes."""
    return re.escape(finding.title.split()[0])
