"""Evaluates rules over a complete recording, and makes a report of their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from advisor.engine.analysis import Analysis
from advisor.engine.fitting import fitted, lacks, with_features
from advisor.engine.grade import graded
from advisor.engine.in_words_of import in_words_of
from advisor.engine.kinds import ABSTAINS, Judge, judge
from advisor.engine.outcome import Outcomes
from advisor.engine.rule import LEAST_GAIN, Found, Judged, Rule
from advisor.engine.terms import in_terms, terms, terms_of_device
from advisor.errors import STOPS, Unavailable, UsageError
from advisor.knowledge.devices import Peaks
from advisor.knowledge.shares import MOST
from advisor.knowledge.structs import replace
from advisor.recordings.garbage import uncollected
from advisor.recordings.recording import Recording
from advisor.report.finding import SEVERITIES, BytesSaved, Clear, Failed, Skipped
from advisor.report.host_waits import HostWaits
from advisor.report.model import Report
from advisor.report.numbers import duration
from advisor.report.recording import Health
from advisor.report.wording import outcomes as wording
from advisor.report.wording.period import worded_for
from advisor.views.device_rates import DeviceRates
from advisor.views.memory.attached_snapshot import MemoryBeside
from advisor.views.patterns.compiling import LoggedCompiles
from advisor.views.ranks.job import Job
from advisor.views.ranks.summary import COUNTED
from advisor.views.replay.replay import Replay
from advisor.views.replay.true_step import Calibration, Timed
from advisor.views.replay.wait_table import WaitTable
from advisor.views.trace.program import Program
from advisor.views.trace.stack import Framework, GivenFramework, Stack, as_given
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace, speaks_of

if TYPE_CHECKING:
    from advisor.report.charts import Picture


def with_memory(step: Outcomes, memory: Outcomes) -> Outcomes:
    """Both, severest first, of one severity the step's first.

    Only bytes of the peak are a snapshot's to promise here: what it takes of time, the timeline judges itself.
    """
    timed = [f for f in memory.found if not isinstance(f.finding.saving, BytesSaved)]
    skipped = [Skipped(rule=f.finding.rule, why=wording.covered(f.finding.summary, "allocator"), reason="covered") for f in timed]
    return Outcomes(
        found=sorted([*step.found, *(f for f in memory.found if f not in timed)], key=_severity),
        clear=step.clear + memory.clear,
        skipped=step.skipped + memory.skipped + skipped,
        failed=step.failed + memory.failed,
    )


def _severity(found: Judged) -> int:
    return SEVERITIES.index(found.finding.severity)


@uncollected()
def evaluate(
    recording: Recording,
    rules: Sequence[Rule],
    options: Mapping[str, Mapping[str, Any]],
    allow: Mapping[str, str],
    step_ms: float | None = None,
    devices: Sequence[Peaks] = (),
    waits: bool = False,
    framework: GivenFramework | None = None,
) -> Analysis:
    """What `analysis` says of a recording that holds no traces that are still to be reduced."""
    for rule in rules:
        rule.check()
    settled = {rule.id: rule.settled(options.get(rule.id, {})) for rule in rules}
    measured = () if step_ms is None else (Calibration((step_ms * 1000,)),)
    given = () if framework is None else (framework,)
    workspace = Workspace(*recording.parts, *measured, DeviceRates(tuple(devices)), *given)
    if step_ms is not None:
        _refuse_other_step(workspace.get(Replay).true_step.timed)
    if recording.kind == "job":
        _refuse_strangers(workspace.get(Job))
    with worded_for(steps=_has_steps(workspace)):
        return _analysed(workspace, recording, rules, settled, allow, waits, framework)


def _has_steps(workspace: Workspace) -> bool:
    """Whether a step of the recording repeats; otherwise it is a single window."""
    if workspace.can_build(Steps.build):
        return workspace.get(Steps).repeats
    return not workspace.can_build(Job.build) or workspace.get(Job).ranks[0].facts.basis != "whole"


def _analysed(
    workspace: Workspace,
    recording: Recording,
    rules: Sequence[Rule],
    settled: Mapping[str, dict[str, Any]],
    allow: Mapping[str, str],
    waits: bool,
    framework: GivenFramework | None,
) -> Analysis:
    """The report of a recording, in the words that hold for it."""
    kind = judge(recording.kind)
    outcomes = _outcomes(workspace, kind, rules, settled, allow)
    if workspace.can_build(MemoryBeside.build):
        others = [rule for rule in rules if not workspace.can_build(rule.function)]
        outcomes = with_memory(outcomes, _outcomes(workspace.get(MemoryBeside).workspace, judge("memory"), others, settled, allow))
    if recording.kind in ABSTAINS:
        part, why = ABSTAINS[recording.kind]
        outcomes.skipped += [Skipped(rule=rule.id, why=why, reason="not-supported") for rule in rules if speaks_of(rule.function, part)]
        return Analysis(kind.report(workspace, recording, outcomes), plan=workspace.plan())
    made = kind.report(workspace, recording, outcomes)
    if waits:
        made = msgspec.structs.replace(made, host_waits=_host_waits(workspace))
    if workspace.can_build(LoggedCompiles.build):
        made = msgspec.structs.replace(made, compile_costs=workspace.get(LoggedCompiles).costs)
    made = _in_its_terms(made, workspace, framework)
    return Analysis(made, _drawing(workspace, outcomes.found) if recording.kind == "trace" else None, workspace.plan())


def _drawing(workspace: Workspace, found: list[Judged]) -> Callable[[], Picture]:
    def draw() -> Picture:
        from advisor.views.charts.build import picture  # most reports are never drawn

        return picture(workspace, [f.finding for f in found])

    return draw


def _in_its_terms(made: Report, workspace: Workspace, framework: GivenFramework | None) -> Report:
    """The report in the terms of its program: its framework and its device."""
    program = workspace.get(Program) if workspace.can_build(Program.build) else None
    if program and not program.accelerator.of_cuda:
        made = in_terms(made, terms_of_device(program.accelerator))
    base = program.framework if program else ""
    if made.source.format == "jax" or base == "jax":
        made = in_terms(made, terms("jax", made.source.format))
    elif base == "cuda":
        made = in_terms(made, terms("cuda"))
    if program and program.maker == "amd":
        made = in_terms(made, terms("rocm"))
    return with_features(in_words_of(made, *_frameworks(workspace, program, framework)))


def _frameworks(workspace: Workspace, program: Program | None, given: GivenFramework | None) -> tuple[Sequence[Framework], str]:
    """The frameworks that word the fixes, and the kind of the program; none if the recording does not show them."""
    if program:
        return workspace.get(Stack).likely, program.kind
    if workspace.can_build(Job.build):
        job = workspace.get(Job)
        return as_given(given, job.frameworks) if given else job.frameworks, "training" if job.trains else "inference"
    return as_given(given, ()) if given else (), ""


def _host_waits(workspace: Workspace) -> HostWaits:
    """Every call that waits, or why that is not known."""
    try:
        return workspace.get(WaitTable).waits
    except Unavailable as missing:
        return HostWaits(why=missing.message)


def _refuse_other_step(timed: Timed | None) -> None:
    """Raises UsageError if the step time that was given is of no step that this trace can hold."""
    if timed is None or not (timed.shorter or timed.longer):
        return
    holds = f"kernels run for {duration(timed.working_us)} of it" if timed.shorter else f"it was recorded at {duration(timed.recorded_us)}, with the profiler"
    told = f"--step-ms says {duration(timed.us)}, which this trace's step cannot take: {holds}"
    raise UsageError(told, "Measure the same step as the trace holds, with a synchronize before the clock is read, or leave --step-ms out.")


def _refuse_strangers(job: Job) -> None:
    """Raises UsageError if nothing says that the traces are of one job: no name or number of a rank, and no collective on two of them.
    JAX names no rank: it writes a file a host into one directory."""
    if len(job.ranks) < 2 or job.matched.said.matched or not all(one.facts.rank_from == COUNTED and one.facts.format != "jax" for one in job.ranks):
        return
    names = ", ".join([*(one.facts.label for one in job.ranks[:2]), *["…"] * (len(job.ranks) > 2)])
    told = f"no evidence shows that these {len(job.ranks)} traces ({names}) are ranks of the same job: no rank is recorded, and no collective is on two of them"
    raise UsageError(told, "Look at each by itself: --each. Hold two programs against each other: advisor diff BEFORE AFTER")


def _outcomes(workspace: Workspace, kind: Judge, rules: Iterable[Rule], settled: Mapping[str, dict[str, Any]], allow: Mapping[str, str]) -> Outcomes:
    """What becomes of those of the rules that speak of such a recording."""
    checks = kind.health(workspace)
    outcomes = Outcomes()
    by_type: dict[type, list[Any]] = {Clear: outcomes.clear, Skipped: outcomes.skipped, Failed: outcomes.failed}
    for rule in rules:
        if not workspace.can_build(rule.function):
            continue  # it speaks of recordings of another kind
        rests_on = tuple(check for check in checks if {*check.touches} & {*rule.relies_on})
        untrusted = next((check for check in rests_on if check.status == "failed"), None)
        outcome = _distrusted(rule, untrusted) if untrusted else _outcome(workspace, kind, rule, settled[rule.id])
        if isinstance(outcome, list):
            outcomes.found += [_allowed(_resting_on(f, rests_on), allow) for f in outcome]
        else:
            by_type[type(outcome)].append(outcome)
    # What ranks show by themselves is told only by settling; what of it the team lives with stands last.
    found = sorted(kind.settle(workspace, outcomes.found), key=lambda f: f.finding.rule in allow and not f.finding.allowed)
    outcomes.found = _numbered([_allowed(f, allow) for f in found])
    return outcomes


def _numbered(found: list[Judged]) -> list[Judged]:
    """Each with its id: its rule and an ordinal among that rule's."""
    seen: Counter[str] = Counter()
    made = []
    for item in found:
        seen[item.finding.rule] += 1
        made.append(item._replace(finding=msgspec.structs.replace(item.finding, id=f"{item.finding.rule}-{seen[item.finding.rule]}")))
    return made


