"""The report in a line: what bounds the step, what it would take with every fix, and whether all that could be judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from advisor.engine.outcome import Outcomes, counted
from advisor.engine.served import sentence
from advisor.intervals import clip, joined, length, subtract
from advisor.knowledge.cuda_api import ApiRole
from advisor.knowledge.idle import BY_NAME, IDLE_CAUSES
from advisor.knowledge.interval_margins import interval_margins
from advisor.knowledge.shares import LITTLE, MOST, VIRTUALLY_ALL
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Failed, Saving
from advisor.report.model import UNKNOWN, Headline, JudgedReason, Together
from advisor.report.recording import Health, Prediction
from advisor.report.wording import headlines
from advisor.report.wording import judgements as say
from advisor.views.health import TraceHealth
from advisor.views.health.grades import HOST, KERNELS
from advisor.views.health.steps import MOSTLY_ONCE
from advisor.views.health.unrecorded import COLLAPSED
from advisor.views.patterns.compiling import LoggedCompiles
from advisor.views.replay.edits import Edits
from advisor.views.replay.host_time import HostTime
from advisor.views.replay.replay import Replay
from advisor.views.replay.true_step import TrueStep
from advisor.views.time.bound import Bound
from advisor.views.time.host_profile import HostProfile
from advisor.views.trace.first_pass import FirstPass
from advisor.views.trace.host_activity import HostActivity
from advisor.views.trace.launches import Launches, computing_ops, launched_ops
from advisor.views.trace.program import Program
from advisor.views.trace.startup import StartUp
from advisor.views.trace.steps import FEWEST_LEFT, Steps
from advisor.views.trace.table_filters import spans_of
from advisor.views.trace.unexecuted_launches import captured_calls
from advisor.views.trace.unseen import Unseen
from advisor.views.workspace import Workspace


class Judgement(NamedTuple):
    """Whether a recording could be judged, and where not in full, why: as a fact and in words."""

    judged: Literal["yes", "partly", "no"]
    reason: JudgedReason = ""
    why: str = ""


FEWEST_OPS = FEWEST_LEFT
"""A window that holds fewer GPU ops than this does not show how a program runs, though it repeats."""

IDLE_CAPTURE = VIRTUALLY_ALL
"""A device that idles longer than this during graph capture does not run yet. Without known steps, such idle time is mostly outside the steps."""


EVERYTHING = frozenset((*HOST, *KERNELS))
"""Where failed checks touch both, no rule has anything to rest on."""

ALLOCATING = BY_NAME["allocator"].bound

SPOKEN_OF = LITTLE
"""Findings that gain less than this of the time for which the device idles do not speak of it."""

IDLE_RULES = frozenset(("allocator", "data-loading", "host-bound", "launch-gap", "sync-stall"))
"""Rules that speak of idle time. If only others were run, their silence says nothing."""

_RULE_OF = {BY_NAME["launch"].bound: "launch-gap", BY_NAME["data_loading"].bound: "data-loading"}
"""The rule of a bound that has a single rule."""

_ALSO_OF = {"launch-gap": ("loop-overhead", "graph-coverage", "step-gap")}
"""Others that speak of the same bound: of launches inside a compiled loop, or of a server's steps."""

IDLE_BOUNDS = frozenset(cause.bound for cause in IDLE_CAUSES)
"""Bottlenecks of a device that idles longer than it does anything else."""


