"""Interval algebra against brute force on small integers, where every answer can be counted point by point."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from advisor import intervals

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def arrays(pairs):
    a = np.array(pairs, float).reshape(-1, 2)
    return a[:, 0], a[:, 1]


def points(pairs):
    return {t for s, e in pairs for t in range(int(s), int(e))}


def as_points(result):
    return points(zip(*result, strict=True))


@given(spans)
def test_union_covers_the_same_points_once(pairs):
    starts, ends = intervals.union(*arrays(pairs))
    assert as_points((starts, ends)) == points(pairs)
    assert (starts[1:] > ends[:-1]).all()
    assert intervals.length((starts, ends)) == len(points(pairs))


@given(spans, st.randoms())
def test_union_is_free_of_order_and_shift(pairs, random):
    expected = intervals.union(*arrays(pairs))
    shuffled = list(pairs)
    random.shuffle(shuffled)
    starts, ends = arrays(shuffled)
    got = intervals.union(starts + 1000, ends + 1000)
    assert np.array_equal(got[0] - 1000, expected[0]) and np.array_equal(got[1] - 1000, expected[1])


@given(spans, spans)
def test_set_operations(a, b):
    ua, ub = intervals.union(*arrays(a)), intervals.union(*arrays(b))
    assert as_points(intervals.intersect(ua, ub)) == points(a) & points(b)
    assert as_points(intervals.subtract(ua, ub)) == points(a) - points(b)
    assert as_points(intervals.complement(ua, 5, 25)) == set(range(5, 25)) - points(a)


@given(spans, spans)
def test_overlap_of_each(a, b):
    starts, ends = arrays(a)
    got = intervals.overlap_with(starts, ends, intervals.union(*arrays(b)))
    assert got.tolist() == [len(points([p]) & points(b)) for p in a]


def brute_parents(group, starts, ends):
    """A stack a group, as a reader of the definition would write it."""
    parents = [-1] * len(starts)
    stacks = {}
    for i in sorted(range(len(starts)), key=lambda i: (starts[i], -ends[i], i)):
        stack = stacks.setdefault(group[i], [])
        while stack and stack[-1][1] <= starts[i]:
            stack.pop()
        end = ends[i]
        if stack:
            parents[i] = stack[-1][0]
            end = min(end, stack[-1][1])
        if ends[i] > starts[i]:
            stack.append((i, end))
    return parents


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 15), st.integers(0, 9)), max_size=16))
def test_nesting_equals_a_stack(rows):
    group = np.array([r[0] for r in rows], np.int64)
    starts = np.array([r[1] for r in rows], float)
    ends = starts + np.array([r[2] for r in rows], float)
    assert intervals.nest(group, starts, ends).tolist() == brute_parents(group, starts, ends)
