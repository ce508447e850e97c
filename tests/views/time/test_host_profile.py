"""CPU time of a step, of a trace without GPU work."""

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.report.wording import trust
from advisor.reports import formats
from advisor.views.time.host_profile import HostProfile
from tests.build import Trace

STEP = 1000.0


def trained(loads=True, reduces=True, frames=True):
    """Four steps of 1 ms: a batch of 200 µs, forward ops of 300, backward of 150, an all-reduce that is waited for 250, the optimizer 60."""
    trace = Trace(recorder="kineto")
    for number in range(4):
        at = STEP * number
        trace.step(at, STEP - 1, number)
        if frames:
            trace.python("train.py(12): main", at, STEP - 2).python("model.py(7): forward", at + 205, 310)
        if loads:
            trace.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 200).op("aten::stack", at + 20, 100)
        trace.op("aten::linear", at + 210, 200).op("aten::addmm", at + 220, 150).op("aten::gelu", at + 410, 100)
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 520, 150).op("aten::mm", at + 530, 100)
        if reduces:
            trace.note("gloo:all_reduce", at + 560, 360, tid=99)
        trace.note("Optimizer.step#SGD.step", at + 925, 60).op("aten::add_", at + 930, 40)
    return trace


def test_the_parts_of_a_step_are_disjoint_and_sum_to_it():
    host = trained().get(HostProfile).time
    parts = {part.phase: part.us for part in host.parts}
    assert parts == pytest.approx({"data-loading": 200, "forward": 300, "backward": 150, "communication": 250, "optimizer": 60, "other": 40})
    assert sum(part.us for part in host.parts) == pytest.approx(host.step_us) and sum(part.share for part in host.parts) == pytest.approx(1)
    assert [part.us for part in host.parts] == sorted(parts.values(), reverse=True)


def test_what_is_not_there_takes_no_time():
    parts = {part.phase for part in trained(loads=False, reduces=False).get(HostProfile).time.parts}
    assert parts == {"forward", "backward", "optimizer", "other"}


def test_ops_count_their_own_time_and_functions_what_they_call_of_libraries():
    host = trained().get(HostProfile).time
    ops = {op.name: (op.calls, op.us) for op in host.ops}
    assert ops["aten::addmm"] == pytest.approx((1, 150)) and ops["aten::linear"] == pytest.approx((1, 50))
    # The backward node is of no function of its own: the frame around it calls it, as it calls the loader and the optimizer.
    assert {(line.file, line.line, line.function): line.us for line in host.lines} == pytest.approx(
        {("model.py", 7, "forward"): 310, ("train.py", 12, "main"): STEP - 2 - 310}
    )
    assert trained(frames=False).get(HostProfile).time.lines == ()


def test_work_that_is_no_op_counts_for_the_function_that_calls_it():
    """numpy's time in a loader: of the function of the program that calls it through a library and a builtin."""
    trace = trained()
    for at in (STEP * number for number in range(4)):
        trace.python("torch/utils/data/_utils/fetch.py(47): fetch", at + 5, 190).python("data.py(30): __getitem__", at + 10, 180)
        trace.python("numpy/fft/_pocketfft.py(1): rfft", at + 15, 150).python("<built-in method _raw_fft>", at + 20, 100)
    functions = {line.function: line.us for line in trace.get(HostProfile).time.lines}
    assert functions == pytest.approx({"forward": 310, "main": STEP - 2 - 310 - 180, "__getitem__": 180})


def test_stacks_of_ops_alone_give_lines():
    trace = Trace(recorder="kineto").step(0, 100, 0).step(100, 100, 1)
    trace.op("aten::mm", 10, 50).op("aten::mm", 110, 30)
    for op in trace.rows["cpu_ops"]:
        op["call_stack"] = "model.py(9): forward;train.py(3): main"
    assert [(line.file, line.line, line.us, line.function) for line in trace.get(HostProfile).time.lines] == [("model.py", 9, 50.0, "")]


def test_a_trace_with_gpu_work_or_without_ops_has_none():
    assert Trace().op("aten::mm", 0, 50).launch(10, 20, 40).get(HostProfile).time is None
    assert Trace().step(0, 50).call("cudaDeviceSynchronize", 0, 50).get(HostProfile).time is None


def test_every_format_says_it_and_none_advises_about_the_gpu():
    report = run(trained().timeline(), built_in().values())
    assert report.headline.bottleneck == "cpu-only" and report.headline.judged_reason == "no-gpu-work" and trust(report).answer == "CPU time only"
    assert report.headline.summary.endswith("Of the program's functions, main (train.py:12) takes most: 69%.")
    for name in ("text", "markdown", "html"):
        shown = formats()[name].render(report)
        assert "CPU time of a step" in shown and "model.py" in shown and "25%" in shown, name
    page = formats()["html"].render(report)
    assert not [section for section in ("time", "findings", "roofline", "steps", "answers", "kernels", "tree") if f'<section id="{section}"' in page]
    assert {link for link in ("time", "findings", "roofline", "answers") if f'href="#{link}"' in page} == set()