def headline(workspace: Workspace, outcomes: Outcomes) -> Headline:
    """What bounds the step, the replayed step with every fix that shortens it, and whether that could be judged."""
    steps, replay, bound = workspace.get(Steps), workspace.get(Replay), workspace.get(Bound)
    fixes = [f for f in counted(outcomes.found) if f.edits]
    edits = [f.edits for f in fixes]
    saving = replay.saving(Edits.combined(edits), "every finding") if edits else None
    step = replay.true_step.expected_us
    scale = step / steps.step_us if steps.step_us else 1.0
    low, expected, high = (scale * us for us in (saving.low_us, saving.expected_us, saving.high_us)) if saving else (0.0, 0.0, 0.0)
    removable_us = step * max((replay.removable_share(one) for one in (Edits.combined(edits), *edits)), default=0.0)
    predicted = _predicted(step, (low, expected, high), removable_us, [(f.finding.rule, s) for f in fixes if isinstance(s := f.finding.saving, Saving)])
    judged = judge(workspace, outcomes.failed)
    if judged.judged == "yes" and _silent(bound, step, outcomes):
        judged = Judgement("partly", "unused-idle", say.unused_idle(bound.shares.idle))
    name, summary = bound.name, sentence(workspace) + bound.summary + _not_reported(bound, outcomes)
    if (host := workspace.get(HostProfile).time) is not None:
        summary += headlines.cpu_phases(host)
    if bound.name == "cpu-only" and workspace.can_build(LoggedCompiles.build):
        summary += _of_the_log(workspace.get(LoggedCompiles), steps.step_us)
    if judged.judged == "no" and name != "start-up" and (check := _decisive(workspace)):  # a start says what it is
        name, summary = UNKNOWN, headlines.check_failed(check.check, check.detail)
    return Headline(
        bottleneck=name,
        summary=summary,
        step_us=step,
        predicted_step_us=predicted,
        judged=judged.judged,
        judged_why=judged.why,
        judged_reason=judged.reason,
        together=Together(predicted, tuple(f.finding.id for f in fixes)) if fixes else None,
    )


def _of_the_log(logged: LoggedCompiles, step_us: float) -> str:
    """The priced graph breaks and recompilations of a step without GPU work, if they are worth a sentence. No rule speaks of such a step."""
    said = ""
    for kind, name in (("graph-break", "graph break"), ("recompilation", "recompilation")):
        rows = [row for row, _ in logged.of(kind)]
        share = sum(row.us or 0.0 for row in rows) / step_us if step_us else 0.0
        if share >= headlines.WORTH_SAYING:
            said += headlines.logged_compiles(name, len(rows), share, f"{rows[0].source.file}:{rows[0].source.line}")
    return said


def _decisive(workspace: Workspace) -> Health | None:
    """The failed check that alone leaves nothing to rest a verdict on, or else the first of those that together do: what bounds the step is then not
    known either."""
    failed = workspace.get(TraceHealth).failed
    touched = {part for check in failed for part in check.touches}
    alone = (check for check in failed if {*check.touches} >= EVERYTHING)
    return next(alone, failed[0]) if failed and (touched >= EVERYTHING or workspace.get(Timeline).source.cut) else None


def _predicted(step: float, together: tuple[float, float, float], removable_us: float, each: Sequence[tuple[str, Saving]]) -> Prediction:
    """The step after all fixes.

    together: low, expected and high gain of all fixes in a joint replay. removable_us: the step without the work that the fixes leave.
    each: the saving of each finding.

    The joint gain is at least that of the best or surest fix alone, and at most the sum of all high ends. A single fix gains the same here as in
    its finding. Both ends move by the widest margin of the findings, but by at most half of the remaining step: a margin relative to the step says
    little about a step that is nearly gone.
    """
    if not each:
        return Prediction(low=step, expected=step, high=step)
    if len(each) == 1:
        ((_, one),) = each
        return Prediction(low=step - one.high_us, expected=step - one.expected_us, high=step - one.low_us)
    savings, margins = [saving for _, saving in each], [interval_margins(rule) for rule, _ in each]
    most, best = sum(s.high for s in savings), max(s.expected for s in savings)
    low = max(together[0] - step * max(below for below, _ in margins), *(s.low for s in savings), 0.0)
    most = min(most, removable_us)
    expected = min(max(together[1], best), most)
    high = min(together[2] + min(step * max(above for _, above in margins), (step - together[2]) / 2), most)
    return Prediction(low=step - max(high, expected), expected=step - expected, high=step - min(low, expected))


