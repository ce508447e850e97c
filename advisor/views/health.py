"""Questions asked of the trace before any advice: can it carry it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.intervals import Floats, union
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.report.model import Health
from advisor.report.numbers import counted, duration, interval, percent
from advisor.views.replay.build import MAX_ERROR, Replay
from advisor.views.replay.simulate import period_us
from advisor.views.time.roofline import Roofline
from advisor.views.trace.launches import Launches, launched_ops
from advisor.views.trace.program import Program
from advisor.views.trace.startup import StartUp
from advisor.views.trace.steps import Steps
from advisor.views.trace.unrun_launches import lost_launches

CAUSALITY_SLACK_US = 5.0
"""A GPU op may seem to start this much before its launch: host and device clocks are aligned by sampling."""

SKEWED = 0.05
"""Clocks that disagree by less than what tells more than 95 % of the idle time leave the cause of the gaps known."""

STEP_SPREAD = 0.25
"""Steps that differ by more than this share of their mean have no representative."""

USELESS_ERROR = 0.5
"""A replay that is off by half reproduces nothing: no saving can be told from it."""

FEW, MANY = 0.005, 0.05
"""Shares of the events that a check may find wrong: below the first they change no figure, above the second all of them."""

FEWEST_OPS = 12
"""A recording without steps that holds fewer GPU ops than this shows how a program starts, not how it runs."""

COLLAPSED = 0.5
"""A step that lost this share of its GPU ops is no step any more."""

MOSTLY_ONCE = 0.5
"""Of a window that is spent for more than this on what happens once, the rest is a start too: first launches, cold caches."""

GRAPH_SHARE = 0.2
"""Where graphs recorded whole take more of the busy time than this, the kernels that are known say little."""

EARLY_START_US = 10.0
"""Programmatic launch lets a kernel start before the one ahead of it ends, by a few µs."""

COSTLY, UNTOLD = 0.5, 1.5
"""Width of the true step's interval over its expected value: beyond the first the host's part is no more than a rough figure,
beyond the second nothing that rests on it can be told."""

MEASURE = "advisor record -- python SCRIPT, or give the step time of a run without the profiler: --step-ms"

CALIBRATED = 0.10
"""How far the corrected step may stay from the step time that was given."""

HOST, KERNELS = ("host",), ("kernels",)


@dataclass(frozen=True)
class TraceHealth:
    """Every check with its answer, in a fixed order."""

    results: tuple[Health, ...]

    @property
    def failed(self) -> tuple[Health, ...]:
        """Checks that leave nothing to trust: no rule may speak."""
        return tuple(h for h in self.results if h.status == "failed")

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, steps: Steps, replay: Replay, startup: StartUp, roofline: Roofline, program: Program) -> TraceHealth:
        again = "let the profiler finish (leave its context, or call prof.step() past the last active step) before the program ends"
        return cls(
            (
                _reading(timeline, "complete-file", "every event of the file was read", again),
                _reading(timeline, "timestamps", "no event has a time that cannot be read", "record with another version of the profiler"),
                _graphs(timeline),
                _reading(timeline, "durations", "no event has a negative or absurd duration", "record with another version of the profiler"),
                _causality(timeline, launches, steps),
                _links(timeline, launches, steps),
                _gpu_events(timeline, launches, steps),
                _stream_order(timeline, steps),
                _steps(timeline, steps),
                _startup(steps, startup),
                _faster_than_possible(timeline, steps, roofline),
                _recording_cost(replay),
                _replay(timeline, replay),
                *_poorer_format(timeline),
                *_runtime(program),
            )
        )


Status = Literal["ok", "degraded", "failed"]


def _status(share: float) -> Status:
    return "failed" if share > MANY else "degraded" if share > FEW else "ok"


def _reading(timeline: Timeline, check: str, good: str, record_with: str) -> Health:
    issues = [i for i in timeline.source.issues if i.check == check]
    if not issues:
        return Health(check=check, status="ok", detail=good)
    share = sum(i.events for i in issues) / max(timeline.source.events, 1)
    failed = any(i.status == "failed" for i in issues) or _status(share) == "failed"
    return Health(
        check=check,
        status="failed" if failed else "degraded",
        detail="; ".join(i.detail for i in issues),
        record_with=record_with,
    )


def _poorer_format(timeline: Timeline) -> tuple[Health, ...]:
    """What a file lacks that another one of the same recording holds; it touches no rule, since those that need it are skipped."""
    hints = {"poorer-format": "give the .xplane.pb of which it was made", "fuller-file": ""}
    issues = [i for i in timeline.source.issues if i.check in hints]
    return tuple(
        Health(check=i.check, status="ok" if i.status == "ok" else "degraded", detail=i.detail, touches=(), record_with=hints[i.check]) for i in issues
    )


def _runtime(program: Program) -> tuple[Health, ...]:
    """A device of neither NVIDIA nor AMD: what its runtime's calls do is not known, so that no rule speaks of the host."""
    detail = "the runtime that launches this device's work is neither CUDA nor ROCm: what its calls wait for is not known"
    return (Health(check="runtime", status="failed", detail=detail, touches=HOST, record_with=""),) if program.maker == "other" else ()


