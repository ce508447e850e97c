"""What charts draw: a representative step, the moments of the findings, steps over time, GPU time by module and op."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np

from advisor.intervals import EMPTY, Codes, Floats, Ints, overlap_with
from advisor.knowledge.counts import FINDINGS
from advisor.knowledge.shares import CONSIDERABLE, HARDLY_ANY
from advisor.recordings.columns import Categorical
from advisor.recordings.timeline import GpuKind, Timeline
from advisor.report.charts import PIXELS, CopyRow, Cut, Launched, Leaf, Picture, StepTimes
from advisor.report.finding import BytesSaved, Finding
from advisor.views.charts import memory, queue
from advisor.views.charts.slices import Cutter
from advisor.views.charts.spotlight import moment
from advisor.views.groups import Groups
from advisor.views.kernels.measured import MeasuredKernels
from advisor.views.kernels.table import MeasuredTable
from advisor.views.time.device_time import Partition
from advisor.views.time.op_table import OpTable, issued_inside
from advisor.views.trace.gpu_kernels import FAMILIES, Kernels
from advisor.views.trace.modules import Place, places_of_ops
from advisor.views.trace.ops import Ops
from advisor.views.trace.origins import Origins
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace

SLICES = 100_000
"""Of the step drawn whole: what a viewer opens at once."""
MOMENTS = FINDINGS
"""Findings after these are small: their numbers say enough."""
WHOLE = 1_500_000
"""Of the whole trace: what a page zooms through."""
FAR_SPREAD = 3.0
"""A step further from the median than this many robust standard deviations is an outlier ..."""
FAR_SHARE = HARDLY_ANY
"""... if it also differs by a twentieth: steadier steps than that make no difference to anybody."""
MOST_FAR = CONSIDERABLE
"""Where more steps than this are far, the steps are of several kinds rather than outliers."""
_FURTHEST_AHEAD = 1.5
"""The host's part of the step is drawn with the GPU's unless it ran so many periods before it."""


def picture(workspace: Workspace, findings: Sequence[Finding]) -> Picture:
    """Everything that charts need of a workspace and its findings."""
    steps, cutter = workspace.get(Steps), workspace.get(Cutter)
    times = _step_times(steps, workspace.get(Partition))
    span = steps.edges_us[times.middle : times.middle + 2]
    tables = workspace.get(Tables)
    return Picture(
        cut_whole=partial(_whole, cutter, steps),
        step=_step(cutter, steps, times.middle, span),
        step_span_us=(float(span[0]), float(span[1])),
        steps=times,
        moments=tuple(moment(cutter, finding) if at < MOMENTS and not isinstance(finding.saving, BytesSaved) else None for at, finding in enumerate(findings)),
        leaves=tables.leaves,
        host_leaves=tables.host_leaves,
        copies=tables.copies,
        memory=memory.curves(cutter.timeline, steps),
        launched=_launched(workspace.get(MeasuredKernels), steps) if workspace.can_build(MeasuredTable.build) else {},
        queues=queue.curves(cutter.timeline, cutter.launches, steps),
        window_us=(steps.start_us, steps.end_us),
    )


def _step_times(steps: Steps, partition: Partition) -> StepTimes:
    main = partition.main
    parts = (main.compute, main.communication, main.copy, main.memset, main.idle) if main else (EMPTY,) * 5
    period = steps.periods_us
    away = np.abs(period - np.median(period))
    # 1.4826: the median distance of a normal distribution in standard deviations.
    far = (away > FAR_SPREAD * 1.4826 * np.median(away)) & (away > FAR_SHARE * np.median(period)) & (len(period) > 3)
    far &= far.mean() < MOST_FAR
    compute, communication, copy, memset, idle = (overlap_with(steps.edges_us[:-1], steps.edges_us[1:], part) for part in parts)
    return StepTimes(period, compute, communication, copy, memset, idle, far, int(away.argmin()))


def _whole(cutter: Cutter, steps: Steps) -> Cut | None:
    """All that was recorded; of a trace with too much the window of whole steps, or as much of its middle as there is room for."""
    start, end = cutter.extent
    if cutter.count(start, end) > WHOLE:
        start, end = steps.start_us, steps.end_us
    return _middle(cutter, start, end, WHOLE)


def _step(cutter: Cutter, steps: Steps, middle: int, span: Floats) -> Cut | None:
    start, end = float(span[0]), float(span[1])
    host_start, host_end = steps.host_edges_us[middle : middle + 2].tolist()
    reach = _FURTHEST_AHEAD * (end - start)
    if start - host_start <= reach and host_end - end <= reach:
        start, end = min(start, host_start), max(end, host_end)
    return _middle(cutter, start, end, SLICES)


def _middle(cutter: Cutter, start: float, end: float, most: int) -> Cut | None:
    """The stretch, or if it holds too many slices as much of its middle as has so many: the longest alone would say nothing of it."""
    while cutter.count(start, end) > most:
        start, end = start + (end - start) / 8, end - (end - start) / 8
    cut = cutter.cut(start, end, most)
    return cut if len(cut.lane) else None


def _launched(measured: MeasuredKernels, steps: Steps) -> dict[str, Launched]:
    """Where else the measured kernels run."""
    if measured.join is None:
        return {}
    work, found = measured.join.work, {}
    start_us = work.column("start_us") - steps.start_us
    for kernel in measured.kernels:
        at = measured.join.positions(kernel.profile)
        if len(at):
            found[work.kernel_name(int(at[0]))] = Launched(start_us[at], work.dur_us[at])
    return found


class Tables(msgspec.Struct, frozen=True):
    """The window's GPU time, and the host's, by module, line and op, and copies by direction; most time first."""

    leaves: tuple[Leaf, ...]
    host_leaves: tuple[Leaf, ...]
    copies: tuple[CopyRow, ...]

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, kernels: Kernels, ops: Ops, table: OpTable, partition: Partition, origins: Origins) -> Tables:
        frame = timeline.gpu_ops
        inside = np.flatnonzero(steps.holds(frame["start_us"]))
        return cls(_leaves(timeline, origins, kernels, inside), _host_leaves(timeline, ops, steps, table), _copies(timeline, kernels, partition, inside))


def _leaves(timeline: Timeline, origins: Origins, kernels: Kernels, inside: Ints) -> tuple[Leaf, ...]:
    frame = timeline.gpu_ops
    places, place = origins.places(inside)
    keys = place, origins.outer[inside], origins.inner[inside], frame["name"].codes[inside], kernels.family[inside]
    groups, us, longest = _grouped(keys, frame["dur_us"][inside])
    names, categories = frame["name"].categories, (*origins.names, "")
    made = []
    for group in longest[:PIXELS].tolist():
        where, first, last, name, family = (int(key[groups.first[group]]) for key in keys)
        made.append(_leaf(places[where], (categories[first], categories[last], str(names[name])), FAMILIES[family].value, us[group], groups.rows[group]))
    smaller = longest[PIXELS:]
    family_of = kernels.family[inside][groups.first[smaller]]
    return (*made, *(_rest(smaller[family_of == family], FAMILIES[family].value, us, groups) for family in np.unique(family_of).tolist()))


def _grouped(keys: Sequence[Ints | Codes], us: Floats) -> tuple[Groups, Floats, Ints]:
    """The rows by their keys, (n_groups,) how long those of each group take together, and the groups, the longest first."""
    groups = Groups.by_keys(*keys)
    spent = groups.sums(us=us)["us"]
    return groups, spent, np.argsort(-spent, kind="stable")


def _rest(smaller: Ints, family: str, us: Floats, groups: Groups) -> Leaf:
    return Leaf((f"({len(smaller)} smaller)",), family, float(us[smaller].sum()), int(groups.rows[smaller].sum()))


def _leaf(place: Place, names: tuple[str, ...], family: str, us: float, calls: int) -> Leaf:
    below = dict.fromkeys(name for name in names[:-1] if name and name != names[-1])
    return Leaf((*place.modules, *below, names[-1]), family, float(us), int(calls), place.line, len(place.modules))


def _host_leaves(timeline: Timeline, ops: Ops, steps: Steps, table: OpTable) -> tuple[Leaf, ...]:
    """The host's own time in each op, under modules, line and outermost op."""
    rows = np.flatnonzero(issued_inside(timeline.cpu_ops, steps) & (table.host_self_us > 0))
    if not len(rows):
        return ()
    places, place = places_of_ops(timeline, ops, rows)
    keys = place, ops.names[ops.outermost[rows]], ops.names[rows]
    groups, us, longest = _grouped(keys, table.host_self_us[rows])
    made = []
    for group in longest[:PIXELS].tolist():
        where, outer, op = (int(key[groups.first[group]]) for key in keys)
        made.append(_leaf(places[where], (ops.categories[outer], ops.categories[op]), "host", us[group], groups.rows[group]))
    smaller = longest[PIXELS:]
    return (*made, *([_rest(smaller, "host", us, groups)] if len(smaller) else []))


