"""The recorded steps as a schedule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from advisor.intervals import Codes, Floats, Ints, Mask, in_order, overlap_with, union
from advisor.knowledge import cuda_api
from advisor.knowledge.shares import MOST
from advisor.recordings.columns import Table
from advisor.recordings.timeline import Timeline
from advisor.report.numbers import percent
from advisor.views.groups import Groups
from advisor.views.replay.dependencies import BACK_TO_BACK_US, Ran, gpu_rules, host_rules, told_to_wait
from advisor.views.replay.schedule import Schedule
from advisor.views.trace.host_activity import LONGEST_DISPATCH_US, HostActivity
from advisor.views.trace.launches import Launches, launched_ops
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches


def calls_of_window(timeline: Timeline, steps: Steps, launches: Launches, host: HostActivity) -> Ints:
    """Rows of the calls that launch, wait or allocate on issuing threads in the host's part of the window."""
    calls = timeline.api_calls
    if not len(calls):
        return np.empty(0, np.int64)
    names = list(cuda_api.ApiRole)
    chosen = np.isin(launches.roles, [names.index(r) for r in (cuda_api.ApiRole.SYNC, cuda_api.ApiRole.ALLOCATION)])
    launched = launches.call[launches.call >= 0]
    chosen[launched] = True
    start = calls["start_us"]
    inside = steps.issued_at(start)
    chosen &= inside & host.on_threads(calls)
    if linked_share(timeline, steps, launches) < MOST_LINKED:
        return np.empty(0, np.int64)
    return np.flatnonzero(chosen)


MOST_LINKED = MOST
"""Where less of the window's GPU work than this has its launch in the trace, the host's part is not there, and not replayed."""


def linked_share(timeline: Timeline, steps: Steps, launches: Launches) -> float:
    """Of the window's GPU ops, the share whose launch was recorded; none if there are none."""
    inside = steps.holds(timeline.gpu_ops["start_us"])
    return float((launches.call[inside] >= 0).mean()) if inside.any() else 0.0


def unseen_host(timeline: Timeline, steps: Steps, launches: Launches) -> str:
    """Why what the host does is not replayed, "" if it is."""
    share = linked_share(timeline, steps, launches)
    if share >= MOST_LINKED:
        return ""
    return f"only {percent(share)} of GPU ops have their launch in the trace; host work before the others is unknown" if share else NO_LAUNCHES


NO_LAUNCHES = "no calls that launch GPU work were recorded"


