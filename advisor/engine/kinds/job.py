"""Judging a job of many ranks: savings are parts of the job's step, which is what all ranks reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from advisor.engine.consistency import consistent
from advisor.engine.folding import FOLDED_SHARE, at_most_low
from advisor.engine.grade import Weight, in_true_time
from advisor.engine.outcome import Outcomes, as_told
from advisor.engine.rule import Found, Judged
from advisor.engine.served import served_by
from advisor.engine.served_load import load_beside, load_check
from advisor.engine.uncertainty import WHOLE_FILE
from advisor.errors import Unavailable
from advisor.knowledge.how_to_record import RECORD_RANKS
from advisor.knowledge.interval_margins import of_the_gpu
from advisor.knowledge.release import release
from advisor.knowledge.shares import LITTLE, MOST, NEARLY_ALL
from advisor.recordings.recording import Recording
from advisor.recordings.served_load import LoadBeside
from advisor.report.finding import LOW_SHARE, SEVERITIES, SUMMARY_CHARACTERS, Clear, Failed, Finding, Saving, severity_of
from advisor.report.model import Headline, Report
from advisor.report.numbers import counted, percent, whole_clauses
from advisor.report.ranks import ExpertBalance, ExpertRank, RankRow, Slowdown
from advisor.report.recording import LOOK_AT_EACH, DeviceInfo, Health, Prediction, Recorded, SourceInfo, UnseenWork, Window
from advisor.report.serving import Serving
from advisor.report.step import Part, PartKind, Work
from advisor.report.wording.checks import tolerated
from advisor.report.wording.period import THE_STEP
from advisor.sources.ranks import OF_ONE_EXPORT
from advisor.views.ranks import what_if
from advisor.views.ranks.drawn import rank_steps, wait_rows, worst
from advisor.views.ranks.edits import HOST_PARTS, FasterHost, JobEdit, JobEdits, LessComputing, Several
from advisor.views.ranks.experts import Experts
from advisor.views.ranks.job import Job, RankSummaries, common
from advisor.views.ranks.links import collective_rows
from advisor.views.replay.replay import MAX_ERROR
from advisor.views.workspace import Workspace


def health(workspace: Workspace) -> tuple[Health, ...]:
    """Whether the ranks can be held against each other, and what single ranks' traces lack."""
    job, summaries = workspace.get(Job), workspace.get(RankSummaries)
    checks = [
        Health(
            check="ranks-matched",
            status=job.matching.status,
            detail=job.matching.detail,
            touches=("ranks",),
            record_with=_no_job(job, summaries),
            reason="within-threshold" if job.matching.status == "ok" else "disagreement",
        )
    ]
    try:
        error = job.replay.error
        status: Literal["ok", "degraded"] = "ok" if error <= MAX_ERROR else "degraded"
        checks.append(
            Health(
                check="job-replay",
                status=status,
                detail=f"the replay differs from the recorded step by {percent(error, MAX_ERROR)} ({tolerated(MAX_ERROR)})",
                touches=("ranks",),
                reason="within-threshold" if error <= MAX_ERROR else "beyond-threshold",
                measured=error,
                threshold=MAX_ERROR,
                unit="share",
            )
        )
    except Unavailable as missing:
        checks.append(
            Health(
                check="job-replay",
                status="degraded",
                detail=missing.message,
                touches=("ranks",),
                record_with=missing.hint,
                missing=missing.missing,
                reason="not-recorded",
            )
        )
    if summaries.unread or summaries.notes:
        said = [*(f"{u.label} could not be read: {u.why}" for u in summaries.unread[:8]), *summaries.notes[:8]]
        checks.append(Health(check="ranks-read", status="degraded", detail="; ".join(said), touches=("ranks",), reason="other-recording"))
    if summaries.chosen:
        checks.append(Health(check="latest-recording", status="ok", detail=summaries.chosen, touches=(), record_with=LOOK_AT_EACH, reason="other-recording"))
    loaded = (load_check(serving.load if (serving := _served(workspace)) else None),) if workspace.can_build(load_beside) else ()
    return (*checks, *loaded, *_of_ranks(job))


def _served(workspace: Workspace) -> Serving | None:
    return served_by(workspace.get(Job), workspace.get(LoadBeside) if workspace.can_build(load_beside) else None)


