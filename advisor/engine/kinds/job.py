"""Judging a job of many ranks: savings are parts of the job's step, which is what all ranks reach."""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import version
from typing import Literal

import msgspec
import numpy as np

from advisor.engine.grade import Weight
from advisor.engine.outcome import Outcomes
from advisor.engine.rule import Found, Judged
from advisor.errors import Unavailable
from advisor.recording import Recording
from advisor.report.model import (
    LOW_SHARE,
    SEVERITIES,
    DeviceInfo,
    Finding,
    Headline,
    Health,
    Part,
    PartKind,
    Prediction,
    RankRow,
    Recorded,
    Report,
    Saving,
    Slowdown,
    SourceInfo,
    Window,
    Work,
    severity_of,
)
from advisor.views.ranks import what_if
from advisor.views.ranks.drawn import rank_steps, wait_rows, worst
from advisor.views.ranks.edits import JobEdit, Several
from advisor.views.ranks.job import Job, RankSummaries, common
from advisor.views.ranks.links import collective_rows
from advisor.views.ranks.replay import MAX_ERROR
from advisor.views.workspace import Workspace


def health(workspace: Workspace) -> tuple[Health, ...]:
    """Whether the ranks can be held against each other, and what single ranks' traces lack."""
    job, summaries = workspace.get(Job), workspace.get(RankSummaries)
    checks = [Health(check="ranks-matched", status=job.matching.status, detail=job.matching.detail, touches=("ranks",))]
    try:
        error = job.replay.error
        status: Literal["ok", "degraded"] = "ok" if error <= MAX_ERROR else "degraded"
        checks.append(Health(check="job-replay", status=status, detail=f"the unedited replay is {error:.1%} from the recorded step", touches=("ranks",)))
    except Unavailable as missing:
        checks.append(Health(check="job-replay", status="degraded", detail=missing.message, touches=("ranks",), record_with=missing.hint))
    if summaries.unread or summaries.notes:
        said = [*(f"{u.label} could not be read: {u.why}" for u in summaries.unread[:8]), *summaries.notes[:8]]
        checks.append(Health(check="ranks-read", status="degraded", detail="; ".join(said), touches=("ranks",)))
    return (*checks, *_of_ranks(job))


def _of_ranks(job: Job) -> list[Health]:
    """What ranks' own checks found, each said once."""
    worst: dict[str, Health] = {}
    ranks: dict[str, list[int]] = defaultdict(list)
    for one in job.ranks:
        for check in one.facts.health:
            ranks[check.check].append(one.rank)
            if check.check not in worst or check.status == "failed":
                worst[check.check] = check
    return [msgspec.structs.replace(check, detail=f"{common(ranks[name], job.numbers)}: {check.detail}") for name, check in worst.items()]


ABOUT_RANKS = ("exposed-communication", "missed-overlap")
"""Rules of one rank whose question the job answers with all ranks at hand."""

HEARD = 0.5
"""A finding of single ranks is the job's where at least this share of them has it: the others wait for those, or are waited for."""


def weigh(workspace: Workspace, found: Found) -> Weight:
    """The edits replayed on all ranks, as a part of the job's recorded step."""
    job = workspace.get(Job)
    if found.edits is not None:
        saving = job.replay.saving(found.edits, found.removes, found.at_most_us)
    elif isinstance(found.saving, Saving):
        saving = found.saving
    else:
        raise TypeError("a finding of a job has edits, or says what it saves")
    return Weight(saving, job.step_us)


def settle(workspace: Workspace, found: list[Judged]) -> list[Judged]:
    """The job's own findings first, most saving first; then what its ranks' traces show by themselves, each said once."""
    job = workspace.get(Job)
    found = sorted(found, key=lambda f: (SEVERITIES.index(f.finding.severity), -f.finding.saving.expected, f.finding.rule))
    found = _folded(job, found)
    return found + [Judged(f, None, False) for f in _shared(job, [f.finding for f in found])]


LEFT = 0.15
"""A finding of whose own saving less than this is left once larger ones are fixed is a symptom of theirs."""