def schedule_of(timeline: Timeline, steps: Steps, launches: Launches, host: HostActivity, rows: Ints) -> Schedule:
    calls, ops = timeline.api_calls, timeline.gpu_ops
    frees = matches(calls, cuda_api.FREES)[rows]
    start = begun_us(timeline, steps, rows)
    end = np.maximum(calls["start_us"][rows] + calls["dur_us"][rows], start)
    start = _waiting_to_free(timeline, host, frees, launches.roles[rows], start, end)
    reach = np.r_[steps.begun_us, np.maximum.accumulate(end)[:-1]]
    host_us = np.maximum(start - reach, 0.0)
    dispatch = np.minimum(overlap_with(np.minimum(reach, start), start, host.launch), host_us)
    dispatch[dispatch > LONGEST_DISPATCH_US] = 0.0
    if steps.periodic:
        # What the host does after the last call comes, in the next repeat, before the first.
        last, edge = end.max(keepdims=True), np.array([max(steps.host_end_us, end.max())])
        host_us[0] += float((edge - last)[0])
        dispatch[0] += min(float(overlap_with(last, edge, host.launch)[0]), LONGEST_DISPATCH_US)

    position = np.full(len(calls), -1, np.int64)
    position[rows] = np.arange(len(rows))
    op_call = np.where(launches.call >= 0, position[launches.call], -1)
    op_row = np.flatnonzero(op_call >= 0)
    op_start_all = ops["start_us"]
    op_row = op_row[np.lexsort((op_start_all[op_row], op_call[op_row]))]
    op_call = op_call[op_row]
    op_start = op_start_all[op_row]
    op_end = op_start + ops["dur_us"][op_row]
    place = np.c_[ops["device"], ops["stream"]]
    groups = Groups.by_keys(*place[op_row].T)
    in_order = np.lexsort(place[op_row[groups.first]].T[::-1])
    stream = np.argsort(in_order)[groups.of]
    staged = np.isin(launches.call[op_row], host.blocking_copies)
    told = told_to_wait(*_event_calls(timeline, launches, host), start[op_call], stream)
    ran = Ran(op_start, op_end, stream, _idle_us(ops, op_row))
    of_graph = (ops["graph_id"] >= 0)[op_row]
    issued = np.where(of_graph & (op_start >= end[op_call]), end[op_call], start[op_call])
    latency, gap, after = gpu_rules(ran, start[op_call], issued, staged, told, ended_before_us(ops, op_row, stream))
    earlier = np.sort((op_start_all + ops["dur_us"])[launches.start_us < start[0]]) if steps.periodic else np.empty(0)
    waits, tail, cost = host_rules(launches.roles[rows], start, end, op_call, op_end, staged, earlier, frees)
    return Schedule(
        call_row=rows,
        host_us=host_us,
        dispatch_us=dispatch,
        call_us=cost,
        waits_for=waits,
        tail_us=tail,
        op_row=op_row,
        op_call=op_call,
        stream=stream,
        dur_us=op_end - op_start,
        latency_us=latency,
        gap_us=gap,
        after=after,
        skip_op=np.zeros(len(op_row), bool),
        fused=np.zeros(len(op_row), bool),
        begins=_first_of_each(steps.of_host_time(calls["start_us"][rows])),
        steps=steps.steps,
        periodic=steps.periodic,
    )


def _first_of_each(step: Ints) -> Ints:
    """Position of the first of each step."""
    return np.unique(step, return_index=True)[1].astype(np.int64)


IN_VAIN = MOST
"""Of a pause before memory is freed: if the device works in most of it, the pause is a wait for the device."""


def _waiting_to_free(timeline: Timeline, host: HostActivity, frees: Mask, roles: Codes, start: Floats, end: Floats) -> Floats:
    """(n,) start of each call; of a call that frees memory, start of its wait. An allocator without memory waits until the device has used the cached blocks
    before it frees them: it queries events in unrecorded calls, and starts no op meanwhile.
    """
    refused = np.r_[False, (roles == list(cuda_api.ApiRole).index(cuda_api.ApiRole.ALLOCATION))[:-1] & ~frees[:-1]]
    long = np.flatnonzero(frees & refused & (start - np.r_[start[:1], end[:-1]] > LONGEST_DISPATCH_US))
    if not len(long) or not len(timeline.cpu_ops):
        return start
    ops, gpu = timeline.cpu_ops, timeline.gpu_ops
    begins = in_order(ops["start_us"][host.on_threads(ops)])
    busy = union(*gpu.bounds())
    since, until = end[long - 1], start[long]
    waits = (np.searchsorted(begins, since) == np.searchsorted(begins, until)) & (overlap_with(since, until, busy) > IN_VAIN * (until - since))
    begun = start.copy()
    begun[long[waits]] = since[waits]
    return begun


def ended_before_us(ops: Table, op_row: Ints, stream: Ints) -> Floats:
    """(n_streams,) when what ran on each stream before its first op of the window ended, -inf if nothing did. stream: of each op of the window."""
    start, end = ops.bounds()
    first, found = np.full(int(stream.max(initial=-1)) + 1, np.inf), np.full(int(stream.max(initial=-1)) + 1, -np.inf)
    np.minimum.at(first, stream, start[op_row])
    groups = Groups.by_keys(ops["device"], ops["stream"])
    stream_of = np.full(len(groups.first), -1)
    stream_of[groups.of[op_row]] = stream
    on = stream_of[groups.of]
    before = np.flatnonzero(on >= 0)
    before = before[start[before] < first[on[before]]]
    np.maximum.at(found, on[before], end[before])
    return found


