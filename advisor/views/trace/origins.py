"""Which framework op, shapes and module each GPU op comes from: those around its launch, or around the capture of the graph that replays it."""

from __future__ import annotations

import msgspec
import numpy as np

from advisor.intervals import Ints
from advisor.recordings.columns import chosen
from advisor.recordings.timeline import Timeline
from advisor.views.trace.annotated_graphs import AnnotatedGraphs
from advisor.views.trace.captured_graphs import CapturedGraphs
from advisor.views.trace.launches import Launches
from advisor.views.trace.modules import Place, places_of_calls, places_of_gpu
from advisor.views.trace.ops import Ops


class Origins(msgspec.Struct, frozen=True, eq=False):
    """inner, outer: (n_gpu,) positions in `names` of the innermost and the outermost op, -1 if none is known. shape: (n_gpu,) the same in `shapes`
    of the innermost op's dims as recorded."""

    names: tuple[str, ...]
    inner: Ints
    outer: Ints
    shapes: tuple[str, ...]
    shape: Ints
    timeline: Timeline
    ops: Ops
    launches: Launches
    captured: CapturedGraphs | None
    annotated: AnnotatedGraphs | None

    @classmethod
    def build(cls, timeline: Timeline, ops: Ops, launches: Launches, captured: CapturedGraphs | None, annotated: AnnotatedGraphs | None) -> Origins:
        names, shapes = ops.categories, tuple(map(str, timeline.cpu_ops["dims"].categories))
        inner, outer, shape = _codes(timeline, ops, ops.of_gpu)
        if captured:
            theirs = _codes(captured.timeline, captured.ops, captured.op)
            before = len(names), len(names), len(shapes)
            inner, outer, shape = (np.where(captured.op >= 0, own + n, mine) for mine, own, n in zip((inner, outer, shape), theirs, before, strict=True))
            names = (*names, *captured.ops.categories)
            shapes = (*shapes, *map(str, captured.timeline.cpu_ops["dims"].categories))
            # An op of one name is one op, wherever it was recorded.
            first = {name: at for at, name in reversed([*enumerate(names)])}
            same = np.array([*(first[name] for name in names), -1])
            inner, outer = same[inner], same[outer]
        return cls(names, inner, outer, shapes, shape, timeline, ops, launches, captured, annotated)

    def places(self, rows: Ints) -> tuple[list[Place], Ints]:
        """Modules and lines of GPU ops by their rows: as `modules.places_of_gpu`."""
        inner = chosen(self.ops.of_gpu, rows)
        outermost = np.where(inner >= 0, self.ops.outermost[inner], -1) if len(self.ops.outermost) else inner
        places, place = places_of_gpu(self.timeline, self.ops, self.launches, rows, outermost)
        if self.captured is not None:
            known = np.flatnonzero(self.captured.call[rows] >= 0)
            theirs, their_place = places_of_calls(self.captured.timeline, self.captured.call[rows[known]])
            place = place.copy()
            place[known] = len(places) + their_place
            places = [*places, *theirs]
        return places, place if self.annotated is None else _named(places, place, self.annotated, rows)


def _named(places: list[Place], place: Ints, annotated: AnnotatedGraphs, rows: Ints) -> Ints:
    """The program's names of graphs' nodes for ops without a known module; `places` grows by them."""
    scopes = dict.fromkeys(one.scope for one in annotated.said if one.scope)
    of_scope = {scope: len(places) + at for at, scope in enumerate(scopes)}
    named = np.array([*(of_scope.get(one.scope, -1) for one in annotated.said), -1])[annotated.of[rows]]
    unknown = np.array([not one.modules for one in places], bool)[place]
    places += [Place((scope,)) for scope in scopes]
    return np.where((named >= 0) & unknown, named, place)


def _codes(timeline: Timeline, ops: Ops, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Of ops by their rows, -1 if there is none: the name, that of the outermost around them, and the dims."""
    if not len(ops.names):
        return (np.broadcast_to(np.int64(-1), len(rows)),) * 3
    dims = timeline.cpu_ops["dims"].codes.astype(np.int64)
    return tuple(np.where(rows >= 0, of[rows], -1) for of in (ops.names, ops.names[ops.outermost], dims))  # type: ignore[return-value]
