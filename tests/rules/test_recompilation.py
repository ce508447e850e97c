"""recompilation: found where it recurs, quiet where it is start-up; dynamic shapes only where shapes vary."""

import pytest

from tests.build import Trace
from tests.rules.test_rules import clear, found, repeat, skipped, widened

COMPILE = "torch/_dynamo/convert_frame.py(1457): _compile"


def compiled(trace, at, took, number=None, function=0, dims=None):
    """A step that compiles for `took` µs and then runs one compiled kernel."""
    if took:
        trace.op("entire_frame_compile", at, took)
    if number is not None:
        trace.note(f"dynamo_data: compile_id={function}/{number}", at + 1, 5)
    t = at + took
    trace.note("## Call CompiledFxGraph abc ##", t, 20)
    trace.op("triton_poi_fused_add_0", t + 2, 15, dims).launch(t + 6, t + 12, t + 112, "triton_poi_fused_add_0", api="cuLaunchKernel")


def churn(took=5000, dims=True, new_function=False, steps=5):
    trace = Trace()
    for s in range(steps):
        at = (took + 120) * s
        trace.step(at, took + 119, s + 1)
        shape = [[8, 100 + 8 * s, 64], []] if dims else [[8, 100, 64], []]
        compiled(trace, at, took, 0 if new_function else s + 1, s if new_function else 0, shape)
    return trace


def test_compilation_in_every_step_is_found():
    finding = found("recompilation", churn())
    assert finding.severity == "high" and finding.saving.expected_us == pytest.approx(5000, rel=0.02)
    assert finding.saving.low_us == widened("recompilation", 2500, 5000, 5120)[0], "half of it"
    assert "[8, 100, 64] to [8, 108, 64]" in finding.summary
    assert "mark_dynamic(x, 1)" in finding.fix.steps[0] and "dynamic=True" in finding.fix.code.after
    assert finding.evidence[0].label == "compilation 0/1 (function/recompilation)"


def test_dynamic_shapes_are_not_advised_where_shapes_do_not_vary():
    finding = found("recompilation", churn(dims=False))
    assert "dynamic=True" not in str(finding.fix) and "Shapes do not change" in "".join(finding.fix.steps)


def test_compiling_a_new_function_in_each_step_is_told_apart():
    finding = found("recompilation", churn(dims=False, new_function=True))
    assert "outside the loop" in finding.fix.title


def test_shapes_that_were_not_recorded_are_not_spoken_of():
    trace = churn(dims=False)
    for row in trace.rows["cpu_ops"]:
        row["dims"] = ""
    finding = found("recompilation", trace)
    assert "record_shapes" in "".join(finding.fix.steps) and "dynamic=True" not in str(finding.fix.code)


def test_compiling_once_is_start_up():
    def body(trace, at):
        compiled(trace, at, 5000 if at == 2 * 5200 else 0)

    assert "in 1 of 4 steps" in clear("recompilation", repeat(5200, body))


def test_one_step_does_not_tell_whether_it_compiles_again():
    assert "of the one recorded step" in skipped("recompilation", churn(steps=1))
    assert "nothing is compiled" in clear("recompilation", churn(steps=1, took=0))


def test_the_share_of_steps_has_two_sides():
    trace = Trace()
    for s in range(9):
        trace.step(5200 * s, 5199, s + 1)
        compiled(trace, 5200 * s, 5000 if s % 4 == 0 else 0, s)
    assert clear("recompilation", trace)
    assert found("recompilation", trace, min_steps_share=0.25)


def test_the_saving_threshold_has_two_sides():
    trace = churn(took=12)
    assert found("recompilation", trace, min_saving_share=0.01)
    assert clear("recompilation", trace, min_saving_share=0.2)


def test_running_compiled_code_is_not_compiling():
    def body(trace, at):
        trace.python("torch/_dynamo/eval_frame.py(956): compile_wrapper", at, 90)
        trace.python("torch/_inductor/output_code.py(600): __call__", at + 5, 80)
        trace.python("torch/_inductor/compile_fx.py(900): run", at + 6, 78)
        trace.python("torch/_inductor/runtime/triton_heuristics.py(1407): run", at + 7, 70)
        compiled(trace, at + 10, 0)

    assert "nothing is compiled" in clear("recompilation", repeat(200, body))


