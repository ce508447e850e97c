"""Judging kernels that were measured one by one: savings are shares of a kernel's own time."""

from __future__ import annotations

import msgspec

from advisor.engine.grade import Weight
from advisor.engine.kernel_checklist import NOTHING, kernel_checklist
from advisor.engine.outcome import Outcomes
from advisor.engine.rule import Found, Judged
from advisor.knowledge.how_to_record import counters
from advisor.knowledge.release import release
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.recordings.recording import Recording
from advisor.report.finding import MEDIUM_SHARE, SEVERITIES, SUMMARY_CHARACTERS, Finding, Severity
from advisor.report.kernels import KernelRow
from advisor.report.model import Headline, Report
from advisor.report.numbers import counted, cut, percent
from advisor.report.recording import DeviceInfo, Health, Recorded, SourceInfo
from advisor.report.step import Part, Work
from advisor.views.kernels.checks import QUESTIONS
from advisor.views.kernels.measured import MeasuredKernels
from advisor.views.kernels.table import MeasuredTable
from advisor.views.workspace import Workspace


def health(workspace: Workspace) -> tuple[Health, ...]:
    """Whether the file is whole, and whether the sections that the checks need were collected."""
    profiles, rows = workspace.get(KernelProfiles), workspace.get(MeasuredTable).rows
    whole = Health(
        check="whole-file",
        status="degraded" if profiles.damage else "ok",
        detail=profiles.damage or f"{counted(n := len(profiles.kernels), 'launch', 'launches')} {'was' if n == 1 else 'were'} read",
        touches=("counters",),
        record_with="ncu --set full -o report COMMAND" if profiles.damage else "",
        missing="counters" if profiles.damage else "",
        reason="recording-cut" if profiles.damage else "absent",
    )
    lacking = [{QUESTIONS[c.check][1] for c in row.counted.checks if c.status == "not collected"} - {""} for row in rows if row.counted]
    missing = sorted(set().union(*lacking))
    some = "of some kernels " if any(not sections for sections in lacking) else ""
    page = min((kernel.page for kernel in profiles.kernels), default="")
    absent = "not on this page" if page == "details" else "not collected"
    collected = Health(
        check="sections",
        status="degraded" if missing else "ok",
        detail=f"{some}{absent}: {', '.join(missing)}" if missing else "all counters that the checks need were collected",
        touches=(),
        record_with=counters(missing, page) if missing else "",
        missing="counters" if missing else "",
        reason="not-recorded" if missing else "absent",
        measured=float(len(missing)),
        threshold=0.0,
        unit="count",
    )
    return whole, collected


def weigh(workspace: Workspace, found: Found) -> Weight:
    """A share of the kernel's own time."""
    if found.saving is None:
        raise TypeError("a finding about a measured kernel says what it saves")
    return Weight(found.saving, 1.0)


def settle(workspace: Workspace, found: list[Judged]) -> list[Judged]:
    """Most severe first; among equals what costs most of the time that was measured."""
    whole = not workspace.get(KernelProfiles).damage
    found = [_weighed(f, workspace.get(MeasuredKernels).total_us, whole) for f in found]

    def cost(finding: Finding) -> float:
        return finding.saving.expected * sum(e.dur_us for e in finding.evidence)

    return sorted(found, key=lambda f: (SEVERITIES.index(f.finding.severity), -cost(f.finding), f.finding.rule))


def _weighed(found: Judged, total_us: float, whole: bool) -> Judged:
    """The finding, no more severe than its kernel's share of the measured time lets it be, and that said. How often the program launches each
    is not known, and of a collection of kernels each may be the point, so that a small share makes it medium, not nothing. So does a report
    that is not whole: what it lacks may take all of the time."""
    finding = found.finding
    share = sum(e.dur_us for e in finding.evidence) / total_us if total_us > 0 else 1.0
    if share >= MEDIUM_SHARE:
        most: Severity = "high" if whole else "medium"
        return found._replace(finding=msgspec.structs.replace(finding, severity=max(finding.severity, most, key=SEVERITIES.index)))
    most = "medium" if share >= NOTHING else "low"
    told = f"{finding.summary.rstrip('.')}. The kernel takes {percent(share)} of the measured time."
    severity = max(finding.severity, most, key=SEVERITIES.index)
    return found._replace(finding=msgspec.structs.replace(finding, severity=severity, summary=told if len(told) <= SUMMARY_CHARACTERS else finding.summary))