def _idle_us(ops: Table, rows: Ints) -> Callable[[Floats, Ints], Floats]:
    """Of moments and positions among these rows, how long each op's device ran nothing between the moment and the op's start."""
    device, start, end = ops["device"], *ops.bounds()
    busy = {int(d): union(start[device == d], end[device == d]) for d in np.unique(device)}

    def idle_us(since: Floats, at: Ints) -> Floats:
        begun, found = np.maximum(start[rows[at]], since), np.empty(len(at))
        for d, spans in busy.items():
            here = device[rows[at]] == d
            found[here] = (begun - since)[here] - overlap_with(since[here], begun[here], spans)
        return np.maximum(found, 0.0)

    return idle_us


def _event_calls(timeline: Timeline, launches: Launches, host: HostActivity) -> tuple[list[str], Floats]:
    """Names and starts of the calls about events on the threads that issue work."""
    calls = timeline.api_calls
    rows = np.flatnonzero((launches.roles == list(cuda_api.ApiRole).index(cuda_api.ApiRole.EVENT)) & host.on_threads(calls))
    return calls["name"][rows].tolist(), calls["start_us"][rows]


def begun_us(timeline: Timeline, steps: Steps, rows: Ints) -> Floats:
    """(n,) start of each call. If the window starts after unrecorded earlier work on the device, calls during that work count from its end: the host only
    ran ahead.
    """
    start: Floats = timeline.api_calls["start_us"][rows]
    return start if steps.periodic else np.maximum(start, steps.start_us)


def gpu_only(timeline: Timeline, steps: Steps) -> Schedule:
    """A trace without launches: a single call launches all ops of the window, which keep their recorded gaps. Migrations of managed memory run in turn with
    the kernels of the busiest stream, which touch the pages; migrations inside a kernel take no time of their own.
    """
    ops = timeline.gpu_ops
    start = ops["start_us"]
    row = np.flatnonzero(steps.holds(start))
    start = start[row]
    end = start + ops["dur_us"][row]
    _, stream = np.unique(np.c_[ops["device"][row], ops["stream"][row]], axis=0, return_inverse=True)
    stream = stream.reshape(-1)
    gap, dur = np.zeros(len(row)), end - start
    launched = launched_ops(timeline)[row]
    if launched.any():
        stream[~launched] = np.argmax(np.bincount(stream[launched], dur[launched]))
    for s in np.unique(stream):
        rows = np.flatnonzero(stream == s)
        reach = np.r_[steps.start_us, np.maximum.accumulate(end[rows])[:-1]]
        gap[rows] = start[rows] - reach
        dur[rows] = np.where(launched[rows], dur[rows], np.maximum(end[rows] - np.maximum(start[rows], reach), 0.0))
    ran, after, late = Ran(start, end, stream, _idle_us(ops, row)), np.full(len(row), -1, np.int64), np.flatnonzero(gap > BACK_TO_BACK_US)
    after[late] = ran.last_elsewhere(late, start - gap)
    gap[late] = ran.paused_us(np.where(after >= 0, end[after], start - gap)[late], late)
    one, none = np.zeros(1), np.full(1, -1, np.int64)
    return Schedule(
        call_row=none,
        host_us=one,
        dispatch_us=one,
        call_us=one,
        waits_for=none,
        tail_us=one,
        op_row=row,
        op_call=np.zeros(len(row), np.int64),
        stream=stream,
        dur_us=dur,
        latency_us=np.zeros(len(row)),
        gap_us=np.maximum(gap, 0.0),
        after=after,
        skip_op=np.zeros(len(row), bool),
        fused=np.zeros(len(row), bool),
        begins=np.zeros(1, np.int64),
        steps=steps.steps,
        periodic=False,
    )
