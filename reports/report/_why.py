"""What one rule says of one trace, and why: for `advisor explain RULE TRACE`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from advisor.report import wording as phrases
from advisor.report.finding import Finding
from advisor.report.model import Report
from advisor.report.wording import gain, likely, whole_noun
from advisor.reports._clean import Limits, clean

_LIMITS = Limits(text=400, findings=100, evidence=5, steps=3, kernels=1)


def explain_outcome(report: Report, rule: str, options: Mapping[str, Any], relies_on: tuple[str, ...]) -> str:
    """What a report says of one rule, as text: the outcome, the thresholds in force, and the checks that it rests on."""
    parts = {name: tuple(item for item in getattr(report, name) if item.rule == rule) for name in ("findings", "clear", "skipped", "failed")}
    shown = clean(msgspec.structs.replace(report, **parts), _LIMITS)
    lines = [f"{shown.source.path}: {shown.headline.summary}", ""]
    for finding in shown.findings:
        lines += _found(finding, shown)
    for quiet in shown.clear:
        lines += [f"{quiet.rule} is quiet: {quiet.why}"]
    for skipped in shown.skipped:
        lines += [f"{skipped.rule} was skipped: {skipped.why}"]
        lines += [f"  Record it with: {skipped.record_with}"] if skipped.record_with else []
    for failed in shown.failed:
        lines += [f"{failed.rule} broke: {failed.error}"]
    if options:
        lines += ["", "Thresholds in force; what crosses them is reported (set others under [tool.advisor.options]):"]
        lines += [f"  {name} = {value}" for name, value in options.items()]
    rests_on = [h for h in shown.health if {*h.touches} & {*relies_on}]
    lines += ["", "Checks of the trace that it relies on:"] if rests_on else []
    lines += [f"  {phrases.check_name(h.check)}: {'passed' if h.status == 'ok' else h.status}, {h.detail}" for h in rests_on]
    return "\n".join(lines)


def _found(finding: Finding, report: Report) -> list[str]:
    saving = finding.saving
    removes = f"removes {saving.removes}: " if saving.removes else "saves "
    lines = [
        f"{finding.rule} fires, {finding.severity}{', unconfirmed' if finding.status == 'possible' else ''}: {finding.summary}",
        f"  It {removes}{gain(finding, report) or 'nothing'} of the {whole_noun(finding, report)}, likely {likely(saving)}.",
    ]
    lines += [f"  {said}"] if (said := phrases.aside(finding).strip()) else []
    lines += [f"  Seen in {said}:"] if (said := phrases.of_steps(report)) else []
    for item in finding.evidence:
        at = f", {item.source.file}:{item.source.line}" if item.source else ""
        lines.append(f"  {phrases.seen(item, report)} x {item.label}, {phrases.taken(item, report)}{at}")
    lines += ["  Expected effect of the fix on a step:"] if finding.edits else []
    lines += [f"    {phrases.change(part)}" for part in finding.edits]
    return lines
