"""A check before anything is printed: the parts of a report must not contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from advisor.engine.folding import SURE
from advisor.knowledge.shares import CONSIDERABLE, LITTLE, MOST, WELL_USED
from advisor.report.finding import SEVERITIES, BytesSaved, Finding
from advisor.report.model import DEVICE_BOUND, UNKNOWN, Report
from advisor.report.recording import Health
from advisor.report.step import HOST_LINKS
from advisor.report.wording import judgements

HOST_BOUND = ("launch-bound", "host-bound", "data-bound", "allocator-bound")
"""Bottlenecks that a faster device leaves as they are."""

RESOURCES = {"copy-bound": "exposed_copy_us", "communication-bound": "exposed_comm_us"}

PACED, IDLE = WELL_USED, CONSIDERABLE
"""A critical path of which more than this is the host's, on a device that idles for a quarter: the host bounds it."""

WORKING = LITTLE
"""Communication that overlaps nothing for a tenth of the step is no work to praise."""

_SPEAK_AGAINST = {
    "gpu-busy": ("launch-gap", "exposed-communication"),
    "tensor-cores": ("precision",),
    "mixed-precision": ("precision",),
    "synchronisation": ("sync-stall",),
    "copies": ("memcpy",),
    "allocation": ("allocator",),
    "communication": ("exposed-communication", "missed-overlap"),
    "data-loading": ("data-loading",),
    "fused": ("unfused-elementwise", "unfused-attention", "unfused-norm"),
    "batch-size": ("low-arithmetic-intensity",),
}
"""Answers that are no good news while any of these rules has a finding of medium or more."""


def contradictions(report: Report) -> tuple[str, ...]:
    """What in the report contradicts what else in it, each in a sentence; empty if all of it holds together."""
    checks = {"trace": _CHECKS, "job": _OF_JOBS}.get(report.kind, ())
    return tuple(message for check in checks for message in check(report))


def consistent(report: Report) -> Report:
    """The report as it is if it holds together. Else one that says so: judged in part, with the contradictions among the checks, and
    without an answer that is praised."""
    found = contradictions(report)
    if not found:
        return report
    head = report.headline
    why = judgements.contradictions(found)
    judged = head if head.judged == "no" else msgspec.structs.replace(head, judged="partly", judged_why=why, judged_reason="contradiction")
    row = Health(check="consistency", status="degraded", detail="; ".join(found), record_with="report this, with the trace if you can", reason="disagreement")
    answers = tuple(msgspec.structs.replace(answer, good=None) for answer in report.checklist)
    return msgspec.structs.replace(report, headline=judged, health=(*report.health, row), checklist=answers)


def _bound(report: Report) -> Iterator[str]:
    time = max(report.time or (), key=lambda t: t.window_us - t.idle_us, default=None)
    name = report.headline.bottleneck
    if name == "cpu-only":
        if report.kernels:
            yield "the headline reports no GPU work, but the kernel table has kernels"
        return
    if time is None or time.window_us <= 0 or name in ("start-up", UNKNOWN):
        return
    # The headline speaks of the step as it runs without a profiler: what recording added is no idleness of the program.
    added = min(report.window.recording_us * report.window.steps, time.idle_us) if report.window else 0.0
    shares = {
        "compute_us": time.compute_us, "exposed_comm_us": time.exposed_comm_us,
        "exposed_copy_us": time.exposed_copy_us + time.exposed_memset_us, "idle_us": time.idle_us - added,
    }  # fmt: skip
    window = time.window_us - added
    mine = RESOURCES.get(name, "compute_us" if name in DEVICE_BOUND else "idle_us")
    largest = max(shares, key=shares.__getitem__)
    paced = _host_share(report) > 0.5 and time.idle_us >= IDLE * time.window_us and mine == "idle_us"
    if shares[mine] < shares[largest] - 0.05 * window and not paced:
        yield f"the headline says {name}, but {largest.removesuffix('_us').replace('_', ' ')} takes more of the step"
    # Where recording may have made the idle time, the headline says so and the report is judged in part.
    if report.headline.judged != "yes":
        return
    # On a device that hardly idles the host takes about as long, and the page says that.
    if name in DEVICE_BOUND and _host_share(report) > PACED and shares["idle_us"] >= IDLE * window:
        yield f"the headline says {name}, but the CPU holds {_host_share(report):.0%} of the critical path"
    if name in HOST_BOUND and (device := _path_share(report, ("kernel", "copy"))) > PACED:
        yield f"the headline says {name}, but the GPU holds {device:.0%} of the critical path"


def _host_share(report: Report) -> float:
    return _path_share(report, HOST_LINKS)