def _silent(bound: Bound, step_us: float, outcomes: Outcomes) -> bool:
    """Whether idle time bounds the step, or is most of it, and no finding speaks of that. Silence is for steps that use the device well."""
    if (bound.shares.idle < MOST and bound.name not in IDLE_BOUNDS) or not outcomes.ran >= IDLE_RULES:
        return False
    gained_us = sum(f.finding.saving.expected for f in outcomes.found if f.finding.shortens)
    return gained_us < SPOKEN_OF * bound.shares.idle * step_us


def _not_reported(bound: Bound, outcomes: Outcomes) -> str:
    """Why the rule for what bounds the step found nothing, in a sentence; "" if it did, or was not asked."""
    rule = _RULE_OF.get(bound.name, "")
    if any(found.finding.rule in _ALSO_OF.get(rule, ()) and found.finding.shortens for found in outcomes.found):
        return ""
    quiet = next((item for item in outcomes.clear if item.rule == rule), None)
    if quiet is None or not quiet.why:
        return ""
    if quiet.reason == "small-gain" and quiet.measured is not None and quiet.threshold is not None:
        return headlines.rule_gains_little(rule, quiet.measured, quiet.threshold)
    return headlines.rule_is_quiet(rule, quiet.why)


def torn(bound: Bound, step: TrueStep) -> bool:
    """Whether the device computes for less than half of the step, and the profiler's overhead decides whether it idles for longer than that."""
    computes, idles = bound.shares.compute, bound.shares.idle
    if bound.name in IDLE_BOUNDS or bound.shares.largest != "compute" or computes >= MOST or step.basis != "estimated":
        return False
    slower = step.expected_us / step.high_us
    return 1 - (1 - idles) * slower > computes * slower


APART_MOST = MOST
"""If a larger share of the device's work is before and after the repeating part, that part is not the program."""


def _elsewhere(workspace: Workspace) -> str:
    """Why a complete window covers little of the program: most of the device's work, or the host's work without marked steps, is outside. "" otherwise."""
    steps, lost = workspace.get(Steps), workspace.get(Unseen).lost
    if len(lost) and lost.mean() > COLLAPSED:
        return say.lost_launches(int(lost.sum()), len(lost))
    if steps.apart > APART_MOST:
        return say.part_of_the_work(1 - steps.apart, steps.kind)
    window_us = steps.end_us - steps.start_us
    if not steps.by_launches or (apart_us := sum(_host_beside_us(workspace))) <= window_us:
        return ""
    return say.host_apart(window_us, apart_us)


def _host_beside_us(workspace: Workspace) -> tuple[float, float]:
    """For how long the launching threads run ops, or mark a part of the program, before the window and after it, less what happens once."""
    timeline, steps, host = workspace.get(Timeline), workspace.get(Steps), workspace.get(HostActivity)
    spans = subtract(joined(*(spans_of(frame, host.on_threads(frame)) for frame in (timeline.cpu_ops, timeline.annotations))), host.once)
    return length(clip(spans, -np.inf, steps.host_start_us)), length(clip(spans, max(steps.end_us, steps.host_end_us), np.inf))


def hardly_works(workspace: Workspace) -> float | None:
    """The busy share of a recording without repeating steps, if it is close to zero; the part that belongs to a step is then unknown. The recording
    includes time of launching threads before the first launch (if nothing was launched unseen), after the last GPU op, and in ranges of the program.
    """
    steps = workspace.get(Steps)
    if steps.repeats:
        return None
    window_us, (before_us, after_us) = steps.end_us - steps.start_us, _host_beside_us(workspace)
    if not np.isneginf(workspace.get(StartUp).earlier_us) or (workspace.get(Launches).start_us < steps.host_start_us).any():
        before_us = 0.0
    busy = (1 - workspace.get(Bound).shares.idle) * window_us / (window_us + before_us + after_us)
    return busy if busy < 1 - IDLE_CAPTURE else None


