"""A good trace with one defect: the rules that rely on what it touches abstain, and no other."""

import numpy as np
import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.knowledge.structs import replace
from advisor.recordings.columns import Categorical, concatenated
from advisor.recordings.timeline import ReadIssue
from advisor.sources import load
from advisor.views.health import TraceHealth
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace
from tests import paths
from tests.paths import slowly

SAMPLES = ("sync-stall/print_loss_each_step.slow", "unfused-elementwise/slow", "unfused-norm/slow")


def with_tables(timeline, **tables):
    return replace(timeline, **tables)


def disagreeing_clocks(timeline):
    """The first kernels of each step seem to start before they were launched."""
    ops, calls = timeline.gpu_ops, timeline.api_calls
    early = np.arange(len(ops)) % 10 == 0
    launches = dict(zip(calls["correlation"].tolist()[::-1], calls["start_us"].tolist()[::-1], strict=True))
    seems = [launches.get(number, start + 50) - 50 for number, start in zip(ops["correlation"].tolist(), ops["start_us"].tolist(), strict=True)]
    return with_tables(timeline, gpu_ops=ops.with_columns(start_us=np.where(early, seems, ops["start_us"]), dur_us=np.where(early, 1.0, ops["dur_us"])))


def merged_ranks(timeline):
    calls = timeline.api_calls
    other = calls.with_columns(start_us=calls["start_us"] + 5000.0, pid=calls["pid"] + 1)
    return with_tables(timeline, api_calls=concatenated([calls, other]).sorted_by("start_us"))


def whole_graphs(timeline):
    ops = timeline.gpu_ops
    half = np.arange(len(ops)) % 2 == 0
    ops = ops.with_columns(kind=Categorical.of_texts(np.where(half, "graph", ops["kind"].texts()).tolist()))
    issue = ReadIssue("graph-trace", "CUDA graphs were recorded whole")
    return replace(with_tables(timeline, gpu_ops=ops), source=replace(timeline.source, issues=(issue,)))


def bad_durations(timeline):
    issue = ReadIssue("durations", "took a negative duration as 0", events=timeline.source.events // 10)
    return replace(timeline, source=replace(timeline.source, issues=(issue,)))


def lost_buffer(timeline):
    """One step without most of its GPU ops."""
    steps = Workspace(timeline).get(Steps)
    ops = timeline.gpu_ops
    edge = steps.start_us + steps.periods_us[0]
    inside = (ops["start_us"] > steps.start_us + 0.2 * steps.periods_us[0]) & (ops["start_us"] < edge)
    return with_tables(timeline, gpu_ops=ops[~inside])


def two_ranks_on_a_stream(timeline):
    ops = timeline.gpu_ops
    other = ops.with_columns(start_us=ops["start_us"] + 0.3 * ops["dur_us"], correlation=np.full(len(ops), -1))
    return with_tables(timeline, gpu_ops=concatenated([ops, other]).sorted_by("start_us"))


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (disagreeing_clocks, "clock-causality"), (merged_ranks, "launch-links"), (whole_graphs, "graph-trace"),
        (bad_durations, "durations"), (lost_buffer, "gpu-events"), (two_ranks_on_a_stream, "stream-order"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sample", slowly(SAMPLES, quick=1))
def test_one_defect_silences_the_rules_that_rely_on_what_it_touches(sample, damage, check):
    good = load(paths.sample(sample))
    assert not Workspace(good).get(TraceHealth).failed
    damaged = damage(good)
    failed = {h.check: h for h in Workspace(damaged).get(TraceHealth).failed}
    assert check in failed
    touched = {what for h in failed.values() for what in h.touches}
    before, after = (run(t, built_in().values()) for t in (good, damaged))
    silent = {s.rule for s in after.skipped if "fails the check for" in s.why}
    asked = {told.rule for told in (*before.findings, *before.clear, *before.skipped)}  # one that needs a file beside the trace is not
    assert silent == {r.id for r in built_in().values() if touched & {*r.relies_on} and r.id in asked}
    assert all(s.record_with for s in after.skipped if s.rule in silent)
    assert not {f.rule for f in after.findings} & silent
    assert all(check not in f.checks for f in after.findings)
    if failed.keys() == {check}:
        spoken = {f.rule for f in before.findings} - silent
        assert spoken <= {f.rule for f in after.findings} | {c.rule for c in after.clear}
