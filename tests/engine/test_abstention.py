"""A good trace with one defect: the rules that rely on what it touches abstain, and no other."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.recordings.timeline import ReadIssue
from advisor.sources import load
from advisor.views.health import TraceHealth
from advisor.views.trace.steps import Steps
from advisor.views.workspace import Workspace
from tests import paths
from tests.paths import slowly

SAMPLES = ("sync-stall/print_loss_each_step.slow", "unfused-elementwise/slow", "unfused-norm/slow")


def with_tables(timeline, **tables):
    return replace(timeline, **{name: frame.reset_index(drop=True) for name, frame in tables.items()})


def disagreeing_clocks(timeline):
    """The first kernels of each step seem to start before they were launched."""
    ops = timeline.gpu_ops.copy()
    early = np.arange(len(ops)) % 10 == 0
    launches = timeline.api_calls.drop_duplicates("correlation").set_index("correlation")["start_us"]
    launched = ops["correlation"].map(launches).to_numpy()
    ops.loc[early, "start_us"] = np.where(np.isnan(launched), ops["start_us"], launched - 50)[early]
    ops.loc[early, "dur_us"] = 1.0
    return with_tables(timeline, gpu_ops=ops)


def merged_ranks(timeline):
    calls = timeline.api_calls
    other = calls.assign(start_us=calls["start_us"] + 5000.0, pid=calls["pid"] + 1)
    return with_tables(timeline, api_calls=pd.concat([calls, other]).sort_values("start_us", kind="stable"))


def whole_graphs(timeline):
    ops = timeline.gpu_ops.copy()
    half = np.arange(len(ops)) % 2 == 0
    ops["kind"] = pd.Categorical(np.where(half, "graph", ops["kind"].astype(str)))
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
    inside = ((ops["start_us"] > steps.start_us + 0.2 * steps.periods_us[0]) & (ops["start_us"] < edge)).to_numpy()
    return with_tables(timeline, gpu_ops=ops[~inside])


def two_ranks_on_a_stream(timeline):
    ops = timeline.gpu_ops
    other = ops.assign(start_us=ops["start_us"] + 0.3 * ops["dur_us"], correlation=-1)
    return with_tables(timeline, gpu_ops=pd.concat([ops, other]).sort_values("start_us", kind="stable"))


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
    silent = {s.rule for s in after.skipped if "fails the check" in s.why}
    assert silent == {r.id for r in built_in().values() if touched & {*r.relies_on}}
    assert all(s.record_with for s in after.skipped if s.rule in silent)
    assert not {f.rule for f in after.findings} & silent
    assert all(check not in f.checks for f in after.findings)
    if failed.keys() == {check}:
        spoken = {f.rule for f in before.findings} - silent
        assert spoken <= {f.rule for f in after.findings} | {c.rule for c in after.clear}