def _folded(job: Job, found: list[Judged]) -> list[Judged]:
    done: list[Judged] = []
    fixed: tuple[JobEdit, ...] = ()
    for item in found:
        finding, edit = item.finding, item.edits.expected if item.edits else None
        share = finding.saving.expected / job.step_us if job.step_us else 0.0
        if not isinstance(edit, JobEdit) or finding.allowed or share < LOW_SHARE:
            done.append(item)
            continue
        replay = job.replay
        both = (*fixed, edit)
        left = replay.share(replay.corrected, Several(both)) - replay.share(replay.corrected, Several(fixed))
        cause = next((d.finding.rule for d in done if not d.finding.allowed and d.finding.rule != finding.rule), "")
        if cause and left < LEFT * share:
            severity = "low" if finding.severity in ("high", "medium") else finding.severity
            item = item._replace(finding=msgspec.structs.replace(finding, folded_into=cause, severity=severity))
        elif item.counted:
            fixed = both
        done.append(item)
    return done


def _shared(job: Job, own: list[Finding]) -> list[Finding]:
    """Findings of ranks, one a rule. What it gains a job is no more than the rank that gains least, and is said so."""
    by_rule: dict[str, list[tuple[int, Finding, float]]] = defaultdict(list)
    for one in job.ranks:
        step = one.facts.step_us
        for finding in one.facts.findings:
            if isinstance(finding.saving, Saving) and finding.rule not in ABOUT_RANKS and step > 0:
                by_rule[finding.rule].append((one.rank, finding, max(finding.saving.expected_us, 0.0) / step))
    said = {f.rule for f in own}
    culprits = {f.ranks[0]: f.rule for f in own if f.ranks and f.severity in ("high", "medium") and len(f.ranks) == 1}
    made = []
    for rule, items in by_rule.items():
        if rule in said:
            continue
        items.sort(key=lambda item: item[2])
        ranks = tuple(sorted(rank for rank, _, _ in items))
        _, finding, least = items[0]
        everywhere = len(ranks) == len(job.ranks)
        # Ranks that wait for others gain nothing by themselves; only what every rank would gain is the job's.
        waiting = max(job.totals[:, -1].min() / job.step_us, 0.0) if job.step_us else 0.0
        share = least if everywhere else 0.0
        saving = Saving(
            0.0, share * job.step_us, max(share, items[-1][2] if len(ranks) >= HEARD * len(job.ranks) else share) * job.step_us,
            "bound", finding.saving.removes if isinstance(finding.saving, Saving) else "",
        )  # fmt: skip
        severity = severity_of(saving, job.step_us)
        blamed = next((culprits[r] for r in ranks if r in culprits), "")
        made.append(
            msgspec.structs.replace(
                finding,
                summary=_led(f"{common(ranks, job.numbers).capitalize()}: ", finding.summary),
                severity="low" if blamed and SEVERITIES.index(severity) < SEVERITIES.index("low") else severity,
                saving=saving,
                confidence=finding.confidence * (1.0 if everywhere and waiting < LOW_SHARE else 0.8),
                ranks=ranks,
                folded_into=blamed,
                edits=(),
            )
        )
    made.sort(key=lambda f: (SEVERITIES.index(f.severity), -f.saving.expected, f.rule))
    return made


def _led(lead: str, text: str) -> str:
    whole = lead + text
    return whole if len(whole) <= 240 else whole[:239] + "…"


def report(workspace: Workspace, recording: Recording, outcomes: Outcomes) -> Report:
    """The report of a job."""
    job, summaries = workspace.get(Job), workspace.get(RankSummaries)
    facts = [s.facts for s in job.ranks]
    first = facts[0]
    devices = {(f.device, sms): None for f in facts for _, sms in f.devices}
    counted = [f for f in outcomes.found if f.counted and not f.finding.allowed and not f.finding.folded_into]
    rows = _rows(job)
    return Report(
        advisor=version("trace-advisor"),
        kind="job",
        source=SourceInfo(
            path=recording.path,
            format=first.format,
            bytes=sum(f.bytes for f in facts),
            events=sum(f.events for f in facts),
            recorded=Recorded(shapes=all(f.shapes for f in facts), stacks=all(f.stacks for f in facts), steps=job.steps),
        ),
        devices=tuple(DeviceInfo(id=i, name=name, sm_count=sms) for i, (name, sms) in enumerate(devices)),
        window=Window(
            start_us=0.0,
            end_us=job.step_us * job.steps,
            steps=job.steps,
            step_us=job.step_us,
            basis=first.basis,  # type: ignore[arg-type]
            detail=f"the mean of {len(job.ranks)} ranks' steps",
        ),
        time=None,
        health=health(workspace),
        headline=_headline(job, counted),
        findings=tuple(f.finding for f in outcomes.found),
        clear=tuple(outcomes.clear),
        skipped=tuple(outcomes.skipped),
        failed=tuple(outcomes.failed),
        breakdown=_breakdown(rows),
        work=Work(kernels=sum(f.kernels for f in facts), kernel_us=sum(row.compute_us for row in rows)),
        ranks=(*rows, *(RankRow(rank=-1, step_us=0.0, compute_us=0.0, failed=f"{u.label}: {u.why}") for u in summaries.unread)),
        matching=job.matching,
        collectives=collective_rows(job),
        waits=wait_rows(job) if job.matched.proved else (),
        worst=worst(job),
        slowdown=_slowdown(job),
    )


