"""What goes with a wait for a value: the ops around it."""

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from tests.rules.test_rules import found, repeat, widened

PERIOD = 200


def masked(before="aten::eq"):
    """An op of 20 µs on the host, then 80 µs that pick elements by its result, 15 of them a wait, then a product of 100."""

    def body(trace, at):
        trace.op(before, at, 20).launch(at + 19, at + 24, at + 26)
        trace.op("aten::index", at + 20, 80).op("aten::nonzero", at + 22, 58).launch(at + 50, at + 62, at + 64)
        trace.call("cudaStreamSynchronize", at + 52, 15).launch(at + 94, at + 99, at + 101)
        trace.op("aten::mm", at + 100, 100).launch(at + 199, at + 204, at + 206)

    return repeat(PERIOD, body)


def test_a_shape_that_is_not_asked_for_takes_the_whole_gather_with_it_and_the_comparison_before():
    saving = found("sync-stall", masked()).saving
    assert saving.expected_us == pytest.approx(100, abs=4)
    assert saving.high_us == widened("sync-stall", 0, 100, PERIOD)[1]


def test_what_is_neither_comparison_nor_reduction_stays():
    saving = found("sync-stall", masked("aten::mul")).saving
    assert saving.expected_us == pytest.approx(80, abs=4)
    assert saving.high_us == widened("sync-stall", 0, 80, PERIOD)[1]


def reading(op, inner):
    def body(trace, at):
        trace.op("aten::mean", at, 20).launch(at + 14, at + 19, at + 59)
        trace.op(op, at + 22, 48).op(inner, at + 23, 46).call("cudaStreamSynchronize", at + 30, 35)
        trace.op("aten::mm", at + 100, 100).launch(at + 199, at + 204, at + 206)

    return repeat(PERIOD, body)


def test_a_branch_may_gain_nothing_as_the_work_of_both_ways_is_done():
    # The wait holds the host for 35 µs; without the op it is 48 that go.
    read, branch = (found("sync-stall", reading(*ops)).saving for ops in (("aten::item", "aten::_local_scalar_dense"), ("aten::is_nonzero", "aten::item")))
    assert read.low_us == widened("sync-stall", 35, 0, PERIOD)[0] and branch.low_us == 0
    assert read.expected_us == branch.expected_us == pytest.approx(48, abs=4)


def unasked(api="cudaMemcpyAsync", memory="pageable", then=None):
    """A program without a framework: a kernel, and its result of 400 bytes, whose copy holds the host for 60 of 200 µs."""

    def body(trace, at):
        trace.launch(at, at + 5, at + 55)
        moved = {"kind": "memcpy", "bytes": 400, "copy_kind": "DtoH", "src_kind": "device", "dst_kind": memory}
        trace.launch(at + 6, at + 56, at + 58, f"Memcpy DtoH (Device -> {memory})", 60, api, **moved)
        if then:
            trace.call(then, at + 67, 5)
        trace.launch(at + 120, at + 125, at + 190)

    return repeat(PERIOD, body)


def test_what_only_pageable_memory_makes_wait_is_the_copys():
    assert not judged("sync-stall", unasked()) and judged("memcpy", unasked())
    for asked in (unasked("cudaMemcpy"), unasked(then="cudaStreamSynchronize"), unasked(memory="pinned")):
        assert judged("sync-stall", asked) and not judged("memcpy", asked), "the program waits on purpose"


def judged(rule, trace):
    """What a rule finds in a trace."""
    return run(trace.timeline(), [built_in()[rule]]).findings
