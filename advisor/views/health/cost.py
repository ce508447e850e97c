"""How well the step without a profiler is known, and whether the replay reproduces the recorded one."""

from __future__ import annotations

from advisor.recordings.timeline import Timeline
from advisor.report.numbers import duration, interval, percent
from advisor.report.recording import Health
from advisor.views.health.grades import HOST, Status
from advisor.views.replay.build import MAX_ERROR, Replay
from advisor.views.replay.simulate import period_us
from advisor.views.trace.steps import Steps

USELESS_ERROR = 0.5
"""A replay that is off by half reproduces nothing: no saving can be told from it, nor from a measured step that it misses so far."""

COSTLY, UNTOLD = 0.5, 1.5
"""Width of the true step's interval over its expected value: beyond the first the host's part is no more than a rough figure,
beyond the second nothing that rests on it can be told."""

MEASURE = "advisor record -- python SCRIPT, or give the step time of a run without the profiler: --step-ms"

CALIBRATED = 0.10
"""How far the corrected step may stay from the step time that was given."""


def recording_cost(replay: Replay, steps: Steps) -> Health:
    """How much of the step recording added, and how much of it nobody can tell from the trace."""
    check, step = "recording-cost", replay.true_step
    recorded, true = duration(step.recorded_us), duration(step.expected_us)
    if step.basis == "measured":
        return _measured(replay, check, true)
    if step.basis == "recorded":
        return Health(check=check, status="ok", detail="the host's part is not in the trace, or what recording it costs is not known", touches=HOST)
    unknown = (step.high_us - step.low_us) / step.expected_us
    status: Status = "failed" if unknown > UNTOLD else "degraded" if unknown > COSTLY or step.contradictory else "ok"
    detail = f"{'a step' if steps.repeats else 'the run'} was recorded at {recorded}; without the recorder it takes an estimated {true}, {interval(step.low_us, step.high_us)}"
    if step.contradictory:
        first, second = map(duration, step.alone_us)
        detail += f"; what recording is seen to cost leaves {first}, what a host needs for as many events is {second}: only a measured step tells"
    # It touches nothing that rules rest on: each finding is held against the host's time at its lowest by itself.
    return Health(check=check, status=status, detail=detail, touches=(), record_with="" if status == "ok" else MEASURE)


def _measured(replay: Replay, check: str, true: str) -> Health:
    """Whether the step can take as long as somebody measured, with any cost of the profiler."""
    before, step = period_us(replay.recorded), replay.true_step
    reached = step.recorded_us * period_us(replay.corrected) / before if before > 0 else step.expected_us
    off = abs(reached / step.expected_us - 1)
    if off <= CALIBRATED:
        return Health(check=check, status="ok", detail=f"the step was measured without the recorder: {true}; everything is in that time", touches=HOST)
    return Health(
        check=check,
        status="failed" if off > USELESS_ERROR else "degraded",
        detail=f"without the recorder's cost the step takes {duration(reached)}, not the {true} that were measured"
        + ("; so far apart, one of them is of another step" if off > USELESS_ERROR else ""),
        touches=HOST,
        record_with="measure the same step as the trace holds, with a synchronize before the clock is read",
    )


def replayed(timeline: Timeline, replay: Replay) -> Health:
    """Whether the replay takes as long as the recorded step."""
    check = "replay"
    if not len(timeline.gpu_ops):
        return Health(check=check, status="ok", detail="no GPU work to replay")
    return Health(
        check=check,
        status="ok" if replay.error <= MAX_ERROR else "degraded" if replay.error <= USELESS_ERROR else "failed",
        detail=f"the replayed step is {percent(replay.error)} off the recorded one",
        record_with="" if replay.error <= MAX_ERROR else "record a few whole steps of one kind, on one process",
    )
