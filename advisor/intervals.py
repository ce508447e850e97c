"""Interval algebra on sorted numpy arrays. An interval set is a pair (starts, ends), float64, half-open [start, end).

Every function is O(n log n), takes intervals in any order and, unless it says otherwise, overlapping ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Codes = NDArray[np.int8]
"""Positions in a short list, an eighth of their memory as `Ints`."""
Mask = NDArray[np.bool_]
Spans = tuple[Floats, Floats]

PIECE_ROWS = 1 << 17
"""Rows of a large table that are worked on at once: so many fit the cache."""

NANOSECOND_US = 1e-3  # what no clock resolves
CLOCKS_APART_US = 5.0  # by as much the clocks of a host and its devices differ, which profilers align by sampling
EMPTY: Spans = (np.empty(0), np.empty(0))


def union(starts: Floats, ends: Floats) -> Spans:
    """The disjoint, sorted intervals that cover exactly what the given ones cover; touching ones merge, empty ones vanish."""
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return EMPTY
    if not (starts[1:] >= starts[:-1]).all():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.r_[True, starts[1:] > reach[:-1]]
    last = np.r_[first[1:], True]
    return starts[first], reach[last]


def covered_twice(starts: Floats, ends: Floats) -> Spans:
    """The disjoint, sorted intervals that at least two of the given ones cover; if they only touch is none."""
    edges = np.concatenate([starts, ends])
    opens = np.repeat([1, -1], len(starts))
    order = np.lexsort((opens, edges))
    twice = np.flatnonzero(np.cumsum(opens[order]) >= 2)
    return union(edges[order][twice], edges[order][twice + 1])


def joined(*several: Spans) -> Spans:
    """The disjoint, sorted intervals that cover what any of several sets covers."""
    return union(np.concatenate([s[0] for s in (EMPTY, *several)]), np.concatenate([s[1] for s in (EMPTY, *several)]))


def length(spans: Spans) -> float:
    """Total length of a disjoint set."""
    return float((spans[1] - spans[0]).sum())


def clip(spans: Spans, start: float, end: float) -> Spans:
    """The part of each interval inside [start, end)."""
    starts, ends = np.maximum(spans[0], start), np.minimum(spans[1], end)
    keep = ends > starts
    return starts[keep], ends[keep]


def complement(spans: Spans, start: float, end: float) -> Spans:
    """What of [start, end) a disjoint, sorted set leaves uncovered."""
    starts, ends = clip(spans, start, end)
    gap_starts, gap_ends = np.r_[start, ends], np.r_[starts, end]
    keep = gap_ends > gap_starts
    return gap_starts[keep], gap_ends[keep]


def subtract(a: Spans, b: Spans) -> Spans:
    """What of disjoint set `a` lies outside disjoint set `b`; both sorted."""
    if not len(a[0]) or not len(b[0]):
        return a
    return intersect(a, complement(b, float(min(a[0][0], b[0][0])), float(max(a[1][-1], b[1][-1]))))


def intersect(a: Spans, b: Spans) -> Spans:
    """What two disjoint, sorted sets both cover."""
    if not len(a[0]) or not len(b[0]):
        return EMPTY
    # Each pair that overlaps is found once: from a's interval, all of b's that end after its start and start before its end.
    first = np.searchsorted(b[1], a[0], side="right")
    last = np.searchsorted(b[0], a[1], side="left")
    count = np.maximum(last - first, 0)
    left = np.repeat(np.arange(len(count)), count)
    right = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    return np.maximum(a[0][left], b[0][right]), np.minimum(a[1][left], b[1][right])


def overlap_with(starts: Floats, ends: Floats, spans: Spans) -> Floats:
    """For each interval, how much of it a disjoint, sorted set covers. Shape (n,)."""
    if not len(spans[0]):
        return np.zeros(len(starts))
    covered = np.r_[0.0, np.cumsum(spans[1] - spans[0])]

    def covered_up_to(t: Floats) -> Floats:
        i = np.searchsorted(spans[0], t, side="right")
        inside = np.where(i > 0, np.maximum(spans[1][np.maximum(i, 1) - 1] - t, 0.0), 0.0)
        return covered[i] - inside

    found = np.empty(len(starts))
    for at in range(0, len(starts), PIECE_ROWS):
        piece = slice(at, at + PIECE_ROWS)
        np.maximum(covered_up_to(ends[piece]) - covered_up_to(starts[piece]), 0.0, out=found[piece])
    return found


def in_spans(times: Floats, spans: Spans) -> Mask:
    """(n,) whether each time lies in a disjoint, sorted set; not if it is NaN."""
    at = np.searchsorted(spans[0], times, side="right") - 1
    return (at >= 0) & (times < np.r_[spans[1], -np.inf][at])


def in_order(times: Floats) -> Floats:
    """Times in ascending order, unchanged if they are sorted already, as starts of events mostly are."""
    return times if bool((times[1:] >= times[:-1]).all()) else np.sort(times)


def nest(group: Ints, starts: Floats, ends: Floats) -> Ints:
    """For each interval, the row of the innermost interval of its group that is open when it starts, or -1. Shape (n,).

    An interval that outlives its parent (profilers write those) counts as ending with it. Of equal intervals the
    earlier row is the parent; an empty interval is nobody's parent.
    """
    order = np.lexsort((-ends, starts, group))
    group, starts, ends = group[order], starts[order], ends[order]
    n = len(order)
    rows = np.arange(n)
    edges = np.r_[0, np.flatnonzero(np.diff(group)) + 1, n].tolist()
    # From here on positions stand for times: an interval is open at a start that comes before its reach.
    reach = np.empty(n, np.int64)
    for a, b in pairwise(edges):
        reach[a:b] = a + np.searchsorted(starts[a:b], ends[a:b], side="left")
    first = np.r_[True, (np.diff(starts) != 0) | (np.diff(group) != 0)][:n]
    tie = np.maximum.accumulate(np.where(first, rows, 0))
    solid = ends > starts
    closed = np.cumsum(np.bincount(reach[solid], minlength=n + 1))[tie]
    depth = np.cumsum(solid) - solid - closed
    parents = _latest_above(depth, solid)
    # Where all stay inside their parents, that is the nesting. What shares time with one that does not is walked through.
    inside = (parents < 0) | ((reach <= reach[parents]) & (reach[parents] > tie))
    if not inside.all():
        alone = np.r_[True, np.maximum.accumulate(reach)[:-1] <= rows[1:]]
        cluster = np.cumsum(alone)
        walked = np.flatnonzero(np.isin(cluster, cluster[~inside]))
        parents[walked] = _walk(walked, cluster, starts, ends)
    result = np.full(n, -1, np.int64)
    result[order] = np.where(parents >= 0, order[parents], -1)
    return result


def over_ancestors(parents: Ints, own: Ints, none: int, merge: Callable[[Ints, Ints], Ints]) -> Ints:
    """For each row, `own` of it and of all its ancestors, merged from the innermost outwards. Shape (n,).

    `merge(inner, outer)` is associative, `none` its neutral value. Spans of ancestors are merged two by two, so that the
    passes are as many as the depth has digits in base two: a recursion a thousand deep takes ten, not a thousand.
    """
    n = len(parents)
    jump, found = np.r_[np.where(parents >= 0, parents, n), n], np.r_[own, none]
    while (jump < n).any():
        found, jump = merge(found, found[jump]), jump[jump]
    return found[:n]


def levels(parents: Ints) -> list[Ints]:
    """Rows by how many ancestors they have: the roots first, the deepest last."""
    depth = over_ancestors(parents, (parents >= 0).astype(np.int64), 0, np.add)
    return np.split(np.argsort(depth, kind="stable"), np.cumsum(np.bincount(depth))[:-1]) if len(depth) else []


def walk(parents: Ints) -> tuple[Ints, Ints]:
    """For each row its place in a walk that comes to a row, then to all below it, in order; and the place behind the last of these. Shape (n,) each."""
    below = levels(parents)
    size, first = np.ones(len(parents), np.int64), np.zeros(len(parents), np.int64)
    for level in reversed(below[1:]):
        np.add.at(size, parents[level], size[level])
    for level in below:
        rows = level[np.argsort(parents[level], kind="stable")]
        above = parents[rows]
        before = np.cumsum(size[rows]) - size[rows]
        of_first = before[np.searchsorted(above, above)]
        first[rows] = before - of_first + np.where(above >= 0, first[above] + 1, 0)
    return first, first + size


def outermost(inner: Ints, outer: Ints) -> Ints:
    """Merges rows of `over_ancestors`: the outermost that is one, -1 if none is."""
    return np.where(outer >= 0, outer, inner)


def innermost(inner: Ints, outer: Ints) -> Ints:
    """Merges rows of `over_ancestors`: the innermost that is one, -1 if none is."""
    return np.where(inner >= 0, inner, outer)


def _latest_above(depth: Ints, solid: np.ndarray) -> Ints:
    """For each position the latest before it that is one less deep and not empty, -1 at depth 0."""
    parents = np.full(len(depth), -1, np.int64)
    if not len(depth):
        return parents
    sizes = np.bincount(depth)
    # numpy sorts 16-bit integers by their digits, several times as fast as wider ones.
    narrow = depth.astype(np.int16) if len(sizes) < 1 << 15 else depth
    levels = np.split(np.argsort(narrow, kind="stable"), np.cumsum(sizes)[:-1])
    for above, level in pairwise(levels):
        above = above[solid[above]]
        parents[level] = above[np.searchsorted(above, level) - 1]
    return parents


def _walk(rows: Ints, group: Ints, starts: Floats, ends: Floats) -> list[int]:
    """The parents of these rows, which are in order, in turn with a stack: about 0.3 µs each."""
    parents: list[int] = []
    stack_rows: list[int] = []
    stack_ends: list[float] = []
    current = None
    for row, g, start, end in zip(rows.tolist(), group[rows].tolist(), starts[rows].tolist(), ends[rows].tolist(), strict=True):
        if g != current:
            current = g
            stack_rows.clear()
            stack_ends.clear()
        while stack_ends and stack_ends[-1] <= start:
            stack_ends.pop()
            stack_rows.pop()
        parents.append(stack_rows[-1] if stack_rows else -1)
        if stack_ends:
            end = min(end, stack_ends[-1])
        if end > start:
            stack_rows.append(row)
            stack_ends.append(end)
    return parents


def sums(values: Floats | Mask, several: Sequence[Ints]) -> Floats:
    """(n,) the sum of values at each of several sets of positions, in one pass over all of them."""
    lengths = np.array([len(at) for at in several], np.int64)
    at = np.concatenate([*several, lengths[:0]])
    found: Floats = np.asarray(np.bincount(np.repeat(np.arange(len(several)), lengths), values[at], len(several)), float)
    return found