def _graphs(timeline: Timeline) -> Health:
    """Graphs that were recorded as one event each: their kernels are unknown."""
    check = "graph-trace"
    issues = [i for i in timeline.source.issues if i.check == check]
    if not issues:
        return Health(check=check, status="ok", detail="no CUDA graph was recorded as a whole", touches=KERNELS)
    ops = timeline.gpu_ops
    dur = ops["dur_us"].to_numpy()
    share = float(dur[(ops["kind"] == GpuKind.GRAPH.value).to_numpy()].sum()) / max(float(dur.sum()), 1e-9)
    failed = share > GRAPH_SHARE or any(i.status == "failed" for i in issues)
    return Health(
        check=check,
        status="failed" if failed else "degraded",
        detail="; ".join(i.detail for i in issues) + f"; they take {share:.0%} of the GPU's time",
        touches=KERNELS,
        record_with="nsys profile --cuda-graph-trace=node",
    )


def _causality(timeline: Timeline, launches: Launches, steps: Steps) -> Health:
    check = "clock-causality"
    known = ~np.isnan(launches.start_us)
    if not known.any():
        return Health(check=check, status="ok", detail="no launches recorded, so nothing to compare", touches=HOST)
    early = launches.start_us[known] - timeline.gpu_ops["start_us"].to_numpy()[known]
    bad = int((early > CAUSALITY_SLACK_US).sum())
    if not bad:
        return Health(check=check, status="ok", detail="every GPU op starts after the call that launched it", touches=HOST)
    failed = bad / int(known.sum()) > 0.05 and _in_doubt(timeline, steps, float(early.max())) > SKEWED
    return Health(
        check=check,
        status="failed" if failed else "degraded",
        detail=f"{bad} of {int(known.sum())} GPU ops start before their launch, by up to {early.max():.0f} µs: "
        f"host and device clocks disagree, so {'gaps cannot' if failed else 'short gaps cannot'} be blamed on the host",
        touches=HOST,
        record_with="record again on an idle machine, a few steps long; the clocks are matched when the recording starts",
    )


def _in_doubt(timeline: Timeline, steps: Steps, skew_us: float) -> float:
    """Share of the devices' idle time in the window whose cause clocks that disagree by `skew_us` may hide: that much of each gap."""
    ops = timeline.gpu_ops
    device, start, end = ops["device"].to_numpy(), ops["start_us"].to_numpy(), (ops["start_us"] + ops["dur_us"]).to_numpy()
    window = steps.start_us, steps.end_us
    busy = [union(start[device == d], end[device == d]) for d in np.unique(device)]
    gaps = np.concatenate([np.clip(starts[1:], *window) - np.clip(ends[:-1], *window) for starts, ends in busy])
    return float(np.minimum(gaps, skew_us).sum()) / max(float(gaps.sum()), 1e-9) if gaps.any() else 1.0


