"""How much a finding matters, at both sides of each limit."""

from __future__ import annotations

import pytest

from advisor.report.finding import BytesSaved, Saving, severity_of


@pytest.mark.parametrize(
    ("percent", "severity"), [(100, "high"), (20, "high"), (19.9, "medium"), (5, "medium"), (4.9, "low"), (1, "low"), (0.9, "info"), (0, "info")]
)
def test_a_fifth_is_high_a_twentieth_medium_a_hundredth_low(percent: float, severity: str) -> None:
    assert severity_of(Saving(0.0, percent, 100.0, "simulated"), 100.0) == severity
    assert severity_of(BytesSaved(0.0, percent * 1e7, 1e9, "bound"), 1e9) == severity


def test_nothing_matters_of_a_whole_that_is_not_known() -> None:
    assert severity_of(Saving(0.0, 50.0, 100.0, "simulated"), 0.0) == "info"
