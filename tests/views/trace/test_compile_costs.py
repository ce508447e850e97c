"""Graph breaks and recompilations, priced by the trace of the same program."""

from __future__ import annotations

import pytest

from advisor.errors import UsageError
from advisor.knowledge.structs import replace
from advisor.recordings.compile_log import CompileLog, CompileLogs, LoggedBreak, LoggedCompilation
from advisor.report.compile_log import CompileCost
from advisor.views.trace.compile_costs import CompileCostTable
from advisor.views.workspace import Workspace
from tests.build import Trace

STEPS = 4
KEYS = ("fgraphone", "fgraphtwo")
LOG = CompileLog(
    "x.log",
    (LoggedCompilation((0, 0), "f", "train.py", 18, "", 1.0), LoggedCompilation((1, 0), "torch_dynamo_resume_in_f_at_20", "train.py", 20, "", 1.0)),
    (LoggedBreak((0, 0), "train.py", 20, "Unsupported Tensor.item() call", False),),
    {KEYS[0]: ((0, 0),), KEYS[1]: ((1, 0),)},
)


def graph(trace: Trace, key: str, start: float, dur: float, tid: int = 1) -> None:
    trace.op(f"## Call CompiledFxGraph {key} ##", start, dur, tid=tid)


def broken(backward: bool = False, slow_step: int = -1) -> Trace:
    """Steps of 200 µs: a graph at 20 to 30, an op, a lookup of 4 µs, the graph of the code after the break at 72."""
    trace = Trace()
    for number in range(STEPS):
        at = 200.0 * number
        trace.step(at, 200.0)
        trace.op("TorchDynamo Cache Lookup", at + 2, 3).op("Torch-Compiled Region: 0/0", at + 10, 90)
        graph(trace, KEYS[0], at + 20, 10)
        later = 40 if number == slow_step else 0
        trace.op("aten::item", at + 40, 6).op("TorchDynamo Cache Lookup", at + 50, 4).op("Torch-Compiled Region: 1/0", at + 60, 38)
        graph(trace, KEYS[1], at + 72 + later / 4, 10)
        trace.launch(at + 22, at + 25, at + 26).launch(at + 42, at + 43, at + 44)
        if backward:
            graph(trace, KEYS[1], at + 110, 10)
            graph(trace, KEYS[0], at + 135, 10)
    return trace.step(200.0 * STEPS, 10)


def rows(trace: Trace, log: CompileLog = LOG) -> tuple[CompileCost, ...]:
    return Workspace(trace.timeline(), CompileLogs((log,))).get(CompileCostTable).costs.rows


def test_a_break_costs_the_time_from_one_graph_to_the_next() -> None:
    (row,) = rows(broken())
    assert (row.kind, row.source.line, row.function, row.count_a_step) == ("graph-break", 20, "f", 1.0)
    assert row.us == pytest.approx(42) and row.eager_us == pytest.approx(6) and row.lookup_us == pytest.approx(4)
    assert row.kernels == STEPS - 1 and "capture_scalar_outputs" in row.instead


def test_a_pause_of_the_process_is_not_a_price() -> None:
    assert rows(broken(slow_step=2))[0].us == pytest.approx(42)


def test_backward_graphs_are_apart_by_the_same_break() -> None:
    assert rows(broken(backward=True))[0].us == pytest.approx(42 + 15)


def test_equal_graphs_of_two_compilations_do_not_say_which_of_them_runs_backward() -> None:
    shared = replace(LOG, graphs=dict.fromkeys(KEYS, ((0, 0), (1, 0))))
    assert rows(broken(backward=True), shared)[0].us == pytest.approx(42)


def test_a_break_that_did_not_run_has_no_price() -> None:
    other = replace(LOG, breaks=(*LOG.breaks, LoggedBreak((5, 0), "train.py", 99, "x", True)))
    assert [(row.source.line, row.us is None) for row in rows(broken(), other)] == [(20, False), (99, True)]


def test_graphs_of_separate_calls_are_not_apart_by_a_break() -> None:
    trace = Trace()
    for number in range(STEPS):
        at = 200.0 * number
        trace.step(at, 200.0).launch(at + 3, at + 5, at + 6)
        for offset in (10, 60):
            trace.op("Torch-Compiled Region: 0/0", at + offset, 30)
            graph(trace, KEYS[0], at + offset + 5, 10)
    (row,) = rows(trace.step(200.0 * STEPS, 10), replace(LOG, graphs={}))
    assert row.us is None


def test_a_recompilation_costs_its_time_in_the_window() -> None:
    trace, named = Trace(), [LoggedCompilation((0, 0), "f", "train.py", 18, "", 1.0)]
    for number in range(STEPS):
        at = 200.0 * number
        trace.step(at, 200.0).launch(at + 3, at + 5, at + 6)
        trace.op("entire_frame_compile", at + 10, 100).op("_compile.compile_inner (dynamo_timed)", at + 12, 90)
        trace.op(f"Torch-Compiled Region: 0/{number + 1}", at + 120, 30)
        named.append(LoggedCompilation((0, number + 1), "f", "train.py", 18, "tensor 'x' size mismatch at index 0", 0.1))
    (row,) = rows(trace.step(200.0 * STEPS, 10), CompileLog("x.log", tuple(named), (), {}))
    assert (row.kind, row.source.line) == ("recompilation", 18)
    assert row.us == pytest.approx(100) and row.count_a_step == 1.0 and "mark_dynamic" in row.instead


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (replace(LOG, compilations=LOG.compilations[:1]), "different programs"),
        (replace(LOG, graphs={"fothergraph": ((0, 0),)}), "different programs"),
    ],
)
def test_a_log_of_another_program_is_refused(log: CompileLog, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        rows(broken(), log)


def test_the_log_of_the_traced_process_is_found_among_others() -> None:
    other = replace(LOG, path="y.log", graphs={"fothergraph": ((0, 0),)})
    found = Workspace(broken().timeline(), CompileLogs((other, LOG))).get(CompileCostTable)
    assert found.costs.rows[0].us == pytest.approx(42)
    with pytest.raises(UsageError, match="equally well"):
        Workspace(broken().timeline(), CompileLogs((LOG, LOG))).get(CompileCostTable)


def test_a_trace_without_compiled_code_is_refused() -> None:
    with pytest.raises(UsageError, match="no region"):
        rows(Trace().step(0, 10).launch(1, 2, 3).step(10, 10).launch(11, 12, 13).step(20, 1))
