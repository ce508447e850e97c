"""How well the step without a profiler is known, and whether the replay reproduces the recorded one."""

from __future__ import annotations

from advisor.knowledge.shares import MOST, UNUSUAL
from advisor.recordings.timeline import Timeline
from advisor.report.numbers import duration, interval, percent
from advisor.report.recording import Health
from advisor.report.wording.checks import tolerated
from advisor.views.health.grades import HOST, Status, compared
from advisor.views.replay.replay import MAX_ERROR, Replay
from advisor.views.replay.true_step import CALIBRATED, Timed
from advisor.views.trace.steps import Steps

USELESS_ERROR = MOST
"""A replay that is off by half reproduces nothing: no saving can be told from it, nor from a measured step that it misses so far."""

COSTLY, UNTOLD = MOST, UNUSUAL
"""Width of the true step's interval over its expected value: beyond the first the host's part is no more than a rough figure,
beyond the second nothing that rests on it can be told."""

MEASURE = "advisor record -- python SCRIPT, or give the step time of a run without the profiler: --step-ms"


def recording_cost(replay: Replay, steps: Steps) -> Health:
    """How much of the step recording added, and how much of it nobody can tell from the trace."""
    check, step = "recording-cost", replay.true_step
    recorded, true = duration(step.recorded_us), duration(step.expected_us)
    if step.timed:
        return _measured(step.timed, check, known=replay.cost is not None)
    if step.basis == "recorded":
        return Health(
            check=check, status="ok", detail="host work is not in the trace, or its profiler overhead is unknown", touches=HOST, reason="nothing-to-check"
        )
    unknown = (step.high_us - step.low_us) / step.expected_us
    status: Status = "failed" if unknown > UNTOLD else "degraded" if unknown > COSTLY or step.contradictory else "ok"
    noun = "a step" if steps.repeats else "the run"
    detail = f"{noun} took {recorded} with the profiler and about {true} without it, estimated range {interval(step.low_us, step.high_us)}. "
    detail += f"That range is {percent(unknown, COSTLY)} of the estimate ({tolerated(COSTLY)})"
    if step.contradictory:
        first, second = map(duration, step.alone_us)
        detail += f". The two overhead estimates disagree ({first} and {second}): measure a step and pass --step-ms"
    # It touches nothing that rules rest on: each finding is held against the host's time at its lowest by itself.
    return compared(
        check,
        status,
        detail,
        unknown,
        COSTLY,
        touches=(),
        record_with="" if status == "ok" else MEASURE,
        missing="" if status == "ok" else "step-time",
        reason="beyond-threshold" if unknown > COSTLY else "disagreement" if step.contradictory else "within-threshold",
    )


def _measured(timed: Timed, check: str, *, known: bool) -> Health:
    """Whether the step can take as long as somebody measured, with any cost of the profiler. known: whether that can be told."""
    unused = timed.shorter or timed.longer
    if timed.error <= CALIBRATED and not unused:
        return compared(check, "ok", f"the step was measured without the profiler: {duration(timed.us)}", timed.error, CALIBRATED, touches=HOST)
    failed, given = timed.error > USELESS_ERROR, f"the measured {duration(timed.us)}"
    if unused:
        why = (
            f"kernels run for {duration(timed.working_us)} of a step"
            if timed.shorter
            else f"the recorded step took {duration(timed.recorded_us)}, and a profiler makes no step shorter"
        )
        told = f"{given} is not used: {why}"
    else:
        end = ("at the least" if timed.reached_us > timed.us else "at the most") if known else "as recorded"
        told = f"the step takes {duration(timed.reached_us)} {end}{', at any profiler overhead' if known else ''}, not {given}"
    return compared(
        check,
        "failed" if failed else "degraded",
        told + ("; the difference is so large that they are different steps" if failed else ""),
        timed.error,
        CALIBRATED,
        touches=HOST,
        record_with="measure the step that the trace holds, and synchronise before you read the clock",
        reason="disagreement" if unused else "beyond-threshold",
    )


def replayed(timeline: Timeline, replay: Replay) -> Health:
    """Whether the replay takes as long as the recorded step."""
    check = "replay"
    if not len(timeline.gpu_ops):
        return Health(check=check, status="ok", detail="no GPU work to replay", reason="nothing-to-check")
    return compared(
        check,
        "ok" if replay.error <= MAX_ERROR else "degraded" if replay.error <= USELESS_ERROR else "failed",
        f"the replay differs by {percent(replay.error, MAX_ERROR)} ({tolerated(MAX_ERROR)})",
        replay.error,
        MAX_ERROR,
        record_with="" if replay.error <= MAX_ERROR else "record a few whole steps of the same kind",
    )
