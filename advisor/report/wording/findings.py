"""What is said of one finding: its title, what else a reader must know, if it is, and how sure it is."""

from __future__ import annotations

from advisor.report.finding import LOW_SHARE, SEVERITIES, Change, Evidence, Finding, Saving, severity_of
from advisor.report.host_waits import HostWaitRow, HostWaits
from advisor.report.model import Report
from advisor.report.numbers import NAMED, counted, duration, mean, size, times
from advisor.report.wording.checks import check_name
from advisor.report.wording.savings import per_request, saving_method, step_noun
from advisor.report.wording.verdicts import improves

_FEW = NAMED
"""Names that a list spells out before it counts the rest."""


def titled(finding: Finding, report: Report) -> str:
    """The title; of kernels measured one by one, with the kernel's name."""
    return f"{finding.title}: {finding.evidence[0].label}" if report.kind == "kernels" else finding.title


def belief(finding: Finding, report: Report) -> str:
    """Why to believe a finding: how the saving came about, how good that is here, how often it was seen. Used behind a hover and a fold."""
    replay = next((check for check in report.health if check.check == "replay"), None)
    often = times(sum(evidence.count for evidence in finding.evidence) / report.evidence_steps)
    weak = [check_name(check.check) for check in report.health if check.check in finding.checks and check.status != "ok"]
    rests = f"It relies on {counted(len(finding.checks), 'check')} of the trace" if finding.checks else ""
    passed = "which passed" if len(finding.checks) == 1 else "which all passed"
    parts = [
        saving_method(finding),
        f"Check of that replay: {replay.detail}." if replay and finding.saving.basis == "simulated" else "",
        rests and (f"{rests}; weak: {', '.join(weak)}." if weak else f"{rests}, {passed}."),
        _beyond_evidence(finding),
        f"It was seen {often}{' per step' if report.evidence_steps > 1 else ' in the window' if report.window else ''}.",
        "The diagnosis is unconfirmed." if finding.status == "possible" else f"Confidence in the diagnosis: {finding.confidence:.0%}.",
    ]
    return " ".join(part for part in parts if part)


def _beyond_evidence(finding: Finding) -> str:
    """Why a range ends above the time of its evidence; "" if it does not."""
    saving, us = finding.saving, finding.evidence_us
    if us is None or not isinstance(saving, Saving) or saving.per != "step" or saving.high_us <= us:
        return ""
    return f"The range ends above the {duration(us)} of its evidence, since launches and waits behind that work go too. It also has a margin for errors."


def aside(finding: Finding) -> str:
    """What a reader must know after the summary: it is allowed, unconfirmed, or covered by another fix."""
    if finding.allowed:
        return f" Allowed: {finding.allowed}."
    if finding.status == "possible":
        covered = f" Mostly covered by fixing {rule_label(finding.covered_by)}." if finding.covered_by else ""
        return f" Unconfirmed: {finding.possible_why or 'the profiler may have caused it'}. To confirm: {finding.decide_with}.{covered}"
    if finding.folded_into:
        return f" Mostly covered by fixing {rule_label(finding.folded_into)}."
    return ""


def remark(finding: Finding) -> str:
    """The same in a few words. Used where the title is alone on its line."""
    if finding.status == "possible" and not finding.allowed:
        return f"Unconfirmed, and mostly covered by fixing {rule_label(finding.covered_by)}." if finding.covered_by else "Unconfirmed."
    if finding.excluded == "same-graphs" and not (finding.allowed or finding.folded_into):
        return f"The fix of {_listed([*map(rule_label, finding.alternative_to)])} uses CUDA graphs too: apply only one of the two."
    if finding.excluded == "alternative" and not (finding.allowed or finding.folded_into):
        if not finding.alternative_to:
            return "Its gain overlaps with other fixes."
        return f"Use this or the fix of {_listed([*map(rule_label, finding.alternative_to)])}: their gains overlap."
    return aside(finding).strip()


_UNSURE = 0.7
"""Confidence below which doubt of the diagnosis is the reason for a lower severity."""


def rated_lower(finding: Finding, report: Report) -> str:
    """`rated low: unconfirmed`, if the severity is below that of the saving for such a reason; else "". Used next to the range of the saving."""
    saving, whole = finding.saving, report.whole(finding.saving)
    deserved = severity_of(saving, whole)
    if finding.allowed or SEVERITIES.index(finding.severity) <= SEVERITIES.index(deserved):
        return ""
    if finding.status == "possible":
        why = f"unconfirmed, mostly covered by {rule_label(finding.covered_by)}" if finding.covered_by else "unconfirmed"
    elif finding.folded_into:
        why = f"mostly covered by {rule_label(finding.folded_into)}"
    elif finding.excluded in ("alternative", "same-graphs"):
        why = "an alternative to another fix"
    elif saving.low < LOW_SHARE * whole:
        why = "may save nothing" if saving.low <= 0 else "may save little"
    elif per_request(finding):
        why = "the step gets no shorter"
    elif finding.confidence < _UNSURE:
        why = "uncertain diagnosis"
    else:
        return ""
    return f"rated {finding.severity}: {why}"


