"""Kernels slower beside communication than alone."""

from __future__ import annotations

import msgspec
import pytest

from advisor.engine.rule import built_in
from advisor.knowledge.structs import replace
from advisor.report.finding import Clear
from advisor.views.ranks.collectives import RankCollectives
from advisor.views.ranks.contention import contention
from advisor.views.ranks.job import Job, RankSummaries
from advisor.views.trace.gpu_kernels import Kernels
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.views.ranks.build import rank_timeline, summary_of


def test_the_same_kernel_with_and_without_communication_beside_it():
    trace = Trace()
    for n in range(8):
        at = 1000.0 * n
        trace.launch(at - 50, at + 10, at + 110, "gemm", grid_blocks=64)  # alone: 100 µs
        trace.launch(at - 45, at + 200, at + 350, "gemm", grid_blocks=64)  # beside: 150 µs
        trace.launch(at - 40, at + 190, at + 360, "ncclDevKernel_AllReduce", stream=9, collective="allreduce")
    w = Workspace(trace.timeline())
    found = contention(*(w.get(v) for v in (type(trace.timeline()), Steps, Kernels, RankCollectives)))
    assert found.ratio == pytest.approx(1.5) and found.extra_us == pytest.approx(7 * 50.0, abs=100)


@pytest.mark.parametrize(("ratio", "speaks"), [(1.6, True), (1.2, False)])
def test_it_is_something_to_try(ratio, speaks):
    work = [[[1000.0]] * 3] * 2
    ranks = [summary_of(rank_timeline(r, work[r], work)) for r in range(2)]
    ranks = [replace(s, facts=msgspec.structs.replace(s.facts, contended_us=200.0, contention_ratio=ratio)) for s in ranks]
    found = built_in()["communication-contention"].function(Job.build(RankSummaries(tuple(ranks))))
    assert not isinstance(found, Clear) and found.status == "possible" if speaks else isinstance(found, Clear)