def _no_job(job: Job, summaries: RankSummaries) -> str:
    """Advice for ranks that share no collective with others: they may be several programs. Ranks of a single export are always of the same run."""
    alone = bool(job.unmatched_ranks) or not job.matched.proved
    return f"if these are not ranks of the same job, {LOOK_AT_EACH}" if alone and OF_ONE_EXPORT not in summaries.notes else ""


MEASURE_RANKS = "advisor record on every rank: it also times steps without the profiler"


def _of_ranks(job: Job) -> list[Health]:
    """What ranks' own checks found, each said once, in the words of the first rank of those that it is worst for."""
    found: dict[str, list[tuple[int, Health]]] = defaultdict(list)
    for one in job.ranks:
        for check in one.facts.health:
            found[check.check].append((one.rank, check))
    # Stages of a pipeline run kernels of their own: one rank that has those that were measured is enough.
    if len(found.get("kernels-joined", ())) < len(job.ranks):
        found.pop("kernels-joined", None)
    told = []
    for rows in found.values():
        rank, worst = next((row for row in rows if row[1].status == "failed"), rows[0])
        alike = len({check.detail for _, check in rows}) == 1
        whose = f"{common([rank for rank, _ in rows], job.numbers)}{'' if alike else f'; on rank {rank}'}"
        # A step time that is given is one process's.
        hint = MEASURE_RANKS if worst.missing == "step-time" else worst.record_with
        told.append(msgspec.structs.replace(worst, detail=f"{whose}: {worst.detail}", record_with=hint))
    return told


ABOUT_RANKS = ("exposed-communication", "missed-overlap")
"""Rules about single ranks that the job replaces, since it knows all ranks."""

HEARD = MOST
"""A finding of single ranks becomes the job's if at least this share of ranks has it."""


def weigh(workspace: Workspace, found: Found) -> Weight:
    """The edits replayed on all ranks, as a part of the job's recorded step."""
    job = workspace.get(Job)
    most = inf
    if isinstance(found.edits, JobEdits):
        saving = job.replay.saving(found.edits, found.removes, found.at_most_us)
        most = min(job.replay.most_saved(found.edits.high) * job.step_us, found.at_most_us)
    elif isinstance(found.saving, Saving):
        saving = found.saving
    else:
        raise TypeError("a finding of a job has edits, or says what it saves")
    return Weight(saving, job.step_us, lost=most)


def settle(workspace: Workspace, found: list[Judged]) -> list[Judged]:
    """The job's own findings first, most saving first. Then findings of single ranks, each once."""
    job = workspace.get(Job)
    found = [_of_recording(job, _of_short(job, _of_transfers(job, f))) for f in found]
    found = sorted(found, key=lambda f: (SEVERITIES.index(f.finding.severity), -f.finding.saving.expected, f.finding.rule))
    found = [in_true_time(f, job.true_step) for f in _folded(job, found)]
    return found + [Judged(f, None) for f in _shared(job, [f.finding for f in found])]


OF_TRANSFERS = ("exposed-communication", "missed-overlap", "slow-link")
"""Rules that take for transfer what ranks spend in a collective once the last of those that are here has come."""


def _unseen(job: Job) -> str:
    """Why missing ranks, or ranks without data of their part, leave findings open. "" if there are none, or if the others spend little time in collectives."""
    rows = [row for row in _rows(job) if row.rank not in job.unmatched_ranks]
    share = sum(row.transfer_us for row in rows) / max(sum(row.step_us for row in rows), 1e-9)
    if not (job.missing or job.unmatched_ranks) or share < MUCH:
        return ""
    missing = job.world_size - len({number for number in job.numbers if number >= 0})
    without = [f"no trace of {missing} of {job.world_size} ranks"] if job.missing else []
    without += [f"no collective that {common(job.unmatched_ranks, job.numbers)} shared with the others"] if job.unmatched_ranks else []
    return f"{' and '.join(without)}: the {percent(share)} of the step that counts as transfer may be waiting for them"


def _of_transfers(job: Job, found: Judged) -> Judged:
    """The finding; unconfirmed if its transfers may be waits for missing ranks."""
    if found.finding.rule not in OF_TRANSFERS or not (why := _unseen(job)):
        return found
    return _only_possible(found, why, ALL_RANKS)


