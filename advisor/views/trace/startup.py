"""What happens once, when a program or its recording begins: work from before the capture, contexts made, kernels loaded, algorithms
tried, graphs captured."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from advisor.intervals import Floats, Ints, Mask, Spans, complement, length, overlap_with, union
from advisor.knowledge.cuda_api import ApiRole
from advisor.knowledge.measured_costs import cost, costs
from advisor.knowledge.op_tokens import names_of
from advisor.knowledge.shares import HARDLY_ANY, NEARLY_ALL
from advisor.recordings.columns import Table, concatenated
from advisor.recordings.timeline import Timeline
from advisor.report.numbers import duration
from advisor.views.groups import Groups
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.repeats import FEWEST_REPEATS
from advisor.views.trace.table_filters import matches, spans_of
from advisor.views.trace.unexecuted_launches import captures

HELD_UP_US = cost("held-up-launch")

LEAD_IN = HARDLY_ANY
"""Of the GPU's work: what waits for earlier work is at the beginning of a recording, before more than this was done."""

LOADING_US = cost("loading-launch")

FIRST_US, FIRST_TIMES = costs("first-launch")

COLD = cost("cold-launches")

UNSEEN_AGAIN_US = cost("loading-unseen")

_LOADS = re.compile(r"(Module|Library)Load|LinkComplete")
"""Code is loaded once, however briefly: the next launch of the kernel finds it there."""

_CONVOLUTION = names_of("convolution_of_library")
# What TorchScript's fuser makes of a script's ops, with the number of what was compiled.
_FUSED = names_of("generated_by_jit")
_EVENT_WAIT = re.compile(r"^(cuda|cu|hip)EventSynchronize")
_STEP = names_of("profiler_step")

IDLE_DURING = NEARLY_ALL
"""A call that takes long while the device works waits for it; one-time work of the driver leaves the device idle."""


class StartUp(msgspec.Struct, frozen=True):
    """earlier_us: end of device work that was launched before the recording (-inf without such work), and its recorded duration. once: spans of calls with
    one-time work of the driver. calls: each with name, start and end. ends_us: ends of calls that separate start-up; brief kernel loads do not, since
    programs load new kernels at any time.
    """

    earlier_us: float
    earlier_for_us: float
    once: Spans
    calls: tuple[tuple[str, float, float], ...]
    ends_us: Floats

    def once_share(self, start_us: float, end_us: float) -> float:
        """How much of a window went into what the driver does once, 0 to 1."""
        return 1 - length(complement(self.once, start_us, end_us)) / max(end_us - start_us, 1e-9)

    def longest(self, start_us: float, end_us: float) -> str:
        """The call of a window that took longest, with its time; "" if there is none."""
        inside = [(end - start, name) for name, start, end in self.calls if start < end_us and end > start_us]
        return f"{max(inside)[1]} with {duration(max(inside)[0])}" if inside else ""

    @classmethod
    def build(cls, timeline: Timeline, launches: Launches, ops: Ops) -> StartUp:
        long = (*_ran_once(timeline, launches, ops), *_tuned(timeline), *_fused(timeline, ops), *captures(timeline))
        known = set(long)
        calls = (*long, *(call for call in _cold(timeline, launches) if call not in known))
        return cls(*_earlier(timeline, launches), _spans(calls), calls, _spans(long)[1])


def _earlier(timeline: Timeline, launches: Launches) -> tuple[float, float]:
    """When the last op that waited for unrecorded work began, and how long the device had seemed idle before it."""
    ops = timeline.gpu_ops
    if not len(ops) or np.isnan(launches.start_us).all():
        return -np.inf, 0.0
    start, dur = ops["start_us"], ops["dur_us"]
    done_before = np.r_[-np.inf, np.maximum.accumulate(start + dur)[:-1]]
    seemed_idle = start - np.maximum(launches.start_us, done_before)
    lead_in = np.r_[0.0, np.cumsum(dur)[:-1]] <= LEAD_IN * dur.sum()
    calls = timeline.api_calls
    # Where the launching call itself was still at work, it was the host that was late.
    returned = np.where(launches.call >= 0, calls.ends[launches.call], np.inf) if len(calls) else np.inf
    waited = np.flatnonzero(lead_in & (seemed_idle > HELD_UP_US) & (returned < start - 0.5 * seemed_idle))
    if not len(waited):
        return -np.inf, 0.0
    last = int(waited[-1])
    return float(start[last]), float(seemed_idle[waited].max())


