"""What devices did unseen: launches without their op, waits and starts for which nothing that was recorded is the reason, calls that failed, spans
that nobody read. None of it is idle time."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Floats, Mask, joined, overlap_with
from advisor.knowledge.cuda_api import WAITS_IN_THE_RUNTIME, ApiRole
from advisor.knowledge.measured_costs import cost
from advisor.knowledge.shares import MOST
from advisor.recordings.timeline import Timeline
from advisor.report.numbers import counted, duration, percent
from advisor.report.recording import Health
from advisor.report.wording.checks import tolerated
from advisor.views.health.grades import FEW, MANY, compared, graded
from advisor.views.health.reading import GRAPH_SHARE
from advisor.views.trace.launches import Launches, launched_ops
from advisor.views.trace.program import Program
from advisor.views.trace.startup import StartUp
from advisor.views.trace.step_marks import PROFILER_STEP
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches, spans_of
from advisor.views.trace.unseen import Unseen

COLLAPSED = MOST
"""A step that lost this share of its GPU ops is no step any more. Of launched graphs each holds work that nobody knows how much of."""

_NODES = ", nsys profile --cuda-graph-trace=node"
_LESS = "record fewer steps and less of each (without with_stack and profile_memory), and synchronize before the profiler stops"


def gpu_events(timeline: Timeline, steps: Steps, unseen: Unseen, program: Program) -> Health:
    """Launches whose GPU op is not in the trace: the device was not recorded, or the profiler's buffers overflowed or were not written out."""
    check, rows, gone = "gpu-events", unseen.launched, unseen.lost
    if not len(timeline.gpu_ops) and len(rows):
        kind = program.accelerator
        return compared(
            check,
            "failed",
            f"none of {counted(len(rows), 'launch', 'launches')} left an op in the trace: the device was not recorded, or its events were lost",
            1.0,
            FEW,
            record_with=f"{kind.record} over some steps after a warm-up, with {kind.wait} before the profiler stops"
            if not kind.of_cuda
            else f"a longer recording, some steps after a warm-up, with {kind.wait} before the profiler stops; no other profiler may hold the device",
            missing="events",
            reason="not-recorded",
        )
    start = timeline.api_calls["start_us"][rows]
    inside = steps.issued_at(start)
    graphs = inside & unseen.graphs
    if graphs.any() and gone[graphs].mean() > COLLAPSED:
        return compared(
            check,
            "failed",
            f"{int(gone[graphs].sum()):,} of {counted(int(graphs.sum()), 'graph launch', 'graph launches')} in the window left no GPU op in the trace: "
            "the graphs' kernels were not recorded, so the GPU only seems idle",
            float(gone[graphs].mean()),
            COLLAPSED,
            record_with=f"record the graphs' kernels (a newer driver and profiler{_NODES if program.maker == 'nvidia' else ''}), or some steps without graphs",
            missing="graph-kernels" if program.maker == "nvidia" else "",
            reason="not-recorded",
        )
    beyond = _lost_outside_window(timeline, start, gone & ~inside, ~inside)
    if not inside.any() or not (gone.any() or len(timeline.gpu_ops)):
        return Health(check=check, status="ok", detail="no launches in the window to compare with" + beyond, reason="nothing-to-check")
    start, lost = start[inside], gone[inside]
    share, worst = float(lost.mean()), _worst_step(steps, start, lost)
    of = f"{counted(len(lost), 'launch', 'launches')} in the window"
    if graded(share) != "ok":
        return compared(
            check,
            "failed" if worst > COLLAPSED else graded(share),
            f"{int(lost.sum()):,} of {of} have no GPU op in the trace, {worst:.0%} of them in the worst step: the profiler dropped or lost buffers",
            share,
            FEW,
            record_with=_LESS,
            missing="events",
        )
    few = f"{int(lost.sum()):,} of {of} have no GPU op in the trace ({tolerated(FEW)})" if lost.any() else f"of {of} none lacks its GPU op"
    if (gone & ~inside).sum() <= MANY * len(gone):
        return compared(check, "ok", few + beyond, share, FEW, reason="within-threshold" if lost.any() else "absent")
    # The window is whole, and rules look at nothing else.
    return compared(
        check,
        "degraded",
        f"{few}{beyond}: the GPU's work there is unknown",
        share,
        FEW,
        touches=(),
        record_with=_LESS,
        missing="events",
        reason="recording-cut",
    )


def _lost_outside_window(timeline: Timeline, start: Floats, lost: Mask, outside: Mask) -> str:
    """Where launches outside of the window lost their ops, in words; "" if none did."""
    if not lost.any():
        return ""
    told = f"; outside the window {int(lost.sum()):,} of {int(outside.sum()):,} have none"
    for frame in (timeline.annotations, timeline.cpu_ops):
        marks = frame[matches(frame, PROFILER_STEP)]
        if not len(marks):
            continue
        begun = marks["start_us"]
        at = np.maximum(np.searchsorted(begun, start, side="right") - 1, 0)
        within = (start >= begun[at]) & (start < begun[at] + marks["dur_us"][at])
        held, without = (np.bincount(at[within & chosen], minlength=len(marks)) for chosen in (True, lost))
        if (most := without > COLLAPSED * np.maximum(held, 1)).any():
            names = marks["name"][most]
            return f"{told} ({counted(len(names), 'step')}: {names[0]}{f' to {names[-1]}' if len(names) > 1 else ''})"
    return told


def _worst_step(steps: Steps, start: Floats, lost: Mask) -> float:
    step = np.clip(steps.of_host_time(start), 0, steps.steps - 1)
    made = np.bincount(step, minlength=steps.steps)
    return float((np.bincount(step, lost, minlength=steps.steps) / np.maximum(made, 1)).max())


