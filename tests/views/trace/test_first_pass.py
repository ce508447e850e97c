"""first-pass: a recording of what a program does once, told from one that repeats without marks and from a program that runs once."""

import numpy as np
import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.views.trace.first_pass import FirstPass
from tests.build import Trace

COLD = "abcdefghijklmnopqrst"
"""Twenty ops of twenty kernels."""
WARM = "abcaabbcacbbaccabcba"
"""Twenty ops of three kernels, in no order that repeats."""


def recorded(names, context_us=500_000.0, recorder="torch", memory=(), freed=0):
    """A context made in one call, then an op every 60 µs whose kernel takes 10 and begins 20 after the op; `memory`: ops before which device
    memory is taken; before the first `freed` some is given back."""
    trace = Trace(recorder=recorder)
    trace.call("cudaFree", 0, context_us)
    for k, name in enumerate(names):
        at = context_us + 60 * k
        if recorder == "torch":
            trace.op("aten::mm", at, 18)
        if k in memory:
            trace.call("cudaMalloc", at + 2, 8)
        if k < freed:
            trace.call("cudaFree", at + 17, 1)
        trace.launch(at + 12, at + 20, at + 30, f"kernel_{name}", dur=4)
    return trace


@pytest.mark.parametrize(
    ("trace", "only"),
    [
        (recorded(COLD), True),
        (recorded(WARM), False),  # its kernels are met by the third op
        (recorded(COLD, context_us=1_000.0), False),  # what happens once is less than the pass
        (recorded(COLD, recorder="nsys"), False),  # a program in plain CUDA: its one run is all it does
    ],
)
def test_what_makes_a_first_pass(trace, only):
    assert trace.get(FirstPass).only == only


def test_a_first_pass_is_start_up_and_judged_in_part():
    headline = run(recorded(COLD).timeline(), built_in().values()).headline
    assert headline.bottleneck == "start-up" and headline.judged == "partly" and "first pass" in headline.judged_why
    # 20 kernels of 10 µs from the first launch to the end of the last kernel: 19 * 60 + 18.
    assert f"kernels run for {200 / 1158:.0%} of it" in headline.summary


def test_in_a_first_pass_only_gaps_count_that_later_passes_have():
    # Of twenty ops ten run a kernel again, before two of those memory is taken.
    names = "abcdefghij" + "abcdefgh" + "kl"
    first = recorded(names, memory=(12, 14)).get(FirstPass)
    assert first.only and first.met.sum() == 12
    at = 500_000.0 + 60.0 * np.arange(20)
    gaps = first.repeats(np.arange(20), at - 30, at + 20)
    assert gaps.tolist() == [10 <= k < 18 and k not in (12, 14) for k in range(20)]


@pytest.mark.parametrize(
    ("trace", "taken"),
    [
        (recorded(WARM, context_us=0.0, memory=range(4, 16)), 12),
        (recorded(WARM, context_us=0.0, memory=range(4, 15)), 0),  # a cache that grows
        (recorded(WARM, context_us=0.0, memory=range(4, 16), freed=6), 0),  # what is given back is no cache's
        (recorded(WARM, context_us=0.0, memory=range(4, 16), recorder="nsys"), 0),  # nor has plain CUDA one
    ],
)
def test_a_pass_that_fills_the_allocators_cache_is_judged_in_part(trace, taken):
    assert trace.get(FirstPass).taken == taken
    headline = run(trace.timeline(), built_in().values()).headline
    assert (f"takes device memory {taken} times" in headline.judged_why) == bool(taken)


@pytest.mark.parametrize(
    ("trace", "judged"),
    [
        (recorded(WARM), "partly"),  # half a second once, and a millisecond of ops that no step marks
        (recorded(WARM, context_us=1_000.0), "yes"),
        (recorded(WARM, recorder="nsys"), "yes"),  # a program in plain CUDA
    ],
)
def test_what_little_is_left_after_start_up_is_judged_in_part(trace, judged):
    made = run(trace.timeline(), [built_in()["precision"]]).headline
    assert made.judged == judged
    assert ("after 500 ms of start-up work" in made.judged_why) == (judged == "partly")