def judge(workspace: Workspace, failed: Sequence[Failed]) -> Judgement:
    """Whether the trace carries a verdict. "Nothing found" where nobody could look is the worst thing to say."""
    timeline, checks, bound = workspace.get(Timeline), workspace.get(TraceHealth), workspace.get(Bound)
    launches = workspace.get(Launches)
    issued = launches.calls_with(ApiRole.LAUNCH, ApiRole.GRAPH_LAUNCH)
    if bound.name in ("cpu-only", UNKNOWN):
        unread = next((check.detail for check in checks.results if check.check == "complete-file" and check.status != "ok"), "")
        return Judgement("no", "no-gpu-work", say.no_gpu_work(workspace.get(Unseen).told(), unread))
    captured = int(captured_calls(timeline.api_calls, issued).sum())
    if bound.shares.idle > IDLE_CAPTURE and captured > len(issued) / 2:
        return Judgement("no", "captured-only", say.captured(captured, len(issued)))
    steps, startup = workspace.get(Steps), workspace.get(StartUp)
    broken = [check for check in checks.results if check.status == "failed"]
    once = startup.once_share(steps.start_us, steps.end_us)
    if once > MOSTLY_ONCE and {check.check for check in broken} <= {"start-up"}:
        return Judgement("partly", "one-time-work", say.one_time(once))
    touched, names = {part for check in broken for part in check.touches}, [check.check for check in broken]
    if touched >= EVERYTHING:
        return Judgement("no", "checks-failed", say.checks_failed(names))
    if cut := timeline.source.cut:
        idle = bound.shares.idle >= MOST
        return Judgement("no" if idle else "partly", "cut-off", say.cut_off(cut, idle))
    if touched:
        return Judgement("partly", "checks-failed", say.checks_failed(names, say.RULES_SKIPPED))
    if broken:
        return Judgement("partly", "checks-failed", say.checks_failed(names, f": {broken[0].detail}"))
    broke = Judgement("partly", "rules-failed", say.rules_broke([f.rule for f in failed])) if failed else Judgement("yes")
    return _of_the_window(workspace) or broke


def _of_the_window(workspace: Workspace) -> Judgement | None:
    """What keeps a sound recording from being judged in full; None if nothing does."""
    timeline, bound, steps = workspace.get(Timeline), workspace.get(Bound), workspace.get(Steps)
    count = int((steps.holds(timeline.gpu_ops["start_us"]) & launched_ops(timeline)).sum())
    if count < FEWEST_OPS:
        return Judgement("partly", "few-ops", say.few_ops(count))
    if not steps.repeats and not computing_ops(timeline).any():
        return Judgement("partly", "copies-only", say.COPIES_ONLY)
    if (busy := hardly_works(workspace)) is not None:
        return Judgement("partly", "hardly-works", say.hardly_works(busy))
    first, window = workspace.get(FirstPass), steps.end_us - steps.start_us
    if first.only:
        return Judgement("partly", "first-pass", say.ONLY_FIRST_PASS)
    # A program in plain CUDA is its one run.
    if first.brief:
        return Judgement("partly", "first-pass", say.brief_pass(first.once_us, window))
    if bound.shares.idle >= MOST and (unseen := workspace.get(HostTime).unseen):
        return Judgement("partly", "host-unseen", unseen)
    if bound.name == ALLOCATING and not steps.repeats and workspace.get(Program).framework != "cuda":
        return Judgement("partly", "allocates", say.ALLOCATES_ONCE)
    if first.taken:
        return Judgement("partly", "allocates", say.allocates(first.taken))
    if bound.open:
        return Judgement("partly", "overhead", say.OVERHEAD_OPEN)
    if torn(bound, workspace.get(Replay).true_step):
        return Judgement("partly", "overhead", say.torn(bound.shares.compute, bound.shares.idle))
    if elsewhere := _elsewhere(workspace):
        return Judgement("partly", "elsewhere", elsewhere)
    return None
