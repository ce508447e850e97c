"""exposed-communication: speaks from one rank, says what it cannot tell, and is quiet on what computing hides."""

import re

import pytest

from advisor.views.trace.needed_sums import NeededSums
from tests.rules.test_missed_overlap import GEMM, REDUCE
from tests.rules.test_rules import clear, found, queued


def step(each, compute=300.0, hidden=0.0, **sizes):
    """A training step of one product and one collective for each of `each`; the first `hidden` µs beside the product."""

    def body(trace, host, gpu):
        trace.note("Optimizer.step#SGD.step", host + 40, 5)
        trace.launch(host + 1, gpu, gpu + compute, GEMM, grid_blocks=132)
        at = gpu + compute - hidden
        for n, dur in enumerate(each):
            trace.launch(host + 2 + n, at, at + dur, REDUCE, stream=20 if hidden else 7, grid_blocks=24, **sizes)
            at += dur

    return queued(body, gpu=compute + sum(each) - hidden)


def test_two_thirds_exposed_is_never_nothing_to_fix():
    finding = found("exposed-communication", step([600.0]))
    assert finding.saving.low == 0 and finding.saving.expected == pytest.approx(0.35 * 600, rel=0.05)
    assert finding.severity == "high" and "A single rank's trace cannot" in finding.summary and "every rank" in finding.fix.steps[0]


def test_what_is_longer_than_its_like_looks_like_waiting():
    for sizes, said in (
        ({"in_elements": 1 << 20}, "At least 650 µs of it look like waiting"),
        ({}, "if they are equal, 650 µs of it is waiting"),
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
    assert clear("exposed-communication", step([])) == "no communication in the window"


def test_what_mostly_waits_is_possible_and_still_said():
    finding = found("exposed-communication", step([20.0, 800.0]))
    assert (finding.status, finding.severity) == ("possible", "low") and "every rank" in finding.fix.steps[0]
    assert "all ranks" in finding.decide_with and "which rank it waits for" in finding.possible_why


def layers(sum_us=30.0, count=8, kernel=REDUCE, trains=False, beside=False):
    """A step of layers: a product of 70 µs, a sum over ranks, a norm of 10 that reads it. trains: with a backward pass behind. beside: of another kernel all along."""

    def body(trace, host, gpu):
        at = gpu
        for n in range(count):
            trace.launch(host + 3 * n, at, at + 70, GEMM, grid_blocks=132)
            trace.launch(host + 3 * n + 1, at + 70, at + 70 + sum_us, kernel, stream=20, grid_blocks=24)
            if beside:
                trace.launch(host + 3 * n + 1.5, at + 70, at + 70 + sum_us, "elementwise_kernel", stream=7)
            trace.launch(host + 3 * n + 2, at + 70 + sum_us, at + 80 + sum_us, "rms_norm_kernel", grid_blocks=132)
            at += 80 + sum_us
        if trains:
            trace.op("autograd::engine::evaluate_function: MmBackward0", host + 3 * count, 5).launch(host + 3 * count + 1, at, at + 20, GEMM)

    return queued(body, gpu=count * (80 + sum_us) + 20 * trains)


@pytest.mark.parametrize("trains", [False, True])
def test_a_sum_that_the_next_op_needs_can_only_become_faster(trains):
    finding = found("exposed-communication", layers(trains=trains))
    assert finding.status == "possible" and finding.severity == "low" and "next op needs" in finding.summary
    assert finding.saving.low_us == 0 and finding.saving.expected_us == pytest.approx(8 * 15, rel=0.05)
    assert finding.saving.high_us <= 8 * 30 + 1, "no more than they take"
    fix = " ".join((finding.fix.title, *finding.fix.steps, finding.fix.code.before, finding.fix.code.after))
    assert "one_shot_all_reduce" in fix and not re.search("backward|DistributedDataParallel|grad", fix)


@pytest.mark.parametrize(
    ("trace", "some"),
    [
        (layers(), True),
        (layers(kernel=REDUCE.replace("AllReduce", "AllGather")), True),
        (layers(kernel=REDUCE.replace("AllReduce_Sum_bf16_RING_LL", "SendRecv")), False),
        (layers(beside=True), False),
        (layers(trains=True), True),
        (layers(trains=True, kernel=REDUCE.replace("AllReduce", "AllGather")), False),
        (step([100.0] * 6), False),
        (step([600.0]), False),
    ],
    ids=["tensor parallel", "in parts", "pipeline", "overlapped", "forward pass", "weights in parts", "gradients", "one average"],
)
def test_the_next_op_needs_what_nothing_independent_stands_beside(trace, some):
    needed = trace.get(NeededSums).needed
    assert needed.any() == some
    if some:
        assert needed.sum() >= 8 * 4


def test_where_nothing_is_trained_collectives_in_a_row_are_told_without_gradients():
    def body(trace, host, gpu):
        trace.launch(host + 1, gpu, gpu + 300, GEMM, grid_blocks=132)
        for n in range(4):
            trace.launch(host + 2 + n, gpu + 300 + 100 * n, gpu + 400 + 100 * n, REDUCE, grid_blocks=24)

    finding = found("exposed-communication", queued(body, gpu=700))
    fix = " ".join((finding.fix.title, *finding.fix.steps, finding.fix.code.before, finding.fix.code.after))
    assert finding.status == "found" and "async_op=True" in fix and not re.search("backward|DistributedDataParallel|grad", fix)