def _links(timeline: Timeline, launches: Launches, steps: Steps) -> Health:
    check = "launch-links"
    start = timeline.gpu_ops["start_us"].to_numpy()
    inside = steps.holds(start) & launched_ops(timeline)
    if not inside.any():
        return Health(check=check, status="ok", detail="the window holds no GPU work", touches=HOST)
    linked = float((launches.call[inside] >= 0).mean())
    if launches.ambiguous:
        return Health(
            check=check,
            status="failed" if launches.ambiguous > MANY * len(start) else "degraded",
            detail=f"{launches.ambiguous} GPU ops share a correlation id with several launches: is this a merge of several ranks?",
            touches=HOST,
            record_with="give the trace of one rank, as the profiler wrote it",
        )
    if linked < 0.7:
        return Health(
            check=check,
            status="degraded",
            detail=f"only {linked:.0%} of GPU ops have their launch in the trace",
            touches=HOST,
            record_with="record ProfilerActivity.CPU and ProfilerActivity.CUDA together",
        )
    return Health(check=check, status="ok", detail=f"{percent(linked)} of GPU ops are tied to the call that launched them", touches=HOST)


def _gpu_events(timeline: Timeline, launches: Launches, steps: Steps) -> Health:
    """Launches whose GPU op is not in the trace: the profiler's buffers overflowed or were not written out."""
    check = "gpu-events"
    rows, gone = lost_launches(timeline, launches)
    start = timeline.api_calls["start_us"].to_numpy()[rows]
    inside = steps.issued_at(start)
    if not inside.any() or not (launches.call >= 0).any():
        return Health(check=check, status="ok", detail="no launches in the window to compare with")
    rows, start, lost = rows[inside], start[inside], gone[inside]
    share, worst = float(lost.mean()), _worst_step(steps, start, lost)
    if _status(share) == "ok" and gone.mean() > COLLAPSED:
        return Health(
            check=check,
            status="degraded",
            detail=f"{int((gone & ~inside).sum()):,} of {len(gone):,} launches of the recording, outside the window, have no GPU op in the trace: "
            "what the device did there is not known",
            record_with="record fewer launches, or only the part that is asked about (cudaProfilerStart and --capture-range=cudaProfilerApi)",
        )
    if _status(share) == "ok":
        few = f"{int(lost.sum()):,} of {len(rows):,} launches have no GPU op in the trace, too few to matter"
        return Health(check=check, status="ok", detail=few if lost.any() else "every launch has its GPU op in the trace")
    return Health(
        check=check,
        status="failed" if worst > COLLAPSED else _status(share),
        detail=f"{int(lost.sum()):,} of {len(rows):,} launches have no GPU op in the trace, {worst:.0%} of them in the worst step: "
        "the profiler dropped or lost buffers",
        record_with="record fewer steps and less of each (without with_stack and profile_memory), and synchronize before the profiler stops",
    )


def _worst_step(steps: Steps, start: Floats, lost: np.ndarray) -> float:
    step = np.clip(steps.of_host_time(start), 0, steps.steps - 1)
    made = np.bincount(step, minlength=steps.steps)
    return float((np.bincount(step, lost, minlength=steps.steps) / np.maximum(made, 1)).max())


def _stream_order(timeline: Timeline, steps: Steps) -> Health:
    """Ops of one stream run in turn. Programmatic launch starts one a little early; nodes of a graph may run side by side."""
    check = "stream-order"
    ops = timeline.gpu_ops
    start, dur = ops["start_us"].to_numpy(), ops["dur_us"].to_numpy()
    rows = np.flatnonzero(steps.holds(start))
    device, stream = ops["device"].to_numpy(), ops["stream"].to_numpy()
    rows = rows[np.lexsort((start[rows], stream[rows], device[rows]))]
    same = (device[rows[1:]] == device[rows[:-1]]) & (stream[rows[1:]] == stream[rows[:-1]])
    correlation = ops["correlation"].to_numpy()
    one_graph = (correlation[rows[1:]] == correlation[rows[:-1]]) & (correlation[rows[1:]] >= 0)
    overlap = start[rows[:-1]] + dur[rows[:-1]] - start[rows[1:]]
    shorter = np.minimum(dur[rows[1:]], dur[rows[:-1]])
    bad = int((same & ~one_graph & (overlap > np.maximum(0.5 * shorter, EARLY_START_US))).sum())
    share = bad / max(len(rows) - 1, 1)
    if _status(share) == "ok":
        few = f"{bad:,} of {len(rows):,} GPU ops overlap most of another one of their stream, too few to matter"
        return Health(check=check, status="ok", detail=few if bad else "ops of one stream run one after the other")
    return Health(
        check=check,
        status=_status(share),
        detail=f"{bad:,} of {len(rows):,} GPU ops overlap most of another one of their stream, where ops run in turn: the recorder "
        "counted several queues as one, ranks were merged, or times are damaged",
        record_with="give the trace of one rank, as the profiler wrote it",
    )