def _rows(job: Job) -> list[RankRow]:
    compute, copy, inputs, communication = (job.part(p) for p in ("compute", "copy", "data-loading", "communication"))
    host = job.part("host") + job.part("launch") + job.part("sync")
    moved = np.maximum(communication, 0.0)
    transfers = job.by_rank(job.matched.transfer_us[job.matched.collective])
    share = np.divide(job.waits_us, np.maximum(job.waits_us + transfers, 1e-9))
    wait = moved * np.clip(share, 0.0, 1.0)
    rows, steps = [], rank_steps(job)
    for at, one in enumerate(job.ranks):
        step = float(job.totals[at].sum())
        known = compute[at] + copy[at] + inputs[at] + moved[at] + host[at]
        rows.append(
            RankRow(
                rank=one.rank, host=one.facts.host, step_us=step, compute_us=float(compute[at]), copy_us=float(copy[at]),
                wait_us=float(wait[at]), transfer_us=float(moved[at] - wait[at]), input_us=float(inputs[at]), host_us=float(host[at]),
                other_us=max(step - float(known), 0.0), lateness_us=float(job.lateness_us[at]), by_step=steps[at], trace=one.facts.label,
            )
        )  # fmt: skip
    return rows


def _slowdown(job: Job) -> Slowdown | None:
    try:
        return what_if.of_job(job)
    except Unavailable:
        return None


def _breakdown(rows: list[RankRow]) -> tuple[Part, ...]:
    """The mean rank's step in parts: they sum to the job's step."""
    named: tuple[tuple[PartKind, str, str], ...] = (
        ("compute", "compute", "compute_us"), ("copy", "copy", "copy_us"), ("communication", "transfer", "transfer_us"), ("idle", "wait", "wait_us"),
        ("idle", "data_loading", "input_us"), ("idle", "host", "host_us"), ("idle", "unknown", "other_us"),
    )  # fmt: skip
    return tuple(Part(kind=kind, name=name, us=float(np.mean([getattr(row, field) for row in rows]))) for kind, name, field in named)


def _headline(job: Job, found: list[Judged]) -> Headline:
    own = [f for f in found if f.edits is not None]
    try:
        replay = job.replay
    except Unavailable as missing:
        return Headline(
            bottleneck="unmatched", summary="The ranks' collectives cannot be matched: who waits for whom is not known.", step_us=job.step_us,
            judged="partly", judged_why=missing.message,
        )  # fmt: skip
    edits = [f.edits.expected for f in own if f.edits and isinstance(f.edits.expected, JobEdit)]
    share = replay.share(replay.corrected, Several(tuple(edits))) if edits else 0.0
    # A rule that replays by itself says what it saves and has no edit to combine: together they gain no less than it alone.
    after = min(job.step_us * (1 - share), *(job.step_us - f.finding.saving.expected for f in found if f.finding.shortens), job.step_us)
    width = sum(f.finding.saving.high - f.finding.saving.low for f in found if f.finding.shortens) / 2
    predicted = Prediction(low=max(0.0, after - width), expected=after, high=min(job.step_us, after + width))
    wait = float(job.part("communication").mean()) / job.step_us if job.step_us else 0.0
    top = found[0].finding if found else None
    if top and top.severity in ("high", "medium"):
        return Headline(bottleneck=top.rule, summary=top.summary, step_us=job.step_us, predicted_step_us=predicted)
    compute = float(job.part("compute").mean()) / job.step_us if job.step_us else 0.0
    summary = f"The ranks keep step: they compute for {compute:.0%} of it and wait for each other or for data between them for {wait:.0%}."
    return Headline(bottleneck="balanced", summary=summary, step_us=job.step_us, predicted_step_us=predicted)
