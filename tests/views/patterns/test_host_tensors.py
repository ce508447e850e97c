"""Tensors that ops make on the host to be copied to the device."""

import numpy as np
import pytest

from advisor.intervals import length
from advisor.views.patterns.host_tensors import MadeOnHost, created_on_host
from advisor.views.replay.gpu_work import GpuWork
from tests.rules.test_rules import found, repeat


def making(first="aten::full", second="aten::triu"):
    """Two ops of 100 µs on the host, a copy of 60 of what they made, and five products of 20 each."""

    def body(trace, at):
        trace.op(first, at, 100).op(second, at + 100, 100)
        trace.op("aten::to", at + 200, 60).copy(at + 205, 45, at + 210, at + 248, "Pageable", 400_000)
        for n in range(5):
            trace.op("aten::mm", at + 260 + 20 * n, 20).launch(at + 275 + 20 * n, at + 279 + 20 * n, at + 281 + 20 * n)

    return repeat(360, body)


def made(trace):
    work = trace.get(GpuWork)
    return MadeOnHost.create(work, np.flatnonzero(work.column("copy_kind") == "HtoD"))


def test_what_is_made_just_before_its_copy_is_known():
    known = made(making())
    assert len(known.copies) and length(known.spans) == 200 * len(known.copies)
    assert known.as_launched_us == 2 * 20


@pytest.mark.parametrize(("ops", "us"), [(("aten::triu", "aten::full"), 100), (("aten::full", "aten::lift_fresh"), 0), (("aten::triu", "aten::mul"), 0)])
def test_what_begins_with_the_programs_own_data_is_copied(ops, us):
    known = made(making(*ops))
    assert length(known.spans) == us * len(known.copies) and bool(len(known.copies)) == (us > 0)


def test_making_them_on_the_device_saves_the_copy_and_most_of_the_making():
    # The host's 260 µs go, and two launches of 20 come.
    saving = found("memcpy", making()).saving
    assert saving.expected_us == pytest.approx(220, abs=10)
    assert saving.high_us == pytest.approx(272, abs=10), "made once and kept: kernels of 88 µs stay"
    assert found("memcpy", making("aten::triu", "aten::mul")).saving.expected_us < 60


@pytest.mark.parametrize(("ops", "title"), [(("aten::full", "aten::triu"), "Build the tensors"), (("aten::triu", "aten::lift_fresh"), "Pin the host memory")])
def test_only_what_is_made_of_nothing_is_to_be_built_on_the_device(ops, title):
    assert title in found("memcpy", making(*ops)).fix.title


@pytest.mark.parametrize(("ahead_us", "copies"), [(5, 0), (50, 4)])
def test_the_tensor_that_an_old_framework_makes_to_open_a_range_is_no_batch(ahead_us, copies):
    # A range that copies what exists already; zeros made 5 µs before it are its handle, 50 µs before it they may be what is copied.
    def body(trace, at):
        trace.op("aten::zeros", at + 52 - ahead_us, 3).note("upload", at + 55, 60)
        trace.op("aten::empty", at + 56, 2).op("aten::copy_", at + 60, 50).copy(at + 62, 45, at + 64, at + 104, "Pageable", 400_000)
        trace.op("aten::mm", at + 120, 20).launch(at + 135, at + 139, at + 141)

    trace = repeat(200, body)
    for s in range(5):  # steps of the profiler are ranges, too
        trace.op("aten::zeros", 200 * s - 4, 3)
    known = made(trace)
    assert len(known.copies) == copies
    assert ("Build the tensors" in found("memcpy", trace).fix.title) == (copies > 0)


def test_what_comes_to_the_host_was_not_made_there():
    def body(trace, at):
        trace.op("aten::full", at, 20)
        trace.op("aten::copy_", at + 20, 60).copy(at + 22, 55, at + 24, at + 74, "Pageable", 400_000, kind="DtoH")
        trace.op("aten::mm", at + 82, 10).launch(at + 85, at + 88, at + 92)

    finding = found("memcpy", repeat(100, body))
    assert "making their data" not in finding.summary and finding.saving.expected_us < 60


def test_what_another_thread_makes_meanwhile_is_no_maker():
    def body(trace, at):
        trace.op("aten::add", at, 10).launch(at + 2, at + 12, at + 20).op("aten::randn", at + 60, 30, tid=2)
        trace.op("aten::to", at + 100, 50).copy(at + 115, 20, at + 120, at + 130)

    work = repeat(1000, body).get(GpuWork)
    assert created_on_host(work.timeline, work.ops, work.rows[np.flatnonzero(~work.kernel)]) == 0