def _ran_once(timeline: Timeline, launches: Launches, ops: Ops) -> tuple[tuple[str, float, float], ...]:
    calls = timeline.api_calls
    if not len(calls) or not len(timeline.gpu_ops):
        return ()
    roles = list(ApiRole)
    dur, start = calls["dur_us"], calls["start_us"]
    kinds = [roles.index(r) for r in (ApiRole.LAUNCH, ApiRole.GRAPH_LAUNCH, ApiRole.OTHER, ApiRole.ALLOCATION)]
    loads = matches(calls, _LOADS)
    if not _seldom(timeline, start[loads]):
        loads[:] = False
    long = np.flatnonzero(((dur > LOADING_US) & np.isin(launches.roles, kinds)) | _first_launches(timeline.gpu_ops, launches, dur) | loads)
    around = ops.of_call[long]
    inside = long[(around >= 0) & (np.r_[timeline.cpu_ops["dur_us"], 0.0][around] > LOADING_US)]
    spans = _op_time_around(timeline, launches, ops, inside)
    wider = spans[:, 1] - spans[:, 0] > LOADING_US
    # An op that mostly takes or gives back memory may do so again; who makes a handle does it in passing.
    memory = spans_of(calls, launches.roles == list(ApiRole).index(ApiRole.ALLOCATION))
    wider &= overlap_with(spans[:, 0], spans[:, 1], memory) < 0.5 * (spans[:, 1] - spans[:, 0])
    names = [f"{calls['name'][row]} in {ops.name(int(ops.of_call[row]))}" for row in inside[wider].tolist()]
    alone = (*_idle(timeline, names, *spans[wider].T), *_on_idle_device(timeline, long))
    outlasting = _outlasting(timeline, np.flatnonzero(_first(timeline.gpu_ops, launches, len(dur)) & (dur > LOADING_US)))
    begins, ends = _spans(alone)
    last = np.searchsorted(begins, [call[2] for call in outlasting]) - 1
    return (*alone, *(call for call, at in zip(outlasting, last.tolist(), strict=True) if at < 0 or ends[at] <= call[1]))


def _outlasting(timeline: Timeline, rows: Ints) -> tuple[tuple[str, float, float], ...]:
    """The remainder of first launches that began while the device worked. A call that waits for the device returns before its queue is empty; a call
    that continues on an idle device loads its kernel.
    """
    calls, ops = timeline.api_calls, timeline.gpu_ops
    called, returns = calls.bounds(rows)
    reach = np.r_[-np.inf, np.maximum.accumulate(ops.ends)]
    done = np.maximum(reach[np.searchsorted(ops["start_us"], returns)], called)
    late = np.flatnonzero(returns - done >= FIRST_US)
    names = calls["name"][rows[late]].tolist()
    return tuple((str(name), float(done[i]), float(returns[i])) for name, i in zip(names, late.tolist(), strict=True))