_LABELS = {"graph-candidate": "the CUDA graph candidate"}


def rule_label(rule: str) -> str:
    """The name of a rule in a sentence: the field's term if the rule's own name is none."""
    return _LABELS.get(rule, rule)


def first_fix_step(finding: Finding) -> str:
    """The fix's title and its first step, a sentence each. Used in lists of what to do first."""
    title, step = finding.fix.title, finding.fix.steps[0]
    if step == title:
        return title
    return f"{title}{'' if title[-1:] in '.:;?!' else '.'} {step}"


def left_out(report: Report) -> str:
    """The findings that the combined estimate leaves out, and why. Used below the list of what to do; "" if there are none."""
    if report.headline.predicted_step_us is None:
        return ""
    why: dict[str, dict[str, None]] = {}
    for finding in report.findings:
        if finding.left_out and isinstance(finding.saving, Saving) and finding.saving.expected > 0:
            why.setdefault(finding.left_out, {})[finding.rule] = None
    each = "; ".join(f"{_listed([*map(rule_label, rules)])} ({reason})" for reason, rules in why.items())
    of = "Not included in the combined estimate" if improves(report) else f"Not counted as making the {step_noun(report)} shorter"
    return f"{of}: {each}." if each else ""


def _listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b, c and 2 more`."""
    shown = [*names[:_FEW], f"{len(names) - _FEW} more"] if len(names) > _FEW + 1 else names
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def combined(report: Report) -> str:
    """Which fixes the combined estimate holds, in a few words before its range."""
    together = report.headline.together
    number = len(together.findings) if together else sum(not finding.left_out for finding in report.findings)
    return f"with {'this fix' if number == 1 else 'all compatible fixes (their savings overlap)'} it would take"


def change(part: Change) -> str:
    """What one part of a fix does to a step. Used by `advisor explain RULE TRACE`."""
    figures = (
        (part.ops_removed, f"{_mean(part.ops_removed, 'GPU op')} fewer"),
        (part.ops_changed, f"{_mean(part.ops_changed, 'GPU op')} changed"),
        (part.waits_removed, f"{_mean(part.waits_removed, 'host wait')} fewer"),
        (part.gpu_us, f"{duration(abs(part.gpu_us))} {'less' if part.gpu_us > 0 else 'more'} GPU time"),
        (part.host_us, f"{duration(abs(part.host_us))} {'less' if part.host_us > 0 else 'more'} host time"),
    )
    return f"{part.edit}: {', '.join(text for amount, text in figures if amount)}"


def _mean(number: float, noun: str) -> str:
    """`1 wait`, `1.50 waits`."""
    return f"{(text := mean(number))} {noun if text == '1' else noun + 's'}"


def place(evidence: Evidence) -> str:
    """Device, stream and thread of an evidence, those that are known."""
    parts = (("GPU", evidence.device), ("stream", evidence.stream), ("thread", evidence.thread))
    return " · ".join(f"{name} {value}" for name, value in parts if value is not None)


def source_line(evidence: Evidence) -> str:
    """`file:line` of an evidence, or nothing."""
    return f"{evidence.source.file}:{evidence.source.line}" if evidence.source else ""


def user_line(finding: Finding) -> str:
    """`train.py:25`: the first line of the program that the evidence names; "" if none was recorded."""
    return next((source_line(item) for item in finding.evidence if item.source), "")


def of_steps(report: Report) -> str:
    """`per step (mean of 3)`: what counts and times of evidence are of; "" where the recording is one step, or knows none."""
    steps = report.evidence_steps
    return f"per step (mean of {steps:,})" if steps > 1 else ""


def seen(item: Evidence, report: Report) -> str:
    """How often an evidence was seen in a step."""
    return mean(item.count / report.evidence_steps)


def taken(item: Evidence, report: Report) -> str:
    """What an evidence takes in a step, or of memory how much."""
    return duration(item.dur_us / report.evidence_steps) if item.bytes is None else size(item.bytes)


def wait_place(row: HostWaitRow) -> str:
    """Where a call that waits is: its line, or its op and module."""
    if row.source:
        return f"{row.source.file}:{row.source.line}"
    return f"{row.op} in {row.module}" if row.module else row.op


def waits_listed(waits: HostWaits) -> str:
    """The heading of a list of waits."""
    return waits.why or f"{counted(round(sum(row.waits_a_step for row in waits.rows)), 'wait')} for the GPU per step, longest first"
