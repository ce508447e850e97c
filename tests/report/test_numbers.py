"""Numbers as people read them."""

import pytest

from advisor.report import numbers


@pytest.mark.parametrize(
    ("us", "written"),
    [
        (0, "0 µs"), (0.001, "<0.01 µs"), (0.5, "0.50 µs"), (9.994, "9.99 µs"), (9.996, "10.0 µs"), (99.96, "100 µs"),
        (999.4, "999 µs"), (999.6, "1.00 ms"), (12_410, "12.4 ms"), (999_600, "1.00 s"), (5e9, "5,000 s"),
        (float("nan"), "–"), (float("inf"), "–"),
    ],
)  # fmt: skip
def test_durations(us: float, written: str) -> None:
    assert numbers.duration(us) == written


def test_work_on_several_streams_may_take_longer_than_the_step() -> None:
    assert numbers.duration_of(5_600, 6_350) == "5.60 ms of 6.35 ms" and numbers.duration_of(5_601, 5_600) == "5.60 ms of 5.60 ms"
    assert numbers.duration_of(6_350, 5_600) == "6.35 ms side by side in 5.60 ms"


@pytest.mark.parametrize(
    ("fraction", "written"),
    [
        (0, "0%"), (0.0004, "<0.1%"), (0.042, "4.2%"), (0.0994, "9.9%"), (0.0996, "10%"), (0.38, "38%"), (0.994, "99%"),
        (0.9961, "99.6%"), (0.99999, "99.9%"), (1, "100%"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_percents(fraction: float, written: str) -> None:
    assert numbers.percent(fraction) == written


def test_intervals_say_a_unit_once() -> None:
    assert numbers.interval(6_500, 8_200) == "6.50 to 8.20 ms"
    assert numbers.interval(350, 1_420) == "350 µs to 1.42 ms"
    assert numbers.interval(0, 420) == "0 to 420 µs"
    assert numbers.interval(500, 500) == "500 µs"


def test_what_does_not_fit_ends_with_a_clause_or_a_word() -> None:
    said = "Two kernels take 1.20 ms of a step; fused they would take less. The rest stays."
    assert numbers.whole_clauses(said, 200) == said
    assert numbers.whole_clauses(said, 70) == "Two kernels take 1.20 ms of a step; fused they would take less."
    assert numbers.whole_clauses(said, 60) == "Two kernels take 1.20 ms of a step."
    assert numbers.whole_clauses(said, 20) == "Two kernels take…"
    assert numbers.whole_clauses("x" * 30, 20) == numbers.cut("x" * 30, 20) == "x" * 19 + "…"


def test_sizes_and_shares() -> None:
    assert [numbers.size(n) for n in (0, 999, 1_500, 1_040_222_118)] == ["0 bytes", "999 bytes", "1.50 kB", "1.04 GB"]
    assert [numbers.share(*p) for p in ((1, 2), (3, 2), (-1, 2), (1, 0), (1, float("nan")))] == [0.5, 1, 0, 0, 0]
    assert numbers.speedup(2, 1) == "2.00×"
    assert numbers.speedup(331_000, 72.6) == "over 100×", "a ratio of a hundredth's error says nothing"
    assert numbers.speedup(1, 1) == numbers.speedup(1, 0) == ""


def test_counts_agree_with_their_noun() -> None:
    assert [numbers.counted(n, "chain") for n in (0, 1, 1.4, 2, 2000)] == ["0 chains", "1 chain", "1 chain", "2 chains", "2,000 chains"]
    assert numbers.counted(3, "fix", "fixes") == "3 fixes"


def test_what_is_less_than_half_is_not_most():
    assert numbers.mostly(3.0, 6.0) == "mostly" and numbers.mostly(2.9, 6.0) == "most of all"
