"""When an optimizer updates: all of its range, but for what a closure does first."""

import numpy as np

from advisor.views.trace.optimizer_ranges import update_spans
from tests.build import Trace

NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def spans(trace):
    timeline = trace.timeline()
    return [list(edges) for edges in update_spans(timeline, np.ones(len(timeline.annotations), bool))]


def test_a_range_is_the_update():
    trace = Trace().op("aten::mm", 0, 10).op(NODE, 20, 10).note("Optimizer.step#Adam.step", 40, 20)
    assert spans(trace) == [[40], [60]]


def test_what_a_closure_computes_first_is_none_of_it():
    trace = (
        Trace().note("Optimizer.step#Adam.step", 0, 100).op("aten::mm", 5, 10).op(NODE, 20, 10, tid=7).op(NODE, 35, 15, tid=7).op("aten::_foreach_add_", 60, 30)
    )
    assert spans(trace) == [[50], [100]]


def test_each_of_several_ranges_begins_behind_its_own_backward_pass():
    trace = Trace()
    for at in (0, 200):
        trace.note("Optimizer.step#LBFGS.step", at, 100).op(NODE, at + 10, 30).op(NODE, at + 50, 20)
    assert spans(trace) == [[70, 270], [100, 300]]


def test_a_backward_pass_that_outlives_the_range_leaves_no_update():
    assert spans(Trace().note("Optimizer.step#Adam.step", 0, 100).op(NODE, 90, 30)) == [[], []]
