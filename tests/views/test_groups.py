"""Rows grouped by keys: numbered as they are met, whatever numbers the keys are."""

import numpy as np
import pandas as pd
import pytest

from advisor.views.groups import Groups, distinct


def test_groups_are_numbered_as_they_are_first_met():
    groups = Groups.by_keys(np.array([5, 3, 5, 3]), np.array([1, 1, 1, 2]))
    assert groups.of.tolist() == [0, 1, 0, 2]
    assert groups.first.tolist() == [0, 1, 3]
    assert groups.rows.tolist() == [2, 1, 1]


def test_a_sum_passes_over_what_is_not_known():
    groups = Groups.by_keys(np.array([7, 7, 1]))
    sums = groups.sums(us=np.array([1.5, np.nan, np.nan]), calls=np.array([1, 2, 3]))
    assert sums["us"].tolist() == [1.5, 0.0] and sums["calls"].tolist() == [3.0, 3.0]


def test_sums_are_the_same_in_pieces(monkeypatch):
    rng = np.random.default_rng(2)
    groups, us = Groups.by_keys(rng.integers(0, 9, 1000)), rng.random(1000)
    whole = groups.sums(us=us, one=np.broadcast_to(1.5, 1000))
    for rows in (1, 3, 250):
        monkeypatch.setattr("advisor.views.groups.PIECE_ROWS", rows)
        pieces = groups.sums(us=us, one=np.broadcast_to(1.5, 1000))
        assert {name: column.tolist() for name, column in pieces.items()} == {name: column.tolist() for name, column in whole.items()}


def test_a_key_that_all_rows_share_makes_no_groups():
    same, key = np.broadcast_to(np.int64(7), 4), np.array([5, 3, 5, 3])
    assert Groups.by_keys(same, key).of.tolist() == Groups.by_keys(key, same).of.tolist() == [0, 1, 0, 1]
    assert Groups.by_keys(same).of.tolist() == [0, 0, 0, 0] and Groups.by_keys(same).first.tolist() == [0]


def test_no_rows_are_no_groups():
    groups = Groups.by_keys(np.empty(0, np.int64), np.empty(0, np.int8))
    assert not len(groups.of) and not len(groups.first) and not len(groups.sums(us=np.empty(0))["us"])


@pytest.mark.parametrize("reach", [3, 1000, 2**62], ids=["few", "some", "as far as integers go"])
def test_groups_are_those_of_pandas(reach):
    rng = np.random.default_rng(1)
    keys = [rng.choice(rng.integers(-reach, reach, 40), 5000) for _ in range(3)] + [rng.integers(-1, 2, 5000).astype(np.int8)]
    groups = Groups.by_keys(*keys)
    frame = pd.DataFrame(dict(enumerate(keys)))
    assert groups.of.tolist() == frame.groupby(list(frame), sort=False).ngroup().tolist()
    assert groups.first.tolist() == frame.drop_duplicates().index.tolist()


def test_distinct_values_are_in_order():
    assert distinct(np.array([4, 1, 4, 0])).tolist() == [0, 1, 4]
    assert distinct(np.array([4, -1, 4, 0])).tolist() == [-1, 0, 4]
    assert distinct(np.empty(0, np.int64)).tolist() == []


def test_groups_are_added_up_compared_and_counted():
    groups, us = Groups.by_keys(np.array([7, 3, 7, 7, 3])), np.array([5.0, 1.0, np.nan, 2.0, 4.0])
    assert groups.sums(us=us)["us"].tolist() == [7, 5] and groups.minima(np.arange(5)).tolist() == [0, 1]
    assert groups.medians(us).tolist() == [3.5, 2.5] and groups.nth.tolist() == [0, 0, 1, 2, 1]
    assert [rows.tolist() for rows in groups.members] == [[0, 2, 3], [1, 4]]