def test_frames_tell_it_without_ranges_and_name_the_users_line():
    def body(trace, at):
        trace.python("train.py(12): main", at, 5100).python(COMPILE, at + 10, 4900)
        trace.op("aten::add", at + 5000, 20).launch(at + 5005, at + 5012, at + 5112)

    finding = found("recompilation", repeat(5200, body))
    assert finding.evidence[0].source.file == "train.py" and finding.evidence[0].source.line == 12


def test_module_loads_in_every_step_are_a_sign_of_it():
    def body(trace, at):
        trace.call("cuModuleLoadDataEx", at + 4000, 300)
        trace.launch(at + 5005, at + 5012, at + 5112)

    finding = found("recompilation", repeat(5200, body))
    assert finding.confidence < 0.7


def test_three_compilations_of_one_function_in_a_trace_without_steps():
    def trace(functions):
        made = Trace()
        for k in range(4):
            made.op("entire_frame_compile", 6000 * k, 5000)
            made.op(f"Torch-Compiled Region: {k if functions else 0}/{0 if functions else k}", 6000 * k + 5001, 120)
            for j in range(3):
                t = 6000 * k + 5010 + 30 * j
                made.op(f"op_{'abcdefghijkl'[3 * k + j]}", t, 20).launch(t + 5, t + 10, t + 30, f"kernel_{'abcdefghijkl'[3 * k + j]}")
        return made

    assert found("recompilation", trace(False)).confidence < 0.7
    assert clear("recompilation", trace(True))


def decoding(took, planned=range(5), longer=1, queued=False):
    """A step a word: attention over as many words more than before, which takes the host `took` µs where it is planned; or all of that in its launch."""
    trace = Trace()
    for s in range(5):
        call = took if s in planned else 100
        at = s * (took + 400.0)
        trace.step(at, took + 399, s + 1)
        dims = [[1, 32, 1, 128], [1, 32, 1000 + longer * s, 128]]
        trace.op("aten::scaled_dot_product_attention", at, call + 20, dims).op("aten::_scaled_dot_product_cudnn_attention", at + 5, call + 10, dims)
        launched, waits = (at + 12, call - 10) if queued else (at + call - 5, 1)
        trace.op("aten::_cudnn_attention_forward", at + 8, call, dims)
        trace.launch(launched, at + call + 5, at + call + 205, "cudnn_generated_fort_native_sdpa", dur=waits)
    return trace


def test_attention_that_is_planned_for_each_length_is_found():
    finding = found("recompilation", decoding(50_000))
    assert finding.title == "Attention is planned again in every step" and finding.severity == "high"
    assert finding.saving.expected_us == pytest.approx(50_000, rel=0.03) and "in 4 of 4 steps" in finding.summary
    assert "enable_cudnn_sdp(False)" in finding.fix.code.after and "torch.compile" not in str(finding.fix)
    assert [(row.count, row.label) for row in finding.evidence[:1]] == [(1, "_scaled_dot_product_cudnn_attention [[1, 32, 1, 128], [1, 32, 1000, 128]]")]


@pytest.mark.parametrize(("took", "how"), [(50_000, {"planned": [2]}), (1_000, {}), (50_000, {"longer": 0}), (5_500, {"queued": True})])
def test_attention_that_has_its_plan_is_none(took, how):
    """It is planned once, is short, has had the size before, or waits for room in the launch queue."""
    assert clear("recompilation", decoding(took, **how))


def test_a_log_names_the_line_and_the_guard():
    from advisor.engine.run import analyze
    from advisor.recordings.compile_log import CompileLog, CompileLogs, LoggedCompilation
    from advisor.recordings.recording import Recording

    trace, steps, took = Trace(), 5, 5000
    for s in range(steps):
        at = (took + 220) * s
        trace.step(at, took + 219, s + 1)
        compiled(trace, at, took, s + 1, dims=[[8, 100, 64], []])
        trace.op(f"Torch-Compiled Region: 0/{s + 1}", at + took - 0.5, 30)
    guard = "tensor 'x' size mismatch at index 0. expected 33, actual 34"
    log = CompileLog("x.log", tuple(LoggedCompilation((0, n), "f", "train.py", 42, guard if n else "", 1.0) for n in range(steps + 1)), (), {})
    (finding,) = (one for one in analyze(Recording("trace", "t.json", (trace.timeline(), CompileLogs((log,))))).findings if one.rule == "recompilation")
    assert "train.py:42 fails the guard tensor 'x' size mismatch" in finding.summary
    assert finding.fix.steps[0].startswith("train.py:42") and "mark_dynamic" in finding.fix.steps[0]
    assert finding.evidence[0].source.line == 42
