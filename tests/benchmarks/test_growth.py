"""No axis of a trace makes an analysis or its page grow faster than the axis: ten times of any costs at most twelve times the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.axes import AXES, growth


@pytest.mark.parametrize("axis", AXES)
def test_ten_times_an_axis_costs_at_most_twelve_times(axis: str, tmp_path: Path) -> None:
    short, long = growth(axis, tmp_path)
    assert not long.above(short), f"ten times the {axis} took {long}, one {short}"