def _of_short(job: Job, found: Judged) -> Judged:
    """The finding; unconfirmed if the blamed rank recorded less than others, which makes it look slower or faster than it is."""
    blamed = found.finding.ranks
    of = next((one for one in job.ranks if blamed == (one.rank,)), None)
    if of is None or found.finding.status == "possible":
        return found
    if any(check.check == "complete-file" and check.status == "failed" for check in of.facts.health):
        return _only_possible(found, f"the file of rank {of.rank} is truncated", WHOLE_FILE)
    steps, usual = of.facts.steps, int(np.median([one.facts.steps for one in job.ranks if one is not of] or [0]))
    if steps < FEWER * usual:
        return _only_possible(found, f"rank {of.rank} recorded {counted(steps, 'step')}, and others {usual}", RECORD_RANKS.text)
    return found


def _of_recording(job: Job, found: Judged) -> Judged:
    """The finding; unconfirmed if little of a host's lateness is left without profiler overhead. The rest may be overhead too, as the headline says of
    such a rank.
    """
    finding = found.finding
    late = {job.numbers[at] for at in _recorded_late(job)}
    if finding.loud or finding.status == "possible" or finding.cause != "host" or not late & {*finding.ranks[:1]}:
        return found
    return _only_possible(found, "", TIMED)


def _only_possible(found: Judged, why: str, decide_with: str) -> Judged:
    """The finding as a possible one, which may gain nothing."""
    finding, saving = found.finding, found.finding.saving
    if isinstance(saving, Saving):
        saving = msgspec.structs.replace(saving, low_us=0.0)
    unsure = msgspec.structs.replace(finding, status="possible", severity=at_most_low(finding), saving=saving, possible_why=why, decide_with=decide_with)
    return found._replace(finding=unsure)


ALL_RANKS = "advisor analyze DIRECTORY, with the traces of all ranks in it"


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
        # What is only possible explains nothing away.
        sure = (d.finding for d in done if d.finding.status == "found" and not d.finding.allowed)
        cause = next((f.rule for f in sure if f.rule != finding.rule), "")
        if cause and left < FOLDED_SHARE * share:
            item = item._replace(finding=msgspec.structs.replace(finding, folded_into=cause, severity=at_most_low(finding)))
        elif item.counted and finding.status == "found":
            fixed = both
        done.append(item)
    return done


class _Shown(NamedTuple):
    """A finding of one rank's trace. share: the expected saving, as a share of that rank's step."""

    rank: int
    finding: Finding
    saving: Saving
    share: float


def _shared(job: Job, own: list[Finding]) -> list[Finding]:
    """Findings of single ranks, at most one per rule: of the rank that the others wait for, else of the rank that gains least. The job gains no more
    than the rank that gains least, and the text says so.
    """
    by_rule: dict[str, list[_Shown]] = defaultdict(list)
    whole = job.true_step.expected_us
    for one in job.ranks:
        step = one.facts.true_step_us.expected
        for finding in one.facts.findings:
            if isinstance(finding.saving, Saving) and finding.rule not in ABOUT_RANKS and step > 0:
                by_rule[finding.rule].append(_Shown(one.rank, finding, finding.saving, max(finding.saving.expected_us, 0.0) / step))
    said = {f.rule for f in own}
    culprits = {f.ranks[0]: f.rule for f in own if f.ranks and f.loud and len(f.ranks) == 1}
    awaited = _awaited(job)
    made = []
    for rule, items in by_rule.items():
        if rule in said:
            continue
        items.sort(key=lambda item: item.share)
        ranks = tuple(sorted(item.rank for item in items))
        told = next((item for item in items if item.rank == awaited), items[0])
        finding = told.finding
        everywhere = len(ranks) == len(job.ranks)
        # Ranks that wait for others gain nothing by themselves; only what every rank would gain is the job's.
        waiting = max(job.totals[:, -1].min() / job.step_us, 0.0) if job.step_us else 0.0
        share = items[0].share if everywhere else 0.0
        most = max(share, items[-1].share if len(ranks) >= HEARD * len(job.ranks) else share)
        if not everywhere and told.rank == awaited and told.saving.per == "step":
            share, most = _gained_by_some(job, items, told)
            if finding.status == "found":
                why = f"the job gains at most the time that others wait for rank {awaited}, {percent(_waited_for(job, awaited))} of the step as recorded"
                finding = msgspec.structs.replace(finding, status="possible", possible_why=why, decide_with=TIMED)
        saving = Saving(0.0, share * whole, most * whole, "bound", told.saving.removes, per=told.saving.per)
        severity = severity_of(saving, whole)
        blamed = next((culprits[r] for r in ranks if r in culprits), "")
        capped = (blamed or finding.status == "possible") and SEVERITIES.index(severity) < SEVERITIES.index("low")
        alike = len({item.finding.summary for item in items}) == 1
        whose = f"{common(ranks, job.numbers).capitalize()}{'' if alike else f'; on rank {told.rank}'}"
        made.append(
            msgspec.structs.replace(
                finding,
                summary=whole_clauses(f"{whose}: {finding.summary}", SUMMARY_CHARACTERS),
                severity="low" if capped else severity,
                saving=saving,
                confidence=finding.confidence * (1.0 if everywhere and waiting < LOW_SHARE else 0.8),
                ranks=ranks,
                folded_into=blamed,
                edits=(),
            )
        )
    made.sort(key=lambda f: (SEVERITIES.index(f.severity), -f.saving.expected, f.rule))
    return made