WEAKER = 0.8
"""What a finding's confidence keeps for each check it rests on that found a weakness."""


LIKELY = MOST
"""What is no more likely than not is nothing to drop other work for, whatever it gains."""


def _resting_on(found: Judged, checks: tuple[Health, ...]) -> Judged:
    """The finding with the checks that it rests on, less sure for each that is degraded, and high only if it is likely."""
    weak = sum(check.status != "ok" for check in checks)
    finding = found.finding
    sure = finding.confidence * WEAKER**weak
    severity = "medium" if finding.severity == "high" and sure < LIKELY else finding.severity
    return found._replace(finding=msgspec.structs.replace(finding, checks=tuple(c.check for c in checks), confidence=sure, severity=severity))


def _distrusted(rule: Rule, check: Health) -> Skipped:
    return Skipped(
        rule=rule.id,
        why=wording.check_failed(check.check, check.detail),
        record_with=check.record_with or wording.RECORD_AGAIN,
        reason="check-failed",
        check=check.check,
        missing=check.missing,
    )


def _outcome(workspace: Workspace, kind: Judge, rule: Rule, options: dict[str, Any]) -> list[Judged] | Clear | Skipped | Failed:
    own = {name: value for name, value in options.items() if name != LEAST_GAIN or rule.min_saving_share is None}
    try:
        return _graded(workspace, kind, rule, options, workspace.call(rule.function, **own))
    except Unavailable as missing:
        return Skipped(rule=rule.id, why=missing.message, record_with=missing.hint, reason="not-recorded", missing=missing.missing)
    except STOPS:
        raise
    except BaseException as error:  # the one place where anything is caught: a broken rule must not cost the others
        return Failed(rule=rule.id, error=f"{type(error).__name__}: {error}")


