"""Runs rules over a timeline and makes one report of what they say."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np

from advisor.engine.headline import headline
from advisor.engine.rule import Found, Rule, catalog
from advisor.errors import UsageError
from advisor.report.model import (
    LOW_SHARE,
    SEVERITIES,
    Clear,
    DeviceInfo,
    DeviceTime,
    Failed,
    Finding,
    Health,
    Idle,
    Recorded,
    Report,
    Severity,
    Skipped,
    SourceInfo,
    Window,
)
from advisor.sources import load
from advisor.timeline import Timeline
from advisor.views.charts.build import picture
from advisor.views.health import TraceHealth
from advisor.views.replay.build import Replay
from advisor.views.replay.calibration import Calibration
from advisor.views.replay.edits import combine
from advisor.views.time.breakdown import Breakdown
from advisor.views.time.critical_path import CriticalPath
from advisor.views.time.device_time import Partition, total
from advisor.views.time.idle_gaps import Gaps
from advisor.views.time.kernel_table import KernelTable
from advisor.views.time.step_work import StepWork
from advisor.views.time.utilization import Utilization
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace

SEVERITY_ORDER = {severity: i for i, severity in enumerate(SEVERITIES)}


def analyze(
    trace: str | os.PathLike[str] | Timeline,
    *,
    rules: Iterable[Rule] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    allow: Mapping[str, str] | None = None,
    step_ms: float | None = None,
) -> Report:
    """Read a trace (a path, or a timeline read before) and run rules over it, all of them by default.

    Raises TraceError where the trace cannot be read or holds nothing to analyse; options as for `run`.
    """
    timeline = trace if isinstance(trace, Timeline) else load(trace)
    return run(timeline, catalog().values() if rules is None else rules, options, allow, step_ms)


def run(
    timeline: Timeline,
    rules: Iterable[Rule],
    options: Mapping[str, Mapping[str, Any]] | None = None,
    allow: Mapping[str, str] | None = None,
    step_ms: float | None = None,
) -> Report:
    """Run rules over a timeline. A rule that raises is reported as failed and the others go on.

    options: keyword options by rule id, over the rules' defaults. allow: by rule id, why its findings are lived with.
    step_ms: the step time measured without a profiler, which the host's time is then corrected to; savings and the step in
    the headline are in that time.
    """
    if step_ms is not None and not 0 < step_ms < np.inf:
        raise UsageError(f"a step of {step_ms} ms is none", "Give the step time in ms, as measured without a profiler.")
    known = Calibration(None if step_ms is None else step_ms * 1000)
    workspace = Workspace(timeline, known)
    checks = workspace.get(TraceHealth)
    found: list[Found] = []
    others: dict[type, list[Any]] = {Clear: [], Skipped: [], Failed: []}
    for rule in rules:
        rests_on = checks.under(rule.relies_on)
        untrusted = next((check for check in rests_on if check.status == "failed"), None)
        outcome = _distrusted(rule, untrusted) if untrusted else _outcome(workspace, rule, (options or {}).get(rule.id, {}))
        if isinstance(outcome, list):
            found += [_resting_on(f, rests_on) for f in outcome]
        else:
            others[type(outcome)].append(outcome)
    found.sort(key=lambda f: (-f.finding.saving.expected_us, SEVERITY_ORDER[f.finding.severity], f.finding.rule))
    found = _folded(workspace.get(Replay), [_allowed(f, allow or {}) for f in found])
    found = [_in_true_time(f, workspace.get(Steps), known) for f in found]
    return _report(workspace, timeline, found, others[Clear], others[Skipped], others[Failed])


WEAKER = 0.8
"""What a finding's confidence keeps for each check it rests on that found a weakness."""


def _resting_on(found: Found, checks: tuple[Health, ...]) -> Found:
    """The finding with the checks that it rests on, less sure for each that is degraded."""
    weak = sum(check.status != "ok" for check in checks)
    finding = found.finding
    sure = finding.confidence * WEAKER**weak
    return found._replace(finding=msgspec.structs.replace(finding, checks=tuple(c.check for c in checks), confidence=sure))


def _distrusted(rule: Rule, check: Health) -> Skipped:
    return Skipped(
        rule=rule.id,
        why=f"the trace fails the check {check.check}: {check.detail}",
        record_with=check.record_with or "record again; see the report's health section",
    )


def _outcome(workspace: Workspace, rule: Rule, options: Mapping[str, Any]) -> list[Found] | Clear | Skipped | Failed:
    try:
        return _named(rule.id, workspace.call(rule.function, **options))
    except Exception as error:  # the one place where anything is caught: a broken rule must not cost the others
        return Failed(rule=rule.id, error=f"{type(error).__name__}: {error}")


def _allowed(found: Found, allow: Mapping[str, str]) -> Found:
    """A finding that the team lives with stays in the report, as information, with the reason."""
    reason = allow.get(found.finding.rule)
    if reason is None:
        return found
    return found._replace(finding=msgspec.structs.replace(found.finding, allowed=reason, severity="info"))