def _path_share(report: Report, links: Iterable[str]) -> float:
    return sum(part.share for part in report.critical_path if part.link in {*links})


def _silence(report: Report) -> Iterator[str]:
    """One resource holds most of the step, and nobody speaks of it although they could have."""
    time = max(report.time or (), key=lambda t: t.window_us - t.idle_us, default=None)
    if time is None or time.window_us <= 0 or report.headline.judged != "yes" or _asked_for_few(report):
        return
    said = {f.rule for f in report.findings}
    if time.exposed_comm_us > MOST * time.window_us and not said & {"exposed-communication", "missed-overlap", "load-imbalance"}:
        yield "communication takes most of the step, but no finding reports it"
    well_used = any(c.rule == "dominant-resource" and c.reason == "well-used" for c in report.clear)
    if time.exposed_copy_us > MOST * time.window_us and not said & {"memcpy", "dominant-resource", "missed-overlap"} and not well_used:
        yield "copies take most of the step, but no finding reports them"


def _asked_for_few(report: Report) -> bool:
    """Whether only some rules were run: then others' silence says nothing."""
    ran = {r.rule for rows in (report.findings, report.clear, report.skipped, report.failed) for r in rows}
    return not ran >= {"exposed-communication", "dominant-resource"}


def _praise(report: Report) -> Iterator[str]:
    loud = {f.rule for f in report.findings if f.loud and not (f.allowed or isinstance(f.saving, BytesSaved))}
    time = max(report.time or (), key=lambda t: t.window_us - t.idle_us, default=None)
    for answer in report.checklist:
        against = loud & {*_SPEAK_AGAINST.get(answer.id, ())}
        if answer.good and against:
            yield f"{answer.question} is answered as good, but {', '.join(sorted(against))} has a finding"
        if answer.good and answer.id == "gpu-busy" and time and time.exposed_comm_us >= WORKING * time.window_us:
            yield "the GPU is called busy, but it waits in communication"
        if answer.good and answer.id == "easy-wins" and loud - {f.rule for f in report.findings if f.folded_into}:
            yield "no easy wins are reported, but findings are"


def _order(report: Report) -> Iterator[str]:
    ranks = [SEVERITIES.index(f.severity) for f in report.findings]
    if ranks != sorted(ranks):
        yield "a finding is listed above a more severe one"
    by_rule: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    for finding in report.findings:
        if not finding.folded_into:
            continue
        causes = by_rule.get(finding.folded_into, [])
        if not any(c.shortens and c.confidence >= SURE and not (c.allowed or c.folded_into) for c in causes):
            yield f"{finding.rule} is folded into {finding.folded_into}, which is not reported"


def _possible(report: Report) -> Iterator[str]:
    for finding in report.findings:
        if finding.status == "possible" and finding.loud:
            yield f"{finding.rule} is unconfirmed but its severity is {finding.severity}"


def _balance(report: Report) -> Iterator[str]:
    """A job with ranks that mostly wait, for each other or for their hosts, is not balanced."""
    named: dict[str, float] = {}
    for part in report.breakdown:
        kind = "communication" if part.name == "wait" else part.name if part.kind == "idle" else part.kind
        named[kind] = named.get(kind, 0.0) + part.us
    largest = max(named, key=named.__getitem__, default="compute")
    if report.headline.bottleneck == "balanced" and largest != "compute":
        yield f"the headline says balanced, but {largest} takes more of the step than compute"


def _gain(report: Report) -> Iterator[str]:
    after, step = report.headline.predicted_step_us, report.step_us
    if after is None or step <= 0:
        return
    if not 0 <= after.expected <= step * (1 + 1e-6):
        yield "the combined estimate is negative or longer than the step"
    if after.expected < step * (1 - 1e-6) and not any(f.shortens for f in report.findings):
        yield "the headline promises a shorter step, but no finding shortens it"
    most = sum(f.saving.high for f in report.findings if f.shortens)
    if step - after.expected > most + 1e-6 * step:
        yield "the headline promises more than all findings together can gain"


def _trust(report: Report) -> Iterator[str]:
    failed = {check.check for check in report.health if check.status == "failed"}
    if failed and report.headline.judged == "yes":
        yield f"the report counts as fully judged, but {', '.join(sorted(failed))} failed"
    for finding in report.findings:
        if failed & {*finding.checks}:
            yield f"{finding.rule} relies on {', '.join(sorted(failed & {*finding.checks}))}, which failed"
    if report.headline.judged != "no" and report.headline.bottleneck == "cpu-only":
        yield "the report gives a verdict although there is no GPU work"


_CHECKS = (_bound, _silence, _praise, _order, _possible, _gain, _trust)
_OF_JOBS = (_possible, _balance)
