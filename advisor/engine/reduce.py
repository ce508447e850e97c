"""Reduces a rank's trace to its summary: the work of a worker, wherever it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from advisor.engine.evaluate import evaluate
from advisor.engine.rule import catalog
from advisor.errors import AdvisorError, TraceError
from advisor.knowledge.counts import FINDINGS
from advisor.knowledge.devices import Peaks
from advisor.knowledge.structs import replace
from advisor.recordings.captures import CapturePart
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.recordings.recording import Recording
from advisor.recordings.timeline import Timeline
from advisor.sources import DEFAULT_MAX_BYTES, captures_at, captures_beside, load_stages
from advisor.sources.ranks import RankTrace
from advisor.views.ranks.summary import RankSummary
from advisor.views.workspace import Workspace

KEPT_FINDINGS = FINDINGS
"""Findings per rank that its job examines."""


class Outcome(msgspec.Struct, frozen=True):
    """The result for a rank's trace: its packed summary, with its own page if requested; or the reason for none."""

    summary: bytes = b""
    page: str = ""
    why: str = ""


class Judging(msgspec.Struct, frozen=True):
    """The inputs of a worker that judges a rank. rules: ids, None for all; paths: files with a team's own rules; pages: whether
    to draw each rank's own page; kernels: measured kernels to find in each rank's timeline."""

    rules: tuple[str, ...] | None = None
    paths: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    max_bytes: int = DEFAULT_MAX_BYTES
    pages: bool = False
    devices: tuple[Peaks, ...] = ()
    """Peak rates that the user gave."""
    kernels: KernelProfiles | None = None
    captures: str = ""
    """The folder of graphs' captures, "" for next to each trace."""


def summarize(trace: RankTrace, judging: Judging) -> Outcome:
    """The summary of a rank. Pure: the same trace gives the same bytes wherever it runs. Raises AdvisorError."""
    from advisor import reports

    timeline = trace.timeline or load_stages((trace.path, *trace.stages), max_bytes=judging.max_bytes)
    known = catalog(Path(p) for p in judging.paths)
    chosen = known.values() if judging.rules is None else [known[r] for r in judging.rules]
    measured = () if judging.kernels is None else (judging.kernels,)
    recording = Recording("trace", timeline.source.path, (timeline, *measured, *_captures(trace, timeline, judging)))
    made = evaluate(recording, list(chosen), judging.options, {}, devices=judging.devices)
    report, summary = made.report, _summary(timeline)
    inside = summary.facts.rank
    named = inside if inside >= 0 else trace.named
    facts = msgspec.structs.replace(
        summary.facts,
        rank=-1 if named is None else named,
        label=trace.label,
        host=trace.host,
        run=trace.run,
        rank_from="distributedInfo" if inside >= 0 else "name" if named is not None else "",
        conflict=f"{trace.label} says rank {trace.named} by its name, {inside} inside"
        if 0 <= inside != (trace.named if trace.named is not None else inside)
        else "",
        findings=report.findings[:KEPT_FINDINGS],
        clear=report.clear,
        skipped=report.skipped,
        failed=report.failed,
        health=tuple(check for check in report.health if check.status != "ok"),
        unseen=report.unseen,
        serving=report.serving,
    )
    return Outcome(replace(summary, facts=facts).to_bytes(), reports.formats()["html"].render(made) if judging.pages else "")


def _captures(trace: RankTrace, timeline: Timeline, judging: Judging) -> tuple[CapturePart, ...]:
    """Those of the rank's own graphs, or of the first rank's, which captures the same ops."""
    if judging.captures:
        return captures_at(judging.captures, trace.named if timeline.source.rank is None else timeline.source.rank, max_bytes=judging.max_bytes)
    return captures_beside(trace.path, timeline, max_bytes=judging.max_bytes) if os.path.isfile(trace.path) else ()


def _summary(timeline: Timeline) -> RankSummary:
    """Raises TraceError if there is none, with where the file stops if it was cut: what is missing may lie behind that."""
    try:
        return Workspace(timeline).get(RankSummary)
    except TraceError as error:
        if not timeline.source.cut:
            raise
        raise TraceError(f"{error.message}, as far as it could be read: {timeline.source.cut}", error.hint) from None


def tried(trace: RankTrace, judging: Judging) -> Outcome:
    """`summarize`; for an unreadable trace, a message for the user."""
    try:
        return summarize(trace, judging)
    except AdvisorError as error:
        return Outcome(why=error.message)
