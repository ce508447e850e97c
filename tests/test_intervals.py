"""Interval algebra against brute force on small integers, where every answer can be counted point by point."""

from collections import Counter

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


@given(spans)
def test_what_is_covered_twice_are_the_points_that_two_intervals_cover(pairs):
    counted = Counter(t for s, e in pairs for t in range(int(s), int(e)))
    assert as_points(intervals.covered_twice(*arrays(pairs))) == {t for t, times in counted.items() if times > 1}


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


@given(spans)
def test_a_time_is_within_what_covers_its_point(pairs):
    times = np.r_[np.arange(-2.0, 45.0), np.nan]
    found = intervals.in_spans(times, intervals.union(*arrays(pairs)))
    assert {int(t) for t in times[found]} == points(pairs)


@given(spans, spans)
def test_overlap_of_each(a, b):
    starts, ends = arrays(a)
    got = intervals.overlap_with(starts, ends, intervals.union(*arrays(b)))
    assert got.tolist() == [len(points([p]) & points(b)) for p in a]


@st.composite
def forests(draw):
    """Intervals whose parents are known because they were made inside them, shuffled; children touch neither end."""
    rows = []

    def grow(group, start, end, parent, depth):
        if end - start < 4 or depth > 4:
            return
        at = start + 1
        for width in draw(st.lists(st.integers(1, 8), max_size=3)):
            if at + width >= end:
                break
            rows.append((group, at, at + width, parent))
            grow(group, at, at + width, len(rows) - 1, depth + 1)
            at += width + 1

    for group in range(2):
        grow(group, -1, 40, -1, 0)
    order = draw(st.permutations(range(len(rows))))
    place = {row: i for i, row in enumerate(order)}
    return [(*rows[row][:3], place.get(rows[row][3], -1)) for row in order]


@given(forests())
def test_nesting_finds_the_parent_each_was_made_in(rows):
    group, starts, ends, parents = (np.array([r[i] for r in rows], t) for i, t in enumerate((np.int64, float, float, np.int64)))
    assert intervals.nest(group, starts, ends).tolist() == parents.tolist()


def parents_of(*pairs):
    starts, ends = arrays(pairs)
    return intervals.nest(np.zeros(len(pairs), np.int64), starts, ends).tolist()


def test_nesting_at_the_edges():
    assert parents_of((0, 10), (2, 12), (11, 13)) == [-1, 0, -1], "a child that outlives its parent ends with it"
    assert parents_of((0, 10), (0, 10)) == [-1, 0], "of equal intervals the earlier row is around"
    assert parents_of((0, 5), (5, 9)) == [-1, -1], "what begins where another ends is not inside it"
    assert parents_of((0, 9), (3, 3), (3, 4)) == [-1, 2, 0], "nothing is inside an empty interval, which may be inside others"


@given(st.lists(st.integers(0, 40), max_size=40))
def test_what_ancestors_hold_is_what_climbing_one_by_one_finds(seeds):
    parents = np.array([seed % (i + 1) - 1 for i, seed in enumerate(seeds)], np.int64)

    def climb(row):
        while row >= 0:
            yield row
            row = parents[row]

    chosen = np.arange(len(parents)) % 3 == 0
    own = np.where(chosen, np.arange(len(parents)), -1)
    lines = [[a for a in climb(row) if chosen[a]] for row in range(len(parents))]
    assert intervals.over_ancestors(parents, own, -1, intervals.outermost).tolist() == [line[-1] if line else -1 for line in lines]
    assert intervals.over_ancestors(parents, own, -1, intervals.innermost).tolist() == [line[0] if line else -1 for line in lines]
    assert intervals.over_ancestors(parents, np.ones(len(parents), np.int64), 0, np.add).tolist() == [len(list(climb(r))) for r in range(len(parents))]


def test_overlaps_are_the_same_in_pieces(monkeypatch):
    rng = np.random.default_rng(3)
    starts, spans = rng.random(100), intervals.union(edges := rng.random(20), edges + 0.02)
    whole = intervals.overlap_with(starts, starts + 0.1, spans)
    monkeypatch.setattr("advisor.intervals.PIECE_ROWS", 7)
    assert intervals.overlap_with(starts, starts + 0.1, spans).tolist() == whole.tolist()
