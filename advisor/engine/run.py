"""Runs rules over a recording and makes one report of what they say. `analyze` is for people; the others for programs that read before."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from advisor.engine.analysis import Analysis
from advisor.engine.evaluate import evaluate
from advisor.engine.rule import Rule, catalog
from advisor.errors import UsageError
from advisor.knowledge.devices import Peaks
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import Timeline
from advisor.report.finding import SEVERITIES, Finding, Severity
from advisor.report.model import Report
from advisor.sources import load, read
from advisor.views.replay.replay import Replay
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.stack import GivenFramework
from advisor.views.workspace import Workspace

GIVEN_BESIDE = ("kernels-joined", "memory-joined", "captures-joined", "annotations-joined", "serving-load")
"""Checks of what was given with --kernels, --memory, --capture and --serving."""

SEVERITY_ORDER = {severity: i for i, severity in enumerate(SEVERITIES)}


def analyze(
    trace: str | os.PathLike[str] | Timeline | Recording,
    *,
    rules: Iterable[Rule] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    allow: Mapping[str, str] | None = None,
    step_ms: float | None = None,
    devices: Sequence[Peaks] = (),
) -> Analysis:
    """Read a recording (a path, or what was read before) and run rules over it, all of them by default: a report, and its picture.

    Raises TraceError if the trace cannot be read or holds nothing to analyse; options as for `analysis`.
    """
    recording = trace if isinstance(trace, (Timeline, Recording)) else read(trace)
    return analysis(recording, catalog().values() if rules is None else rules, options, allow, step_ms, devices)


def schedule(trace: str | os.PathLike[str] | Timeline) -> Schedule:
    """The step of a trace as a schedule that edits and replays work on, less what recording cost; `schedule(t).graph()` shows it.

    Raises TraceError if the trace cannot be read.
    """
    timeline = trace if isinstance(trace, Timeline) else load(trace)
    return Workspace(timeline).get(Replay).corrected


def report_of(trace: str | os.PathLike[str]) -> Report:
    """The report of every rule over a recording that is read, which does not hold on to the recording. Raises as `analyze`."""
    return analyze(trace).report


def run(
    recording: Recording | Timeline,
    rules: Iterable[Rule],
    options: Mapping[str, Mapping[str, Any]] | None = None,
    allow: Mapping[str, str] | None = None,
    step_ms: float | None = None,
    devices: Sequence[Peaks] = (),
    waits: bool = False,
    framework: GivenFramework | None = None,
) -> Report:
    """The report of `analysis`, which takes the same."""
    return analysis(recording, rules, options, allow, step_ms, devices, waits, framework).report


def analysis(
    recording: Recording | Timeline,
    rules: Iterable[Rule],
    options: Mapping[str, Mapping[str, Any]] | None = None,
    allow: Mapping[str, str] | None = None,
    step_ms: float | None = None,
    devices: Sequence[Peaks] = (),
    waits: bool = False,
    framework: GivenFramework | None = None,
) -> Analysis:
    """Run those of the rules that speak of such a recording. One that raises is reported as failed and the others go on.

    options: keyword options by rule id, over the rules' defaults. allow: by rule id, why its findings are accepted. step_ms: the step time measured without a
    profiler, where the recording does not hold it: everything is in that time. devices: peak rates that the user gave, before those that are known. waits: with
    every call that waits for the GPU. framework: the one that the program is written in, whatever the recording tells.
    """
    if step_ms is not None and not 0 < step_ms < np.inf:
        raise UsageError(f"{step_ms} ms is no step time", "Give the step time in ms, as measured without a profiler.")
    rules, options = list(rules), options or {}
    recording = recording if isinstance(recording, Recording) else Recording("trace", recording.source.path, (recording,))
    if step_ms is not None and recording.kind != "trace":
        raise UsageError(f"a step time does not apply to a recording of kind {recording.kind}", "Leave it out: it is for a trace of a single process.")
    if waits and recording.kind != "trace":
        raise UsageError(f"a recording of kind {recording.kind} lists no waits", "Leave it out: it is for a trace of a single process.")
    if recording.kind == "job":
        from advisor.engine.fleet import reduced
        from advisor.engine.reduce import Judging

        for rule in rules:
            rule.settled(options.get(rule.id, {}))  # what cannot be is refused before ranks are read
        recording = reduced(recording, Judging(tuple(r.id for r in rules if r.id in catalog()), options=options, devices=tuple(devices)))
    made = evaluate(recording, rules, options, allow or {}, step_ms, devices, waits, framework)
    _refuse_another_program(made.report)
    return made


def _refuse_another_program(report: Report) -> None:
    """Raises UsageError if what was given next to the trace, measured kernels or a snapshot, is of another program."""
    other = next((check for check in report.health if check.check in GIVEN_BESIDE and check.status == "failed"), None)
    if other is not None:
        raise UsageError(other.detail, f"Leave it out, or {other.record_with}.")


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The highest severity among findings, None without any."""
    return min((f.severity for f in findings), key=SEVERITY_ORDER.__getitem__, default=None)
