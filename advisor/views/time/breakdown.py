"""Where each microsecond of a step went: each moment of the window belongs to a kernel or to a cause of idle time."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from advisor.intervals import NANOSECOND_US, Codes, Floats, Ints, Spans, overlap_with
from advisor.knowledge.idle import CAUSES
from advisor.recordings.columns import Categorical, chosen
from advisor.recordings.timeline import Timeline
from advisor.report.charts import PIXELS
from advisor.report.step import Part, PartKind
from advisor.views.groups import Groups
from advisor.views.replay.replay import Replay
from advisor.views.time.device_time import Partition
from advisor.views.time.idle_gaps import Gaps
from advisor.views.trace.gpu_kernels import FAMILIES, Kernels
from advisor.views.trace.origins import Origins
from advisor.views.trace.steps import Steps

_REPEAT = re.compile(r"_\d+$")
_WRAPPER = "OptimizedModule"
"""What torch.compile puts around a module: the module is the same."""

_SHAPES = 160  # characters of an op's shapes in a table


class Breakdown(msgspec.Struct, frozen=True):
    """Parts of a step on the busiest device, in order of their first run; they sum to the true step.

    Time with several ops belongs to computing before communication, copies and memsets, and within a class to the op that started first.
    """

    parts: tuple[Part, ...]

    @classmethod
    def build(cls, timeline: Timeline, steps: Steps, replay: Replay, partition: Partition, gaps: Gaps, kernels: Kernels, origins: Origins) -> Breakdown:
        main = partition.main
        if main is None:
            return cls((Part(kind="idle", name="host", us=replay.true_step.expected_us),))
        frame = timeline.gpu_ops
        start = frame["start_us"]
        rows = np.flatnonzero((frame["device"] == main.device) & (start < steps.end_us))
        rows = rows[start[rows] + frame["dur_us"][rows] > steps.start_us]
        start = start[rows]
        end = start + frame["dur_us"][rows]
        kind, own = np.zeros(len(rows), np.int8), np.zeros(len(rows))
        classes = ((kernels.compute, main.compute), (kernels.communication, main.communication), (kernels.copy, main.copy), (kernels.memset, main.memset))
        for number, (wanted, spans) in enumerate(classes):
            here = wanted[rows]
            kind[here] = number
            own[here] = _exclusive(start, end, spans) if here.all() else _exclusive(start[here], end[here], spans)
        del end
        start -= steps.start_us
        parts = _parts(timeline, kernels, origins, rows, kind, own, start)
        idle = {cause: float(gaps.causes[cause].sum() - (gaps.recording_us if cause == "profiler" else 0.0)) for cause in CAUSES}
        parts += [Part(kind="idle", name=cause, us=us) for cause, us in idle.items() if us > NANOSECOND_US]
        # Sums of many spans drift by rounding, and the GPU may be slower in a longer run: the parts are held to the step.
        scale = replay.true_step.expected_us / (sum(p.us for p in parts) or 1.0)
        return cls(tuple(_per_step(part, scale, steps.steps) for part in parts))


KINDS: tuple[PartKind, ...] = ("compute", "communication", "copy", "memset")


def _exclusive(start: Floats, end: Floats, spans: Spans) -> Floats:
    """Time of each op, in order of start, that is in `spans` and in no op before it."""
    if not len(start):
        return start
    first = start.copy()
    np.maximum(first[1:], np.maximum.accumulate(end)[:-1], out=first[1:])
    return overlap_with(first, np.maximum(end, first), spans)


def _parts(timeline: Timeline, kernels: Kernels, origins: Origins, rows: Ints, kind: Codes, own: Floats, since_us: Floats) -> list[Part]:
    frame = timeline.gpu_ops
    places, path = origins.places(rows)
    # Layers of one kind are one part: which of them it was does not tell two programs apart.
    names = ["/".join(_REPEAT.sub("", m) for m in modules if not m.startswith(_WRAPPER)) for modules, _ in places]
    module = Categorical.of_texts(names)[path]
    op, shape = chosen(origins.inner, rows), chosen(origins.shape, rows)
    keys = kind, frame["name"].codes[rows], kernels.family[rows], op, module.codes
    groups = Groups.by_keys(*keys)
    us, calls, since = groups.sums(own=own)["own"], groups.rows, np.full(len(groups.first), np.inf)
    np.minimum.at(since, groups.of, since_us)
    order = np.argsort(-us, kind="stable")
    titles, shapes = frame["name"].categories, origins.shapes
    kept = order[:PIXELS][np.argsort(since[order[:PIXELS]], kind="stable")]
    first = groups.first[kept]
    parts = [
        Part(
            kind=KINDS[k],
            name=str(titles[name]),
            family=FAMILIES[family].value,
            op=origins.names[o] if o >= 0 else "",
            module=str(module.categories[m]),
            shapes=str(shapes[s])[:_SHAPES] if s >= 0 else "",
            calls=float(n),
            us=spent,
        )
        for k, name, family, o, m, s, n, spent in zip(
            *(column[first].tolist() for column in (*keys, shape)), calls[kept].tolist(), us[kept].tolist(), strict=True
        )
    ]
    smaller = order[PIXELS:]
    k, family = kind[groups.first[smaller]], kernels.family[rows[groups.first[smaller]]]
    rest = Groups.by_keys(k, family)
    merged = rest.sums(calls=calls[smaller], us=us[smaller])
    parts += [
        Part(kind=KINDS[k[at]], name="(smaller)", family=FAMILIES[family[at]].value, calls=n, us=spent)
        for _, _, at, n, spent in sorted(
            zip(*(column.tolist() for column in (k[rest.first], family[rest.first], rest.first, merged["calls"], merged["us"])), strict=True)
        )
    ]
    return parts


def _per_step(part: Part, scale: float, steps: int) -> Part:
    return Part(part.kind, part.name, part.family, part.op, part.module, part.shapes, part.calls / steps, part.us * scale)
