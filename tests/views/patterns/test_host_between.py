"""The host's time in launch-less ops of a pattern."""

import numpy as np

from advisor.views.patterns.attention import host_between
from advisor.views.replay.gpu_work import GpuWork
from tests.build import Trace


def pattern():
    """A step: a product (10 to 30), views, a softmax (40 to 60), a copy of something else (70 to 80), a view, a product (90 to 110)."""
    trace = Trace()
    for s in range(3):
        t = 200.0 * s
        trace.step(t, 199, s + 1)
        for name, at, dur in (("aten::bmm", 10, 20), ("aten::_softmax", 40, 20), ("aten::copy_", 70, 10), ("aten::bmm", 90, 20)):
            trace.op(name, t + at, dur).launch(t + at + 4, t + at + 12, t + at + 14, dur=2)
        trace.op("aten::view", t + 32, 6).op("aten::view", t + 82, 6)
    return trace


def test_what_lies_between_the_ends_of_a_pattern_goes_with_it_but_for_what_stays():
    work = pattern().get(GpuWork)
    of_step = [np.flatnonzero(work.step == s) for s in range(2)]
    spans = host_between(work, [at[[0, 1, 3]] for at in of_step], np.array([at[1] for at in of_step]))
    # From the end of the first product to the start of the last, without the copy's op.
    assert [(a, b) for a, b in zip(*spans, strict=True)] == [(30, 70), (80, 90), (230, 270), (280, 290)]


def test_kernels_without_ops_have_no_host_time():
    work = Trace().step(0, 99).launch(1, 5, 9).launch(11, 15, 19).step(100, 99).launch(101, 105, 109).get(GpuWork)
    assert not len(host_between(work, [np.array([0, 1])], np.array([1]))[0])