TIMED = "time the job without the profiler, before and after that change"


def _awaited(job: Job) -> int | None:
    """The rank that the others wait for longest, in collectives or for its messages; None if that is little, or nobody knows it."""
    if not job.matched.proved:
        return None
    rank = job.numbers[int(job.waited_for_us.argmax())]
    return rank if _waited_for(job, rank) >= MUCH else None


def _waited_for(job: Job, rank: int) -> float:
    """Share of the recorded step that the others wait for a rank."""
    return float(job.waited_for_us[job.numbers.index(rank)]) / job.step_us if job.step_us else 0.0


def _gained_by_some(job: Job, items: Sequence[_Shown], awaited: _Shown) -> tuple[float, float]:
    """Shares of the job's step that a fix of a single rank gains. Expected: a replay in which each rank is earlier by its own saving. High: all time
    that the others wait for that rank.
    """
    most = min(awaited.saving.high_us / job.true_step.expected_us, _waited_for(job, awaited.rank))
    saved = {item.rank: max(item.saving.expected_us, 0.0) for item in items}
    us = tuple(saved.get(rank, 0.0) for rank in job.numbers)
    edit = LessComputing(us) if of_the_gpu(awaited.finding.rule) else FasterHost(us, HOST_PARTS)
    try:
        return min(job.replay.share(job.replay.corrected, edit), most), most
    except Unavailable:
        return 0.0, most


def _with_ranks(job: Job, of_job: Outcomes) -> Outcomes:
    """The job's outcomes with those of rules about single ranks. A rule is clear if it is clear on all ranks. A finding of one rank stays next to a
    failure on another.
    """

    def by_rule(name: Literal["clear", "skipped", "failed"]) -> dict[str, list[tuple[int, Any]]]:
        rows: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        for one in job.ranks:
            for item in getattr(one.facts, name):
                rows[item.rule].append((one.rank, item))
        return rows

    def told(rows: list[tuple[int, Any]], text: str) -> str:
        (first, _), ranks = rows[0], [rank for rank, _ in rows]
        alike = len({getattr(item, text) for _, item in rows}) == 1
        return f"{common(ranks, job.numbers)}{'' if alike else f', as rank {first}'}: {getattr(rows[0][1], text)}"

    clear, skipped, failed = by_rule("clear"), by_rule("skipped"), by_rule("failed")
    made = Outcomes(of_job.found, [*of_job.clear], [*of_job.skipped], [*of_job.failed])
    broken = {item.rule for item in of_job.failed}
    made.failed += [Failed(rule=rule, error=told(rows, "error")) for rule, rows in failed.items() if rule not in broken]
    silent = {*skipped} - made.ran
    made.skipped += [msgspec.structs.replace(rows[0][1], why=told(rows, "why")) for rule, rows in skipped.items() if rule in silent]
    quiet = {rule for rule, rows in clear.items() if len(rows) == len(job.ranks)} - made.ran
    made.clear += [Clear(rule=rule, why=told(rows, "why")) for rule, rows in clear.items() if rule in quiet]
    alone = {finding.rule for one in job.ranks for finding in one.facts.findings if finding.rule in ABOUT_RANKS} - made.ran
    # Where those could not look, nobody told it.
    if unheard := next((item for item in of_job.skipped if item.rule == ABOUT_RANKS[0]), None):
        made.skipped += [msgspec.structs.replace(unheard, rule=rule) for rule in sorted(alone)]
    else:
        made.clear += [Clear(rule=rule, why="the rules about the whole job cover it") for rule in sorted(alone)]
    return made


