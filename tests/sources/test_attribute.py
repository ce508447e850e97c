"""Light and deep traces built by hand: the deep host takes ten times as long for the same ops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import advisor
from advisor.knowledge.structs import replace
from advisor.recordings.timeline import table
from advisor.sources.attribute import _aligned, attributed
from advisor.views.trace.source_lines import Sources
from advisor.views.workspace import Workspace
from tests.build import Trace
from tests.paths import ROOT


def light():
    trace = Trace()
    for start in (0, 100):
        trace.step(start, 100).op("aten::mm", start + 10, 10).op("aten::relu", start + 50, 10).call("cudaDeviceSynchronize", start + 80, 10)
    return trace.timeline()


def deep(extra=False):
    trace = Trace().step(5000, 1000)
    trace.python("<built-in method run>", 4000, 9000).python("train.py(3): main", 5050, 900)
    trace.python("model.py(7): forward", 5090, 120).op("aten::mm", 5100, 100, [[2, 2], [2, 2]])
    if extra:
        trace.op("aten::add", 5300, 10, [[9]])
    trace.python("model.py(9): act", 5490, 120).op("aten::relu", 5500, 100, [[4]])
    trace.python("train.py(12): wait", 5790, 120).call("cudaDeviceSynchronize", 5800, 100)
    return trace.timeline()


def test_ops_have_the_shapes_of_the_deep_trace_and_their_own_times():
    made = attributed(light(), deep())
    assert made.cpu_ops["dims"].tolist() == ["[[2, 2], [2, 2]]", "[[4]]"] * 2
    assert made.cpu_ops["start_us"].tolist() == [10, 50, 110, 150] and made.cpu_ops["dur_us"].tolist() == [10] * 4
    assert made.source.shapes and made.source.stacks and made.source.borrowed and made.source.issues == ()


def test_frames_lie_around_the_ops_that_they_called():
    made = attributed(light(), deep())
    calls = made.python_calls
    first = calls[calls["start_us"] < 100].to_pandas().set_index("name")
    # `forward` begins 10 µs before mm: of the 100 deep µs to it, 10 light ones; and ends a fortieth of the way to relu.
    assert first.loc["model.py(7): forward", "start_us"] == pytest.approx(9.0)
    assert first.loc["model.py(7): forward", "start_us"] + first.loc["model.py(7): forward", "dur_us"] == pytest.approx(20 + 30 * 10 / 300)
    # A frame that was open before the step and stays open after it spans the step.
    assert first.loc["<built-in method run>", ["start_us", "dur_us"]].tolist() == [0, 100]
    sources = Workspace(made).get(Sources)
    assert [sources.line_of_call(call).line for call in range(2)] == [12, 12]


def test_ids_of_frames_stay_apart_though_steps_share_them():
    calls = attributed(light(), deep()).python_calls
    assert len(calls) == 2 * 5


def test_an_op_that_only_one_trace_has_disturbs_no_other():
    made = attributed(light(), deep(extra=True))
    assert made.cpu_ops["dims"].tolist() == ["[[2, 2], [2, 2]]", "[[4]]"] * 2 and made.source.issues == ()


def test_too_few_matches_are_told():
    other = Trace().step(0, 100).op("aten::sin", 10, 10, [[1]]).op("aten::cos", 50, 10, [[1]]).timeline()
    made = attributed(light(), other)
    assert made.cpu_ops["dims"].tolist() == [""] * 4
    assert "only 0% of the ops" in made.source.issues[0].detail


def test_without_marked_steps_the_light_trace_stands_alone():
    other = Trace().op("aten::mm", 10, 10, [[1]]).timeline()
    made = attributed(light(), other)
    assert not made.source.borrowed and "no steps are marked" in made.source.issues[0].detail


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_what_is_aligned_is_alike_and_in_order(a, b):
    first, second = np.array(a, np.int64), np.array(b, np.int64)
    i, j = _aligned(first, second)
    assert (first[i] == second[j]).all()
    assert (np.diff(i) > 0).all() and (np.diff(j) > 0).all()
    if a == b:
        assert len(i) == len(a)


def test_frames_that_were_recorded_elsewhere_cost_this_trace_nothing():
    timeline = advisor.load(ROOT / "samples" / "launch-gap" / "slow.json.gz")
    ops = timeline.cpu_ops
    frames = table("python_calls", {"name": ["model.py(1): f"] * len(ops), **{c: ops[c] for c in ("pid", "tid", "start_us", "dur_us")}})

    def true_step(**source):
        bare = replace(timeline, python_calls=frames if source else timeline.python_calls, source=replace(timeline.source, **source))
        return advisor.analyze(bare, rules=[]).window.true_step_us

    assert not len(timeline.python_calls)
    assert true_step(stacks=True, borrowed=True) == true_step() != true_step(stacks=True)
