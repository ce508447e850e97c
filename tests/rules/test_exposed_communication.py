"""exposed-communication: speaks from one rank, says what it cannot tell, and is quiet on what computing hides."""

import pytest

from tests.rules.test_missed_overlap import GEMM, REDUCE
from tests.rules.test_rules import clear, found, queued


def step(each, compute=300.0, hidden=0.0, **sizes):
    """A step of one product and one collective for each of `each`; the first `hidden` µs beside the product."""

    def body(trace, host, gpu):
        trace.launch(host + 1, gpu, gpu + compute, GEMM, grid_blocks=132)
        at = gpu + compute - hidden
        for n, dur in enumerate(each):
            trace.launch(host + 2 + n, at, at + dur, REDUCE, stream=20 if hidden else 7, grid_blocks=24, **sizes)
            at += dur

    return queued(body, gpu=compute + sum(each) - hidden)


def test_two_thirds_exposed_is_never_nothing_to_fix():
    finding = found("exposed-communication", step([600.0]))
    assert finding.saving.low == 0 and finding.saving.expected == pytest.approx(0.35 * 600, rel=0.05)
    assert finding.severity == "high" and "One rank alone cannot tell" in finding.summary and "every rank" in finding.fix.steps[0]


def test_what_is_longer_than_its_like_looks_like_waiting():
    for sizes, said in (
        ({"in_elements": 1 << 20}, "At least 650 µs of it look like waiting"),
        ({}, "If those of one kind move as much, 650 µs of it are waiting"),
    ):
        finding = found("exposed-communication", step([100.0, 800.0], **sizes))
        # 100 and 150 of it may be transfer.
        assert finding.saving.expected == pytest.approx(0.35 * 250, rel=0.05) and said in finding.summary


def test_both_sides_of_its_threshold():
    assert found("exposed-communication", step([100.0]), min_exposed_share=0.24)
    assert "25%" in clear("exposed-communication", step([100.0]), min_exposed_share=0.26)


def test_what_computing_hides_is_quiet():
    assert "0% of the step" in clear("exposed-communication", step([200.0], hidden=200.0))


def test_one_gpu_alone_has_none():
    assert clear("exposed-communication", step([])) == "no communication inside the window"


def test_what_mostly_waits_is_possible_and_still_said():
    finding = found("exposed-communication", step([20.0, 800.0]))
    assert (finding.status, finding.severity) == ("possible", "low") and "every rank" in finding.fix.steps[0]
    assert "all ranks" in finding.decide_with and "for whom it waits" in finding.possible_why