def report(workspace: Workspace, recording: Recording, outcomes: Outcomes) -> Report:
    """The report of a job."""
    job, summaries = workspace.get(Job), workspace.get(RankSummaries)
    outcomes = _with_ranks(job, outcomes)
    facts = [s.facts for s in job.ranks]
    first = facts[0]
    devices = {(f.device, sms): None for f in facts for _, sms in f.devices}
    fixes = [f for f in outcomes.found if f.counted and not f.finding.allowed and not f.finding.folded_into]
    rows = _rows(job)
    parts = _breakdown(rows, job)
    made = Report(
        advisor=release(),
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
            true_step_us=job.true_step.interval,
            recording_us=job.true_step.recording_us,
            true_step_basis=job.true_step.basis,
        ),
        time=None,
        health=health(workspace),
        headline=_headline(job, summaries, fixes, parts),
        findings=as_told(outcomes.found, job.steps, job.step_us),
        clear=tuple(outcomes.clear),
        skipped=tuple(outcomes.skipped),
        failed=tuple(outcomes.failed),
        breakdown=parts,
        work=Work(kernels=sum(f.kernels for f in facts), kernel_us=sum(row.compute_us for row in rows)),
        ranks=(*rows, *(RankRow(rank=-1, step_us=0.0, compute_us=0.0, failed=f"{u.label}: {u.why}") for u in summaries.unread)),
        matching=job.matching,
        collectives=collective_rows(job),
        waits=wait_rows(job) if job.matched.proved else (),
        worst=worst(job),
        slowdown=_slowdown(job),
        unseen=_unseen_work(job),
        serving=_served(workspace),
        experts=_experts(job, workspace.get(Experts)),
    )
    return consistent(made)


def _experts(job: Job, found: Experts) -> ExpertBalance | None:
    if not found.at:
        return None
    rows = [
        ExpertRank(rank=job.numbers[place], us=float(us.mean()), by_step_us=tuple(us.tolist()), received_share=None if np.isnan(share) else float(share))
        for place, us, share in zip(found.at, found.us, found.received, strict=True)
    ]
    return ExpertBalance(ranks=tuple(rows), hottest=rows[found.hottest].rank, hottest_steps=found.hottest_steps, balance=found.balance)


def _unseen_work(job: Job) -> tuple[UnseenWork, ...]:
    """Work that no rank's figures include, summed over ranks by kind, longest first."""
    found: dict[tuple[str, str], UnseenWork] = {}
    for work in (work for one in job.ranks for work in one.facts.unseen):
        before = found.get((work.kind, work.what))
        us = [one.us for one in (before, work) if one and one.us is not None]
        count = work.count + (before.count if before else 0)
        found[work.kind, work.what] = msgspec.structs.replace(work, count=count, us=sum(us) if us else None)
    return tuple(sorted(found.values(), key=lambda work: -work.count))


def _rows(job: Job) -> list[RankRow]:
    compute, copy, inputs, communication = (job.part(p) for p in ("compute", "copy", "data-loading", "communication"))
    host = job.part("host") + job.part("launch") + job.part("sync")
    moved = np.maximum(communication, 0.0)
    wait = job.exposed_waits_us
    rows, steps = [], rank_steps(job)
    for at, one in enumerate(job.ranks):
        step = float(job.totals[at].sum())
        known = compute[at] + copy[at] + inputs[at] + moved[at] + host[at]
        rows.append(
            RankRow(
                rank=one.rank, host=one.facts.host, step_us=step, compute_us=float(compute[at]), copy_us=float(copy[at]),
                wait_us=float(wait[at]), transfer_us=float(moved[at] - wait[at]), input_us=float(inputs[at]), host_us=float(host[at]),
                other_us=max(step - float(known), 0.0), lateness_us=float(job.waited_for_us[at]), by_step=steps[at], trace=one.facts.label,
            )
        )  # fmt: skip
    return rows