def _steps(timeline: Timeline, steps: Steps) -> Health:
    check = "steps"
    again = "profile with schedule(wait=1, warmup=2, active=3) and call prof.step() after each step"
    count = int(launched_ops(timeline).sum())
    if steps.basis == "whole" and len(timeline.gpu_ops) and count < FEWEST_OPS:
        return Health(
            check=check,
            status="failed",
            detail=f"{counted(count, 'GPU op')} that {'do not repeat are' if count != 1 else 'does not repeat is'} a start, not a program: "
            "what the host did there it may do once",
            touches=HOST,
            record_with=again,
        )
    if steps.basis == "whole":
        return Health(check=check, status="degraded", detail=steps.detail, record_with=again)
    if steps.steps < 2:
        return Health(check=check, status="degraded", detail=f"{steps.detail}; a mean of one step may mislead", record_with=again)
    spread = float(np.ptp(steps.periods_us)) / max(steps.step_us, 1e-9)
    detail = f"{steps.steps} whole steps, {interval(steps.periods_us.min(), steps.periods_us.max())}"
    if spread <= STEP_SPREAD:
        return Health(check=check, status="ok", detail=detail)
    usual = float(np.median(steps.periods_us))
    far = np.flatnonzero(np.abs(steps.periods_us - usual) > STEP_SPREAD * usual)
    listed = ", ".join(f"no. {i + 1} with {duration(steps.periods_us[i])}" for i in far[:5]) + (" and more" if len(far) > 5 else "")
    return Health(
        check=check,
        status="degraded",
        detail=f"{detail}: they differ, so no step stands for all" + (f" (far from the median: {listed})" if 0 < len(far) < steps.steps else ""),
        record_with="leave warm-up out (schedule's wait and warmup) and record more steps of one kind",
    )


START_UP = 0.05
"""A window of which more than a twentieth happens once does not show how the program runs."""


def _startup(steps: Steps, startup: StartUp) -> Health:
    """Whether the window holds what happens once: loading kernels, making contexts."""
    check = "start-up"
    share = startup.once_share(steps.start_us, steps.end_us)
    if share <= START_UP:
        little = f"{percent(share)} of the window went into calls that happen once"
        return Health(check=check, status="ok", detail=little if share > 1e-6 else "the window holds no calls that happen once", touches=HOST)
    return Health(
        check=check,
        status="failed" if share > MOSTLY_ONCE else "degraded",
        detail=f"{share:.0%} of the window went into calls that happen once (loading kernels, making contexts, trying algorithms, capturing graphs), the longest "
        f"{startup.longest(steps.start_us, steps.end_us)}: a second run would not have them",
        touches=HOST,
        record_with="run a few steps before the recording begins: schedule(wait=1, warmup=2, active=3)",
    )


ABOVE = 1.05
"""A kernel that is faster than the datasheet allows by more than this is not told by rounding: its work, its clock or its cache is."""


