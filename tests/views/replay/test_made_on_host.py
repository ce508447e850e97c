"""Tensors that ops make on the host to be copied to the device."""

import numpy as np
import pytest

from advisor.intervals import length
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.made_on_host import MadeOnHost
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
    return MadeOnHost.of(work, np.flatnonzero(work.column("copy_kind") == "HtoD"))


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
    assert saving.high_us == pytest.approx(260 + 0.04 * 360, abs=10), "made once and kept"
    assert found("memcpy", making("aten::triu", "aten::mul")).saving.expected_us < 60