def _slowdown(job: Job) -> Slowdown | None:
    try:
        return what_if.of_job(job)
    except Unavailable:
        return None


def _breakdown(rows: list[RankRow], job: Job) -> tuple[Part, ...]:
    """The mean rank's step in parts that sum to the job's true step. Overhead is subtracted from idle time that each rank's host causes, as in the
    replay. The remaining difference is subtracted from waits for ranks that the profiler made late.
    """
    of_ranks = {part: np.array([getattr(row, f"{part}_us") for row in rows]) for part in ("compute", "copy", "transfer", "wait", "input", "host", "other")}
    own, shorter = np.array([s.facts.recording_us for s in job.ranks]), np.full(len(rows), job.true_step.recording_us)
    for part in ("host", "input"):
        gone = np.minimum(own, of_ranks[part])
        of_ranks[part], own, shorter = of_ranks[part] - gone, own - gone, shorter - gone
    # A rank that gains more than the job does waits longer for the others.
    for part in ("wait", "host"):
        gone = np.minimum(shorter, of_ranks[part])
        of_ranks[part], shorter = of_ranks[part] - gone, shorter - gone
    us = {part: float(values.mean()) for part, values in of_ranks.items()}
    scale = job.true_step.expected_us / (sum(us.values()) or 1.0)
    named: tuple[tuple[PartKind, str, str], ...] = (
        ("compute", "compute", "compute"), ("copy", "copy", "copy"), ("communication", "transfer", "transfer"), ("idle", "wait", "wait"),
        ("idle", "data_loading", "input"), ("idle", "host", "host"), ("idle", "unknown", "other"),
    )  # fmt: skip
    return tuple(Part(kind=kind, name=name, us=us[part] * scale) for kind, name, part in named)


def _headline(job: Job, summaries: RankSummaries, found: list[Judged], parts: tuple[Part, ...]) -> Headline:
    step_us = job.true_step.expected_us
    try:
        predicted = _predicted(job, found)
    except Unavailable as missing:
        return Headline(
            bottleneck="unmatched", summary="The ranks' collectives cannot be matched, so waits cannot be assigned to ranks.", step_us=step_us,
            judged="partly", judged_why="; ".join(filter(None, (missing.message, _no_job(job, summaries)))),
        )  # fmt: skip
    top = next((f.finding for f in found if (f.finding.severity == "high" if _of_single_ranks(job, f.finding) else f.finding.loud)), None)
    who = "The ranks recorded" if job.missing or job.unmatched_ranks else "The ranks"
    bottleneck, summary = (top.rule, top.summary) if top else _bound(parts, who, bool(_unseen(job)))
    made = Headline(bottleneck=bottleneck, summary=summary, step_us=step_us, predicted_step_us=predicted)
    unread = summaries.unread
    if len(unread) > len(job.ranks):
        why = f"{len(unread)} of {len(job.ranks) + len(unread)} ranks' traces could not be read: {unread[0].label}: {unread[0].why}"
        return msgspec.structs.replace(made, summary=f"{made.summary} Most ranks' traces could not be read.", judged="partly", judged_why=why)
    if failed := [check for check in _of_ranks(job) if check.status == "failed"]:
        return msgspec.structs.replace(made, judged="partly", judged_why=f"ranks' traces fail {', '.join(check.check for check in failed)}: {failed[0].detail}")
    if unseen := _unseen(job):
        return msgspec.structs.replace(made, judged="partly", judged_why=unseen)
    # A fault of the whole job hides no rank's; what speaks of some ranks says already who is late.
    late = _recorded_late(job) if not top or len(top.ranks) in (0, len(job.ranks)) else []
    if not late:
        return made
    first, *others = ((f"for rank {job.numbers[at]}", percent(float(job.waited_for_us[at]) / job.step_us)) for at in late)
    told = f"wait {first[0]} in collectives for {first[1]} of {THE_STEP}" + "".join(f", {who} for {much}" for who, much in others)
    return msgspec.structs.replace(
        made,
        summary=f"{summary} As recorded, the others {told}; profiler overhead is subtracted.",
        judged="partly",
        judged_why=f"as recorded ranks {told}; the cause may be profiler overhead or a late rank",
    )