def _faster_than_possible(timeline: Timeline, steps: Steps, roofline: Roofline) -> Health:
    """Kernels above their roofline: where most of their bytes fit into the L2 cache, they never came from memory; else a formula or a
    rate is wrong. Nothing rests on it: rules take the lesser of both times."""
    check = "roofline"
    ops = timeline.gpu_ops
    start, dur = ops["start_us"].to_numpy(), ops["dur_us"].to_numpy()
    known = steps.holds(start) & ~np.isnan(roofline.peak_us) & (dur > 0)
    if not known.any():
        return Health(check=check, status="ok", detail="no kernel's work and limit are known", touches=())
    l2 = np.array([(roofline.peaks[d].l2_mbytes or 0.0) * 1e6 if d in roofline.peaks else 0.0 for d in ops["device"].to_numpy().tolist()])
    above = known & (roofline.peak_us > ABOVE * dur)
    cached = above & (roofline.bytes <= l2)
    share, from_cache = (float(dur[rows].sum() / dur[known].sum()) for rows in (above & ~cached, cached))
    detail = f"{share:.0%} of the time of kernels with known work lies above their roofline"
    if from_cache >= FEW:
        detail += f", another {from_cache:.0%} by data that fits into the L2 cache"
    if share <= MANY:
        return Health(check=check, status="ok", detail=detail, touches=())
    worst = int(np.flatnonzero(above & ~cached)[np.argmax(roofline.peak_us[above & ~cached] / dur[above & ~cached])])
    return Health(
        check=check,
        status="degraded",
        detail=f"{detail}: a formula, a clock or a cache is not what it is taken for; the farthest is {str(ops['name'].iat[worst])[:80]}, "
        f"{roofline.peak_us[worst] / dur[worst]:.1f} times as fast as the datasheet allows",
        touches=(),
        record_with="give the device's rates in [tool.advisor.devices]",
    )


def _recording_cost(replay: Replay) -> Health:
    """How much of the step recording added, and how much of it nobody can tell from the trace."""
    check, step = "recording-cost", replay.true_step
    recorded, true = duration(step.recorded_us), duration(step.expected_us)
    if step.basis == "measured":
        return _measured(replay, check, true)
    if step.basis == "recorded":
        return Health(check=check, status="ok", detail="the host's part is not in the trace, or what recording it costs is not known", touches=HOST)
    unknown = (step.high_us - step.low_us) / step.expected_us
    status: Status = "failed" if unknown > UNTOLD else "degraded" if unknown > COSTLY or step.contradictory else "ok"
    detail = f"a step was recorded at {recorded}; without the recorder it takes an estimated {true}, {interval(step.low_us, step.high_us)}"
    if step.contradictory:
        first, second = map(duration, step.alone_us)
        detail += f"; what recording is seen to cost leaves {first}, what a host needs for as many events is {second}: only a measured step tells"
    # It touches nothing that rules rest on: each finding is held against the host's time at its lowest by itself.
    return Health(check=check, status=status, detail=detail, touches=(), record_with="" if status == "ok" else MEASURE)


def _measured(replay: Replay, check: str, true: str) -> Health:
    """Whether the step can take as long as somebody measured, with any cost of the profiler."""
    before, step = period_us(replay.recorded), replay.true_step
    reached = step.recorded_us * period_us(replay.corrected) / before if before > 0 else step.expected_us
    if abs(reached / step.expected_us - 1) <= CALIBRATED:
        return Health(check=check, status="ok", detail=f"the step was measured without the recorder: {true}; everything is in that time", touches=HOST)
    return Health(
        check=check,
        status="degraded",
        detail=f"without the recorder's cost the step takes {duration(reached)}, not the {true} that were measured",
        touches=HOST,
        record_with="measure the same step as the trace holds, with a synchronize before the clock is read",
    )


def _replay(timeline: Timeline, replay: Replay) -> Health:
    check = "replay"
    if not len(timeline.gpu_ops):
        return Health(check=check, status="ok", detail="no GPU work to replay")
    return Health(
        check=check,
        status="ok" if replay.error <= MAX_ERROR else "degraded" if replay.error <= USELESS_ERROR else "failed",
        detail=f"the replayed step is {percent(replay.error)} off the recorded one",
        record_with="" if replay.error <= MAX_ERROR else "record a few whole steps of one kind, on one process",
    )
