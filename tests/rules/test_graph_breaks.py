"""graph-breaks: found with a log where the host's time between graphs holds up the GPU; quiet without one, and where the GPU is busy anyway."""

from __future__ import annotations

import pytest

from advisor.engine.run import analyze
from advisor.knowledge.structs import replace
from advisor.recordings.compile_log import CompileLog, CompileLogs, LoggedBreak, LoggedCompilation
from advisor.recordings.recording import Recording
from tests.build import Trace

KEYS = ("fgraphone", "fgraphtwo")
LOG = CompileLog(
    "x.log",
    (LoggedCompilation((0, 0), "f", "train.py", 18, "", 1.0), LoggedCompilation((1, 0), "torch_dynamo_resume_in_f_at_20", "train.py", 20, "", 1.0)),
    (LoggedBreak((0, 0), "train.py", 20, "Unsupported Tensor.item() call", False),),
    {KEYS[0]: ((0, 0),), KEYS[1]: ((1, 0),)},
)
STEPS, STEP_US = 6, 2000.0


def broken(kernel_us: float) -> Trace:
    """Steps of 2 ms in which a graph launches a kernel at 100 µs, and the graph after the break at 1.1 ms."""
    trace = Trace()
    for number in range(STEPS):
        at = STEP_US * number
        trace.step(at, STEP_US - 1, number + 1)
        trace.op("Torch-Compiled Region: 0/0", at + 50, 1900)
        trace.op(f"## Call CompiledFxGraph {KEYS[0]} ##", at + 90, 40).launch(
            at + 100, at + 110, at + 110 + kernel_us, "triton_poi_fused_add_0", api="cuLaunchKernel"
        )
        trace.op("TorchDynamo Cache Lookup", at + 200, 100).op("Torch-Compiled Region: 1/0", at + 400, 1500)
        second = max(at + 1110, at + 110 + kernel_us)
        trace.op(f"## Call CompiledFxGraph {KEYS[1]} ##", at + 1090, 40).launch(
            at + 1100, second, second + kernel_us, "triton_poi_fused_mul_1", api="cuLaunchKernel"
        )
    return trace


def report(trace: Trace, *logs: CompileLog):
    parts = (trace.timeline(), CompileLogs(logs)) if logs else (trace.timeline(),)
    return analyze(Recording("trace", "trace.json", parts))


def of_rule(made):
    return [one for one in made.findings if one.rule == "graph-breaks"]


def test_a_break_that_holds_up_the_gpu_is_found_with_its_line_and_fix():
    (finding,) = of_rule(report(broken(100.0), LOG))
    assert "train.py:20" in finding.summary and "Tensor.item()" in finding.summary and "without the profiler" in finding.summary
    assert "capture_scalar_outputs" in finding.fix.steps[0] and finding.fix.steps[0].startswith("train.py:20")
    assert finding.evidence[0].source.line == 20 and finding.evidence[0].count == STEPS - 1
    # 960 µs between the graphs, and 40 µs in the one behind the break.
    assert 0 < finding.saving.low_us <= 960 and finding.saving.low_us < finding.saving.expected_us <= 1000


def test_nothing_is_said_without_a_log():
    made = report(broken(100.0))
    assert not of_rule(made) and "graph-breaks" not in {one.rule for one in (*made.clear, *made.skipped)}


def test_a_break_behind_a_busy_gpu_gains_nothing():
    made = report(broken(990.0), LOG)
    assert not of_rule(made) and "graph-breaks" in {one.rule for one in made.clear}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (replace(LOG.breaks[0], eager=True, compile_id=(7, 0)), "runs eagerly"),
        (replace(LOG.breaks[0], compile_id=(7, 0)), "did not run"),
        (replace(LOG.breaks[0], compile_id=(1, 0)), "both before and after"),
    ],
)
def test_a_break_that_is_not_priced_says_why(given: LoggedBreak, why: str):
    made = report(broken(100.0), replace(LOG, breaks=(given,)))
    assert not of_rule(made) and any(why in one.why for one in made.clear if one.rule == "graph-breaks")
    assert why in made.compile_costs.rows[0].unpriced


def test_a_price_is_told_in_the_time_without_the_profiler():
    (row,) = report(broken(100.0), LOG).compile_costs.rows
    assert row.us == pytest.approx(960) and 0 < row.unprofiled_us <= row.us