def _op_time_around(timeline: Timeline, launches: Launches, ops: Ops, rows: Ints) -> Floats:
    """(n, 2) time of the op around each call since its launch before, and until its next. A library that loads code or creates a handle in a driver call
    takes longer around it than any launch does.
    """
    calls, cpu, of = timeline.api_calls, timeline.cpu_ops, ops.of_call
    start, end = calls.bounds()
    issued = launches.calls_with(ApiRole.LAUNCH, ApiRole.GRAPH_LAUNCH)
    issued = issued[np.isin(of[issued], of[rows])]
    # Calls of one op in order, once by their ends and once by their starts: the neighbours of a moment among them.
    by_end, by_start = issued[np.lexsort((end[issued], of[issued]))], issued[np.lexsort((start[issued], of[issued]))]
    spans = np.c_[cpu["start_us"][of[rows]], cpu.ends[of[rows]]]
    a, b = np.searchsorted(of[by_end], of[rows], "left").tolist(), np.searchsorted(of[by_end], of[rows], "right").tolist()
    launching = launches.roles == list(ApiRole).index(ApiRole.LAUNCH)
    for i, row in enumerate(rows.tolist()):
        before = a[i] + int(np.searchsorted(end[by_end[a[i] : b[i]]], start[row], "right"))
        after = a[i] + int(np.searchsorted(start[by_start[a[i] : b[i]]], end[row], "left"))
        if before > a[i]:
            spans[i, 0] = max(spans[i, 0], end[by_end[before - 1]])
        if launching[row]:
            spans[i, 1] = min(spans[i, 1], end[row])
        elif after < b[i]:
            spans[i, 1] = min(spans[i, 1], start[by_start[after]])
    return spans


def _cold(timeline: Timeline, launches: Launches) -> tuple[tuple[str, float, float], ...]:
    """First launches of a program that loads kernels lazily (CUDA's default), however brief: their time beyond other launches."""
    dur = timeline.api_calls["dur_us"]
    first = _first(timeline.gpu_ops, launches, len(dur))
    again = launches.calls_with(ApiRole.LAUNCH)
    again = again[~first[again]]
    again = again[np.isin(again, launches.call)]
    usual = COLD * float(np.median(dur[again])) if len(again) else UNSEEN_AGAIN_US
    if not first.any() or (len(again) and np.median(dur[first]) < usual):
        return ()
    return _on_idle_device(timeline, np.flatnonzero(first & (dur > usual)))


def _on_idle_device(timeline: Timeline, rows: Ints) -> tuple[tuple[str, float, float], ...]:
    """Of these calls those that leave the device idle, each with name, start and end."""
    calls = timeline.api_calls
    return _idle(timeline, calls["name"][rows].tolist(), *calls.bounds(rows))


def _idle(timeline: Timeline, names: Sequence[str], start: Floats, end: Floats) -> tuple[tuple[str, float, float], ...]:
    """Of these spans those that leave the device idle."""
    busy = union(*timeline.gpu_ops.bounds())
    idle: Floats = 1 - overlap_with(start, end, busy) / np.maximum(end - start, 1e-9)
    return tuple((str(names[i]), float(start[i]), float(end[i])) for i in np.flatnonzero(idle >= IDLE_DURING).tolist())


def _spans(calls: tuple[tuple[str, float, float], ...]) -> Spans:
    return union(np.array([c[1] for c in calls], float), np.array([c[2] for c in calls], float))


def _tuned(timeline: Timeline) -> tuple[tuple[str, float, float], ...]:
    """Convolutions that try algorithms: each with the events that it waits for inside. No other waits for events: one that times several algorithms to choose
    among them (`cudnn.benchmark`, MIOpen's find) does so once for each shape."""
    ops, calls = timeline.cpu_ops, timeline.api_calls
    rows = np.flatnonzero(matches(ops, _CONVOLUTION))
    waits = np.flatnonzero(matches(calls, _EVENT_WAIT))
    if not len(rows) or len(waits) < FEWEST_REPEATS:
        return ()
    start, end = ops.bounds(rows)
    found = []
    for pid, tid in {*zip(ops["pid"][rows].tolist(), ops["tid"][rows].tolist(), strict=True)}:
        mine = np.flatnonzero((ops["pid"][rows] == pid) & (ops["tid"][rows] == tid))
        here = waits[(calls["pid"][waits] == pid) & (calls["tid"][waits] == tid)]
        at = np.sort(calls["start_us"][here])
        tried = np.searchsorted(at, end[mine]) - np.searchsorted(at, start[mine]) >= FEWEST_REPEATS
        found += [(f"{ops['name'][int(rows[k])]} that tries algorithms", float(start[k]), float(end[k])) for k in mine[tried].tolist()]
    return tuple(found) if _seldom(timeline, np.array([f[1] for f in found])) else ()