def report(workspace: Workspace, recording: Recording, outcomes: Outcomes) -> Report:
    """The report: a row and its checks for each kernel, no step and no window."""
    profiles, measured = workspace.get(KernelProfiles), workspace.get(MeasuredKernels)
    rows = workspace.get(MeasuredTable).rows
    found = [f.finding for f in outcomes.found]
    sms = {k.profile.device: k.sm_count for k in measured.kernels}
    return Report(
        kind="kernels",
        source=SourceInfo(
            path=profiles.path,
            format=profiles.format,
            bytes=profiles.bytes,
            events=len(profiles.kernels),
            recorded=Recorded(shapes=False, stacks=False, steps=0),
        ),
        devices=tuple(DeviceInfo(id=d, name=profiles.devices.get(d, ""), sm_count=n) for d, n in sorted(sms.items())),
        window=None,
        time=None,
        health=health(workspace),
        headline=_headline(rows, found, outcomes),
        findings=tuple(found),
        clear=tuple(outcomes.clear),
        skipped=tuple(outcomes.skipped),
        failed=tuple(outcomes.failed),
        kernels=rows,
        breakdown=tuple(Part("compute", row.name, family=row.family, calls=row.calls, us=row.total_us) for row in rows),
        checklist=kernel_checklist(rows),
        work=Work(kernels=sum(row.calls for row in rows), kernel_us=measured.total_us),
        advisor=release(),
    )


def _headline(rows: tuple[KernelRow, ...], found: list[Finding], outcomes: Outcomes) -> Headline:
    shares: dict[str, float] = {}
    for row in rows:
        shares[row.name] = shares.get(row.name, 0.0) + row.share
    names, longest_name = len(shares), max(shares, key=shares.__getitem__)
    # Its launch configurations may be bound by different things: what bounds it for most of its time is the verdict.
    alike = [row for row in rows if row.name == longest_name]
    bounds = {row.limiter: sum(r.total_us for r in alike if r.limiter == row.limiter) for row in alike}
    top = next(row for row in alike if row.limiter == max(bounds, key=bounds.__getitem__))
    timed = shares[longest_name] > 0
    one = names == 1 or timed  # of several without times none stands for the program
    verdict = top.counted.verdict if top.counted and one else ""
    part = f"In {sum(row.limiter == top.limiter for row in alike)} of {len(alike)} launch configurations: " if len(bounds) > 1 and verdict else ""
    faults = len({e.label for f in found if not f.allowed for e in f.evidence})
    several = f"{names} kernels were measured" if names > 1 else "A single kernel was measured"
    if len(rows) > names:
        several += f", in {len(rows)} launch configurations"
    fault = f"{faults} of them {'has a fault' if faults == 1 else 'have faults'}" if names > 1 else "it has a fault"
    longest = (
        "" if names == 1 else f"{cut(top.name, 80)} takes the most time ({shares[longest_name]:.0%}). " if timed else "How long they took was not collected. "
    )
    summary = f"{several}; {fault if faults else _none_found(outcomes)}. {longest}{part}{verdict}"
    looked = len(outcomes.found) + len(outcomes.clear)
    return Headline(
        bottleneck=f"{top.limiter}-bound" if top.limiter and one else "unknown",
        summary=summary.strip(),
        judged="yes" if not outcomes.skipped else "partly" if looked else "no",
        judged_why=""
        if not outcomes.skipped
        else f"{counted(len(outcomes.skipped), 'rule')} could not look: the counters for {'it' if len(outcomes.skipped) == 1 else 'them'} were not collected",
    )


def _none_found(outcomes: Outcomes) -> str:
    """That nothing was found, by as many rules as had what it takes to look."""
    looked, all_of = len(outcomes.clear), len(outcomes.clear) + len(outcomes.skipped)
    if looked == all_of:
        return "no fault was found"
    return f"no fault was found by the {looked} of {all_of} rules that could look" if looked else "no rule could look for faults"