def _copies(timeline: Timeline, kernels: Kernels, partition: Partition, inside: Ints) -> tuple[CopyRow, ...]:
    frame = timeline.gpu_ops[inside[(kernels.copy | kernels.memset)[inside]]]
    if not len(frame):
        return ()
    exposed = np.zeros(len(frame))
    start, end = frame.bounds()
    for part in partition.devices:
        here = frame["device"] == part.device
        for spans in (part.copy, part.memset):
            exposed[here] += overlap_with(start[here], end[here], spans)
    columns = [frame[name] for name in ("kind", "copy_kind", "src_kind", "dst_kind")]
    alike = Groups.by_keys(*(column.codes for column in columns))
    what = Categorical.of_texts(map(_copy, *(column[alike.first] for column in columns)))
    groups = Groups.by_keys(what.codes[alike.of])
    sums = groups.sums(bytes=frame["bytes"].clip(min=0), us=end - start, exposed=exposed)
    names = what.codes[alike.of][groups.first]
    return tuple(
        CopyRow(str(what.categories[names[at]]), int(groups.rows[at]), int(sums["bytes"][at]), float(sums["us"][at]), float(sums["exposed"][at]))
        for at in np.lexsort((names, -sums["us"])).tolist()
    )


def _copy(kind: str, way: str, source: str, target: str) -> str:
    if kind != GpuKind.MEMCPY.value:
        return "memset"
    return (f"{way}, {source} to {target}" if source or target else way) or "copy"
