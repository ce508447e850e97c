"""Compares a Timeline with the reference reader's tables, every column of every table, times to the nanosecond."""

from __future__ import annotations

from typing import Any

import numpy as np

from advisor.recordings.timeline import TABLES, Timeline


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
            if dtype == "f8":
                np.testing.assert_array_equal(np.array(found, float), np.array(expected, float), f"{name}.{column}")
            elif found != expected:
                first = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
                raise AssertionError(f"{name}.{column}[{first}] is {found[first]!r}, not {expected[first]!r}")
    if base_ns is not None:
        assert timeline.base_ns == base_ns