def _fused(timeline: Timeline, ops: Ops) -> tuple[tuple[str, float, float], ...]:
    """Pauses in which TorchScript compiles: in an op around what its fuser made, right before that runs for the first time."""
    table = timeline.cpu_ops
    rows = np.flatnonzero(matches(table, _FUSED))
    if not len(rows):
        return ()
    _, first = np.unique(table["name"].codes[rows], return_index=True)
    start, edges = table["start_us"], _edges(timeline)
    pid, tid = table["pid"], table["tid"]
    found: dict[float, tuple[str, float, float]] = {}
    passed: set[int] = set()
    for row in rows[first][::-1].tolist():
        mine = edges[int(pid[row]), int(tid[row])]
        at, around = row, int(ops.parent[row])
        while around >= 0 and at not in passed:
            passed.add(at)  # what is around it has been looked at with it
            begun = max(float(start[around]), float(mine[max(np.searchsorted(mine, start[at]) - 1, 0)]))
            if start[at] - begun > LOADING_US:
                found[begun] = (f"compiling {table['name'][row]} in {table['name'][around]}", begun, float(start[at]))
            at, around = around, int(ops.parent[around])
    told = tuple(found[begun] for begun in sorted(found))
    if not told or not _seldom(timeline, np.array([one[1] for one in told])):
        return ()
    return _idle(timeline, [one[0] for one in told], np.array([one[1] for one in told]), np.array([one[2] for one in told]))


def _edges(timeline: Timeline) -> dict[tuple[int, int], Floats]:
    """By process and thread, when its ops and calls begin and end, in order."""
    both = concatenated([frame.select("pid", "tid", "start_us", "dur_us") for frame in (timeline.cpu_ops, timeline.api_calls)])
    pid, tid, start, end = both["pid"], both["tid"], both["start_us"], both["start_us"] + both["dur_us"]
    return {(int(pid[rows[0]]), int(tid[rows[0]])): np.sort(np.r_[start[rows], end[rows]]) for rows in Groups.by_keys(pid, tid).members}


def _seldom(timeline: Timeline, at_us: Floats) -> bool:
    """Whether what happens at these times comes in fewer than half of the marked steps. What each step does, as trying algorithms for
    shapes that change, is the program's way."""
    marks = timeline.annotations[matches(timeline.annotations, _STEP)]
    begun = np.searchsorted(np.sort(marks["start_us"]), at_us, side="right")
    return np.unique(begun).size < max(2, len(marks) / 2)


def _first_launches(ops: Table, launches: Launches, dur: Floats) -> Mask:
    """(n_calls,) calls that launch a kernel for the first time and take far longer than launches do."""
    issuing = launches.calls_with(ApiRole.LAUNCH)
    typical = float(np.median(dur[issuing])) if len(issuing) else np.inf
    return _first(ops, launches, len(dur)) & (dur > max(FIRST_US, FIRST_TIMES * typical))


def _first(ops: Table, launches: Launches, n_calls: int) -> Mask:
    """(n_calls,) calls that launch a kernel for the first time in the recording."""
    issuing = launches.roles == list(ApiRole).index(ApiRole.LAUNCH)
    found: Mask = np.zeros(n_calls, bool)
    linked = np.flatnonzero(launches.call >= 0)
    linked = linked[np.argsort(launches.call[linked], kind="stable")]
    _, first = np.unique(ops["name"].codes[linked], return_index=True)
    found[launches.call[linked[first]]] = True
    return found & issuing
