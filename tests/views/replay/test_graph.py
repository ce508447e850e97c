"""The graph of a schedule says the same as running it, and the longest path through it is the step."""

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import advisor
from advisor.knowledge.structs import replace
from advisor.views.replay import simulate
from advisor.views.replay.longest_path import longest_path
from advisor.views.replay.replay import Replay
from advisor.views.replay.schedule import START
from tests.build import Trace
from tests.paths import ROOT, examples
from tests.views.replay.test_simulate import schedules


def times_us(made):
    """When each node of a graph is reached, in µs from the start."""
    at = {START: 0.0}
    for node in nx.topological_sort(made):
        if node != START:
            at[node] = max(at[before] + edge["us"] for before, _, edge in made.in_edges(node, data=True))
    return at


@settings(max_examples=examples(200), deadline=None)
@given(schedules(), st.integers(1, 3))
def test_the_graph_is_an_oracle_of_the_replay(schedule, repeats):
    finished, _ = simulate.run(schedule, repeats, 0.0, {})
    at = times_us(schedule.graph(repeats))
    for r, end in enumerate(finished):  # it stops once repeats are equal
        assert at[f"{r}:done"] == pytest.approx(end, abs=1e-6)


@settings(max_examples=examples(100), deadline=None)
@given(schedules())
def test_the_longest_path_is_as_long_as_that_of_the_graph(schedule):
    at = times_us(schedule.graph(4))
    path = longest_path(schedule)
    assert path.us.sum() == pytest.approx(at["2:done"] - at["1:done"], abs=1e-6)
    assert not len(path.us) or path.us.min() > 1e-8, "a step that is only what sums are rounded by is none"
    alone = replace(schedule, periodic=False)
    longest = nx.dag_longest_path_length(alone.graph(), weight="us")
    assert longest_path(alone).us.sum() == pytest.approx(longest, abs=1e-6)


def test_a_host_bound_step_is_the_hosts_and_a_gpu_bound_one_the_kernels():
    host_bound, gpu_bound, free = Trace(), Trace(), 0.0
    for s in range(6):
        host_bound.step(60 * s, 59, s + 1).op("aten::relu", 60 * s, 18).launch(60 * s + 12, 60 * s + 18, 60 * s + 22, dur=4)
        gpu_bound.step(30 * s, 29, s + 1).op("aten::mm", 30 * s, 20)
        start = max(free + 1, 30 * s + 16)
        free = start + 100
        gpu_bound.launch(30 * s + 10, start, free, dur=4)
    by_kind = [{}, {}]
    for sums, trace in zip(by_kind, (host_bound, gpu_bound), strict=True):
        schedule = trace.get(Replay).recorded
        for kind, us, _ in zip(*longest_path(schedule), strict=True):
            sums[kind] = sums.get(kind, 0.0) + us / schedule.steps
    assert set(by_kind[0]) == {"dispatch", "host"} and sum(by_kind[0].values()) == pytest.approx(60)
    assert by_kind[1] == pytest.approx({"op": 100, "kernel-to-kernel": 1})


def test_a_trace_s_schedule_is_public_and_exports(tmp_path):
    made = advisor.schedule(ROOT / "samples" / "launch-gap" / "slow.json.gz").graph()
    assert nx.is_directed_acyclic_graph(made)
    nx.write_graphml(made, tmp_path / "step.graphml")
    again = nx.read_graphml(tmp_path / "step.graphml")
    assert nx.dag_longest_path_length(again, weight="us") == pytest.approx(nx.dag_longest_path_length(made, weight="us"))