def _in_true_time(found: Found, steps: Steps, known: Calibration) -> Found:
    """The saving as a part of the step that was measured without a profiler, where it was."""
    if known.step_us is None or not steps.step_us:
        return found
    ratio, saving = known.step_us / steps.step_us, found.finding.saving
    scaled = msgspec.structs.replace(
        saving, low_us=saving.low_us * ratio, expected_us=saving.expected_us * ratio, high_us=saving.high_us * ratio
    )
    return found._replace(finding=msgspec.structs.replace(found.finding, saving=scaled))


FOLDED_SHARE = 0.15
"""A finding of whose own saving less than this is left once larger ones are fixed is a symptom of theirs."""


def _folded(replay: Replay, found: list[Found]) -> list[Found]:
    """Findings, most saving first, with those that larger ones explain marked and lowered: no gain is counted twice."""
    done: list[Found] = []
    fixed = combine()
    for item in found:
        finding = item.finding
        own = finding.saving.expected_us / replay.step_us if replay.step_us else 0.0
        if finding.allowed or own < LOW_SHARE:
            done.append(item)
            continue
        both = combine(fixed, item.edits.expected)
        left = replay.share(replay.corrected, both) - replay.share(replay.corrected, fixed)
        cause = next((d.finding.rule for d in done if not d.finding.allowed and d.finding.rule != finding.rule), "")
        if cause and left < FOLDED_SHARE * own:
            severity: Severity = "low" if finding.severity in ("high", "medium") else finding.severity
            item = item._replace(finding=msgspec.structs.replace(finding, folded_into=cause, severity=severity))
        fixed = both
        done.append(item)
    return done


def _named(rule_id: str, outcome: Any) -> Any:
    """The outcome with the rule's id filled in."""
    if isinstance(outcome, (Clear, Skipped)):
        return msgspec.structs.replace(outcome, rule=rule_id)
    if not outcome:
        raise TypeError("a rule returns findings, Clear or Skipped")
    return [Found(msgspec.structs.replace(finding, rule=rule_id), edits) for finding, edits in outcome]


def _report(
    workspace: Workspace, timeline: Timeline, found: list[Found], clear: list[Clear], skipped: list[Skipped], failed: list[Failed]
) -> Report:
    steps = workspace.get(Steps)
    source = timeline.source
    return Report(
        source=SourceInfo(
            path=source.path,
            format=source.format,
            bytes=source.bytes,
            events=source.events,
            recorded=Recorded(
                shapes=source.shapes,
                stacks=source.stacks,
                steps=steps.steps if steps.repeats else 0,
                memory=source.memory,
                syncs=source.syncs,
            ),
        ),
        devices=_devices(timeline),
        window=Window(
            start_us=steps.start_us,
            end_us=steps.end_us,
            steps=steps.steps,
            step_us=steps.step_us,
            basis=steps.basis,
            detail=steps.detail,
        ),
        time=tuple(_device_time(workspace, steps)),
        health=workspace.get(TraceHealth).results,
        headline=headline(workspace, [f for f in found if not f.finding.allowed]),
        findings=tuple(f.finding for f in found),
        clear=tuple(clear),
        skipped=tuple(skipped),
        failed=tuple(failed),
        kernels=workspace.get(KernelTable).rows,
        utilization=workspace.get(Utilization).rows,
        critical_path=workspace.get(CriticalPath).parts,
        breakdown=workspace.get(Breakdown).parts,
        work=workspace.get(StepWork).work,
        advisor=version("trace-advisor"),
    ).with_picture(picture(workspace, [f.finding for f in found]))


def _devices(timeline: Timeline) -> tuple[DeviceInfo, ...]:
    """Devices that did something; all that are described where none did."""
    used = np.unique(timeline.gpu_ops["device"].to_numpy()).tolist()
    devices = [timeline.device(d) for d in used] or list(timeline.devices)
    return tuple(DeviceInfo(id=d.id, name=d.name, sm_count=d.sm_count) for d in devices)


def _device_time(workspace: Workspace, steps: Steps) -> Iterable[DeviceTime]:
    gaps = workspace.get(Gaps)
    for part in workspace.get(Partition).devices:
        idle = float(total(part.idle).sum())
        yield DeviceTime(
            device=part.device,
            window_us=steps.end_us - steps.start_us,
            compute_us=float(total(part.compute).sum()),
            exposed_comm_us=float(total(part.communication).sum()),
            exposed_copy_us=float(total(part.copy).sum()),
            exposed_memset_us=float(total(part.memset).sum()),
            idle_us=idle,
            idle=Idle(**gaps.by_device[part.device]),
        )


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The highest severity among findings, None without any."""
    return min((f.severity for f in findings), key=SEVERITY_ORDER.__getitem__, default=None)
