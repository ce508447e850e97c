"""Compares what readers made, every column of every table: a Timeline with the reference reader's, a piece with another decoder's."""

from __future__ import annotations

from typing import Any

import numpy as np

from advisor.recordings.timeline import TABLES, Timeline
from advisor.sources.kineto.columns import Strings
from advisor.sources.kineto.transpose import Piece


def assert_same(timeline: Timeline, tables: dict[str, list[dict[str, Any]]], base_ns: int | None = None) -> None:
    for name, spec in TABLES.items():
        frame, rows = getattr(timeline, name), tables.get(name, [])
        assert len(frame) == len(rows), f"{name}: {len(frame)} rows, not {len(rows)}"
        for column, dtype in spec.items():
            if column == "compiled":
                continue  # no trace of torch says it
            expected = [row[column] for row in rows]
            found = frame[column].tolist()
            if column in ("start_us", "dur_us"):
                # The float64 nearest to the exact time, so that it is equal to any other reader's.
                expected = [value / 1000.0 for value in expected]
            if column == "start_us" and name in ("gpu_ops", "gpu_annotations"):
                expected = [value + timeline.source.device_clock_us for value in expected]  # set after reading, from the launches
            if dtype == "f8":
                np.testing.assert_array_equal(np.array(found, float), np.array(expected, float), f"{name}.{column}")
            elif found != expected:
                first = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
                raise AssertionError(f"{name}.{column}[{first}] is {found[first]!r}, not {expected[first]!r}")
    if base_ns is not None:
        assert timeline.base_ns == base_ns


def assert_same_piece(found: Piece, expected: Piece) -> None:
    """Equal to the bit, down to the order of tables, columns and the numbers of strings."""
    for what in ("events", "bad_durations", "bad_times", "exact", "ranges"):
        assert getattr(found, what) == getattr(expected, what), what
    assert list(found.categories.items()) == list(expected.categories.items())
    assert list(found.tables) == list(expected.tables)
    for table, columns in expected.tables.items():
        assert list(found.tables[table]) == list(columns)
        for name, column in columns.items():
            other = found.tables[table][name]
            if isinstance(column, Strings):
                assert isinstance(other, Strings) and other.values == column.values, f"{table}.{name}"
                other, column = other.codes, column.codes
            assert isinstance(other, np.ndarray) and other.dtype == column.dtype, f"{table}.{name}"
            if not np.array_equal(other, column, equal_nan=column.dtype.kind == "f"):
                np.testing.assert_array_equal(other, column, f"{table}.{name}")
