"""Columns: text by codes, tables of both kinds of column."""

import numpy as np
import pytest

from advisor.recordings.columns import Categorical, Table, concatenated, joined, numbered


def test_text_is_held_once_and_told_by_row():
    column = Categorical.of_texts(["b", "a", "b", ""])
    assert column.categories.tolist() == ["", "a", "b"] and column.codes.tolist() == [2, 1, 2, 0] and column.codes.dtype == np.int8
    assert column[0] == "b" and column[np.array([3, 1])].tolist() == ["", "a"] and list(column) == column.tolist() == ["b", "a", "b", ""]
    assert (column == "b").tolist() == [True, False, True, False] and (column != "b").tolist() == [False, True, False, True]
    assert not (column == "c").any() and column.isin(["", "a", "c"]).tolist() == [False, True, False, True]
    assert column[:2].categories.tolist() == ["", "a", "b"] and column[:2].without_unused().categories.tolist() == ["a", "b"]
    assert Categorical(np.zeros(2), [str(number) for number in range(1 << 7)]).codes.dtype == np.int16


def test_columns_of_text_are_joined_whatever_their_codes():
    both = joined([Categorical([1, 0], ["a", "b"]), Categorical([0, -1, 1], ["c", "a"])])
    assert both.categories.tolist() == ["a", "b", "c"] and both.codes.tolist() == [1, 0, 2, -1, 0]


def test_rows_of_a_table_are_chosen_as_numpy_chooses_them():
    table = Table({"us": np.array([3.0, 1.0, 1.0]), "name": Categorical.of_texts(["c", "b", "a"])})
    assert len(table) == 3 and list(table) == ["us", "name"] and "us" in table
    assert table[table["us"] < 2]["name"].tolist() == ["b", "a"] and table[1:]["us"].tolist() == [1.0, 1.0]
    assert table.sorted_by("us")["name"].tolist() == ["b", "a", "c"], "ties as they were"
    assert list(table.select("name")) == ["name"] and table.with_columns(us=np.zeros(3))["us"].tolist() == [0, 0, 0]
    assert concatenated([table, table])["name"].tolist() == ["c", "b", "a"] * 2
    with pytest.raises(ValueError, match="differ in length"):
        table.with_columns(us=np.zeros(2))


def test_a_table_is_a_data_frame_to_whom_wants_one():
    frame = Table({"us": np.array([3.0, 1.0]), "name": Categorical.of_texts(["c", "b"])}).to_pandas()
    assert frame.groupby("name", observed=True)["us"].sum().to_dict() == {"b": 1.0, "c": 3.0}


@pytest.mark.parametrize("values", [np.array([5, -1, 5, 2]), np.array([5, -1, 5, 2], object)], ids=["numbers", "objects"])
def test_values_are_numbered_as_they_are_first_met(values):
    codes, known = numbered(values)
    assert codes.tolist() == [0, 1, 0, 2] and known.tolist() == [5, -1, 2]
