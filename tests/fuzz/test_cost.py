"""Each shape small: read, or refused; and what breaks a law of cost."""

from pathlib import Path

import pytest

import advisor
from advisor.errors import AdvisorError
from tests.fuzz.cost import MORE, Cost, Spent, of_size
from tests.fuzz.shapes import SHAPES
from tests.paths import sampled


@pytest.mark.parametrize("shape", sampled([*SHAPES], 8))
def test_a_shape_is_analysed_or_refused(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    path.write_bytes(of_size(SHAPES[shape], 20_000))
    try:
        report = advisor.analyze(path).report
    except AdvisorError:
        return
    assert not report.failed


def cost(*cpu_s: float, shape: str = "s", peak_mb: float = 100.0) -> Cost:
    return Cost(shape, 1.0, tuple(Spent(each, peak_mb) for each in cpu_s), start_s=1.0)


def test_growth_is_that_of_what_is_beyond_start_up() -> None:
    assert cost(1.5, 2.0, 3.0).exponent == pytest.approx(1.0) and not cost(1.5, 2.0, 3.0).broken
    assert cost(1.25, 2.0, 5.0).exponent == pytest.approx(2.0) and cost(1.25, 2.0, 5.0).broken == "exponent 2.00"
    assert cost(1.0, 1.0, 1.3).exponent is None, "too little to tell"


def test_laws_of_time_and_memory() -> None:
    assert cost(3.0, 4.0, 5.1).broken == "5.1 s of CPU" and cost(1.0, 1.0, 1.0, peak_mb=301).broken == "301 MB"
    assert MORE.keys() <= SHAPES.keys() and not cost(3.0, 4.0, 5.1, shape=next(iter(MORE))).broken