def _allowed(found: Judged, allow: Mapping[str, str]) -> Judged:
    """A finding that the team lives with stays in the report, as information, with the reason."""
    reason = allow.get(found.finding.rule)
    if reason is None:
        return found
    return found._replace(finding=msgspec.structs.replace(found.finding, allowed=reason, severity="info"))


def _graded(workspace: Workspace, kind: Judge, rule: Rule, options: dict[str, Any], outcome: Any) -> list[Judged] | Clear | Skipped:
    """What a rule returned, with what the engine adds."""
    if isinstance(outcome, (Clear, Skipped)):
        return msgspec.structs.replace(outcome, rule=rule.id)
    several = outcome if isinstance(outcome, list) else [outcome]
    if not several or not all(isinstance(f, Found) for f in several):
        raise TypeError("a rule returns Found, Clear or Skipped")
    without = lacks(workspace)
    fixes = [fitted(f.fix, without) for f in several]
    several = [replace(f, fix=fix) for f, fix in zip(several, fixes, strict=True) if fix is not None]
    if not several:
        return Clear(rule=rule.id, why=wording.UNFIT, reason="not-applicable")
    made = [graded(rule, f, kind.weigh(workspace, f), options) for f in several]
    judged = [f for f in made if isinstance(f, Judged)]
    return judged if judged else next(f for f in made if isinstance(f, Clear))
