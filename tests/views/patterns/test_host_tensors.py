"""Tensors that an op makes on the host, to be copied to the device."""

import numpy as np
import pytest

from advisor.views.patterns.host_tensors import created_on_host
from advisor.views.replay.gpu_work import GpuWork
from tests.rules.test_rules import found, repeat


def making(*ops):
    """Ops of 100 µs on the host, a copy of 60 of what they made, and five products of 20 each."""

    def body(trace, at):
        for n, op in enumerate(ops):
            trace.op(op, at + 100 * n, 100)
        trace.op("aten::to", at + 200, 60).copy(at + 205, 45, at + 210, at + 248, "Pageable", 400_000)
        for n in range(5):
            trace.op("aten::mm", at + 260 + 20 * n, 20).launch(at + 275 + 20 * n, at + 279 + 20 * n, at + 281 + 20 * n)

    return repeat(360, body)


@pytest.mark.parametrize(("ops", "title"), [(("aten::triu", "aten::full"), "Build the tensors"), (("aten::full", "aten::lift_fresh"), "Pin the host memory")])
def test_what_the_op_before_made_is_to_be_built_on_the_device(ops, title):
    assert title in found("memcpy", making(*ops)).fix.title


@pytest.mark.parametrize(("ahead_us", "made"), [(5, False), (50, True)])
def test_the_tensor_that_an_old_framework_makes_to_open_a_range_is_no_batch(ahead_us, made):
    # A range that copies what exists already; zeros made 5 µs before it are its handle, 50 µs before it they may be what is copied.
    def body(trace, at):
        trace.op("aten::zeros", at + 52 - ahead_us, 3).note("upload", at + 55, 60)
        trace.op("aten::empty", at + 56, 2).op("aten::copy_", at + 60, 50).copy(at + 62, 45, at + 64, at + 104, "Pageable", 400_000)
        trace.op("aten::mm", at + 120, 20).launch(at + 135, at + 139, at + 141)

    trace = repeat(200, body)
    for s in range(5):  # steps of the profiler are ranges, too
        trace.op("aten::zeros", 200 * s - 4, 3)
    assert ("Build the tensors" in found("memcpy", trace).fix.title) == made


def test_what_another_thread_makes_meanwhile_is_no_maker():
    def body(trace, at):
        trace.op("aten::add", at, 10).launch(at + 2, at + 12, at + 20).op("aten::randn", at + 60, 30, tid=2)
        trace.op("aten::to", at + 100, 50).copy(at + 115, 20, at + 120, at + 130)

    work = repeat(1000, body).get(GpuWork)
    assert created_on_host(work.timeline, work.ops, work.rows[np.flatnonzero(~work.kernel)]) == 0