def _of_single_ranks(job: Job, finding: Finding) -> bool:
    """Whether ranks show it by themselves: one that gains little says less of the job than what holds most of its step."""
    return any(finding.rule == other.rule for one in job.ranks for other in one.facts.findings)


FOR_THEM = MOST
"""Of all lateness in collectives: ranks with more of it together are those that are waited for (as for straggler)."""

FEWER = NEARLY_ALL
"""Of the steps that are usual in a job: a rank with no more of them shows other figures for that alone."""

MUCH = LITTLE
"""Of the recorded step: hosts that are recorded differ by some hundredths of it from step to step, as even jobs show."""


def _recorded_late(job: Job) -> list[int]:
    """Positions of ranks that the others wait for, latest first, if estimated profiler overhead hides their lateness. At most half of the ranks:
    if most are late for each other, none is named.
    """
    if job.true_step.basis != "estimated" or job.true_step.recording_us <= 0 or not job.lateness_us.any():
        return []
    late = [at for at in np.argsort(-job.lateness_us, kind="stable").tolist() if job.lateness_us[at] >= MUCH * job.step_us]
    few = late[: max((len(job.ranks) - 1) // 2, 1)]
    return few if job.lateness_us[few].sum() >= FOR_THEM * job.lateness_us.sum() else []


def _predicted(job: Job, found: list[Judged]) -> Prediction:
    """The step with every fix. Raises Unavailable if the job cannot be replayed."""
    replay, step = job.replay, job.true_step
    own = [f.edits for f in found if isinstance(f.edits, JobEdits) and f.finding.status == "found"]
    expected = replay.share(replay.corrected, Several(tuple(edits.expected for edits in own))) * step.expected_us if own else 0.0
    # What a rule replays by itself, and what ranks find each in their own trace, has no edit to combine: together all fixes gain no
    # less than any one alone.
    savings = [f.finding.saving for f in found if f.finding.shortens]
    low, alone, high = (max((getattr(saving, end) for saving in savings), default=0.0) for end in ("low", "expected", "high"))
    expected = max(expected, alone)
    most = max(high, expected * high / alone if alone > 0 else 0.0)
    if own:
        # What devices have to do is left, unless ranks' own findings shorten that.
        shorter = sum(f.finding.saving.high for f in found if f.edits is None and f.finding.shortens)
        most = min(most, replay.most_saved(Several(tuple(edits.high for edits in own))) * step.expected_us + shorter)
    most = min(max(most, expected), step.expected_us)
    return Prediction(low=step.expected_us - most, expected=step.expected_us - expected, high=step.expected_us - low)


def _bound(parts: tuple[Part, ...], who: str, unseen: bool = False) -> tuple[str, str]:
    """The largest part of the mean rank's step, if no rank and no link stands out. unseen: whether the waits may be for ranks without a trace, so
    the balance of ranks is unknown.
    """
    us = {part.name: part.us for part in parts}
    total = sum(us.values()) or 1.0
    # Ranks that wait by turns wait for what holds the others up: faster links help only where that is mostly data between them.
    held = {"communication": us["transfer"], "input": us["data_loading"], "host": us["host"]}
    most = max(held, key=held.__getitem__)
    compute, share = us["compute"] / total, held[most] / total
    waits = f"wait for each other or for transfers {(us['transfer'] + us['wait']) / total:.0%}"
    if unseen:
        return "ranks missing", f"{who} compute {compute:.0%} of {THE_STEP} and {waits.replace('each other', 'each other, for ranks that are missing,')}."
    if us["compute"] >= held[most] + us["wait"]:
        return "balanced", f"{who} are balanced: they compute {compute:.0%} of {THE_STEP} and {waits}."
    name, why = {
        "communication": ("communication-bound", ""),
        "input": ("data-bound", f", and for batches {share:.0%}"),
        "host": ("host-bound", f", and for launches or CPU code {share:.0%}"),
    }[most]
    return name, f"{who} compute {compute:.0%} of {THE_STEP}; they {waits}{why}."