REASONLESS_US = cost("longest-wake-up")


def unseen_work(timeline: Timeline, launches: Launches, steps: Steps, startup: StartUp) -> Health:
    """Waits of the host that last while nothing runs on any device, and queued work that begins long after its launch on idle devices. Something
    runs there unseen: graphs, kernels or a host's function that was not recorded, another process; or the clocks are apart."""
    check = "unseen-work"
    window_us = max(steps.end_us - steps.start_us, 1e-9)
    if not len(timeline.gpu_ops):
        return Health(check=check, status="ok", detail="no GPU work to hold waits against", reason="nothing-to-check")
    waits, late = _reasonless_waits(timeline, launches, steps, startup), _late_starts(timeline, launches, steps, startup)
    share = max(float(waits.sum()), float(late.sum())) / window_us
    if share <= MANY:
        told = f"waits and queued work that outlast the recorded GPU work by over {duration(REASONLESS_US)} take {percent(share, MANY)} of the window"
        return compared(check, "ok", f"{told} ({tolerated(MANY)})", share, MANY)
    parts = [
        f"{duration(float(waits.sum()))} in {counted(int((waits > 0).sum()), 'wait')} of the host while nothing runs on any device" if waits.any() else "",
        f"{duration(float(late.sum()))} between launch and start of {counted(int((late > 0).sum()), 'op')} on devices that do nothing" if late.any() else "",
    ]
    return compared(
        check,
        "failed" if share > GRAPH_SHARE else "degraded",
        f"{' and '.join(filter(None, parts))}, {percent(share)} of the window: work was not recorded, or host and device clocks are apart",
        share,
        MANY,
        record_with="record everything that the program runs on its devices: graphs' kernels, every library and process, on an idle machine",
    )


def _reasonless_waits(timeline: Timeline, launches: Launches, steps: Steps, startup: StartUp) -> Floats:
    """For how long each wait of the window lasts while no device works, and nothing that happens once or the profiler holds it, less what a wait may
    take to end."""
    calls, rows = timeline.api_calls, launches.calls_with(ApiRole.SYNC)
    rows = rows[matches(calls, WAITS_IN_THE_RUNTIME)[rows]]
    rows = rows[steps.issued_at(calls["start_us"][rows])]
    start, end = calls.bounds(rows)
    seen = joined(*(spans_of(frame, np.arange(len(frame))) for frame in (timeline.gpu_ops, timeline.overheads)), startup.once)
    return np.maximum(end - start - overlap_with(start, end, seen) - REASONLESS_US, 0.0)


def _late_starts(timeline: Timeline, launches: Launches, steps: Steps, startup: StartUp) -> Floats:
    """For how long each op that was launched in the window is late: after its launch, after all that ran before it on any device, and after what had been
    launched before the recording."""
    ops, calls = timeline.gpu_ops, timeline.api_calls
    start = ops["start_us"]
    before = np.r_[-np.inf, np.maximum.accumulate(start + ops["dur_us"])[:-1]]
    # What ran before the first op, before the recording began, nobody knows.
    rows = np.flatnonzero((launches.call >= 0) & np.isfinite(before) & steps.holds(start) & steps.issued_at(launches.start_us) & launched_ops(timeline))
    issued = calls.ends[launches.call[rows]]
    return np.maximum(start[rows] - np.maximum(np.maximum(before[rows], issued), startup.earlier_us) - REASONLESS_US, 0.0)


def failed_calls(unseen: Unseen) -> tuple[Health, ...]:
    """Calls that returned an error: a launch that failed ran nothing."""
    if not unseen.failed:
        return ()
    launches, asked = unseen.failed_launches, unseen.failed_launches + len(unseen.launched)
    listed = "; ".join(f"{calls.count:,} of {calls.call} with {calls.error}" for calls in unseen.failed[:3])
    many = f", {launches:,} of {asked:,} launches among them, which ran nothing" if launches else ""
    failed = launches > COLLAPSED * asked
    return (
        compared(
            "failed-calls",
            "failed" if failed else "degraded" if launches else "ok",
            f"calls of the program failed{many}: {listed}",
            float(launches),
            0.0,
            "count",
            touches=("host", "kernels") if launches else (),
            record_with=unseen.failed[0].error.fix,
        ),
    )


def unread_spans(timeline: Timeline, unseen: Unseen, program: Program) -> tuple[Health, ...]:
    """Spans with a duration that no table holds: of a device that is not read, of another tool. Beside GPU work that was read, what the host's own
    processes did is no weakness."""
    if not unseen.left_out:
        return ()
    left = sum(part.events for part in unseen.left_out)
    listed = ", ".join(map(str, unseen.left_out[:4])) + (" and more" if len(unseen.left_out) > 4 else "")
    alone = not len(timeline.gpu_ops)
    elsewhere_us = sum(part.us for part in unseen.left_out if not part.of_host)
    few = elsewhere_us <= MANY * float(timeline.gpu_ops["dur_us"].sum())
    return (
        Health(
            check="unread-spans",
            status="failed" if alone else "ok" if few else "degraded",
            detail=f"{counted(left, 'span')} of {timeline.source.events:,} events {'is' if left == 1 else 'are'} of kinds that advisor does not read: {listed}"
            + ("; a device's work may be among them, and none was read" if alone else ""),
            touches=("host", "kernels") if alone else (),
            record_with=program.accelerator.record if alone else "",
            missing="gpu-work" if alone else "",
            reason="not-recorded" if alone else "within-threshold" if few else "beyond-threshold",
        ),
    )
