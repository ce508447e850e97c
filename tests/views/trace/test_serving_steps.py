"""Steps of servers and engines: the stretch that repeats after prefill; layers with numbers in their names are none."""

import pytest

from advisor.views.health import TraceHealth
from advisor.views.trace.steps import Steps
from tests.build import Trace


def kernels(trace, at, names):
    for k, name in enumerate(names):
        trace.launch(at + 10 * k, at + 10 * k + 3, at + 10 * k + 8, name)
    return at + 10 * len(names)


def test_decoding_repeats_after_a_prefill_that_does_not():
    trace, at = Trace(), 0.0
    at = kernels(trace, at, [f"prefill_{k}" for k in range(30)])
    began = at
    for _ in range(10):
        at = kernels(trace, at, ["norm", "qkv", "attention", "project", "mlp", "sample"])
    steps = trace.get(Steps)
    assert steps.basis == "detected" and steps.step_us == 60
    assert steps.host_start_us >= began and steps.steps >= 8
    assert "30 GPU ops that take 150 µs, as a prefill" in steps.detail


def test_numbered_layers_of_a_repeated_range_are_no_steps():
    trace = Trace()
    for run in range(3):
        at = 1000.0 * run
        trace.note("ExecutionContext::enqueue", at, 900)
        for layer in range(8):
            trace.note(f"layer_{layer}", at + 100 * layer, 90).launch(at + 100 * layer + 5, at + 100 * layer + 10, at + 100 * layer + 80, f"k{layer}")
    steps = trace.get(Steps)
    assert (steps.basis, steps.step_us) == ("nvtx", 1000)


def test_numbered_steps_inside_one_loop_are_steps():
    trace = Trace().note("Loop", 0, 5000)
    for n in range(5):
        at = 1000.0 * n
        trace.note(f"Step {n} to {n + 1}", at, 990).launch(at + 5, at + 10, at + 800, "solve")
    steps = trace.get(Steps)
    assert (steps.basis, steps.step_us) == ("nvtx", 1000)


SGLANG = {"P": "step[EXTEND bs=2 toks=512]", "D": "step[DECODE bs=2]", "M": "step[MIXED bs=2]"}
VLLM = {"P": "execute_9_context_2(9_81)_generation_0(0)", "D": "execute_2_context_0(0)_generation_2(2)", "M": "execute_9_context_1(9_81)_generation_1(1)"}
TENSORRT = {
    "P": "[Executor] _forward_step 1: 2 ctx reqs, 0 gen reqs",
    "D": "[Executor] _forward_step 2: 0 ctx reqs, 2 gen reqs",
    "M": "[Executor] _forward_step 3: 1 ctx reqs, 1 gen reqs",
}
OWN = {"P": "prefill", "D": "decode [2]", "M": "mixed"}


def served(kinds, names=SGLANG, prefill_us=400.0):
    """Steps of these kinds one after the other: a decode takes 100 µs and is four layers, all in one graph; a prefill is one long kernel."""
    trace, at = Trace(), 0.0
    for kind in kinds:
        us = 100.0 if kind == "D" else prefill_us
        trace.note(names[kind], at, us - 5)
        for layer in range(4 if kind == "D" else 1):
            trace.launch(at + 2 + layer, at + 5 + 20 * layer, at + (20 + 20 * layer if kind == "D" else us - 10), "layer" if kind == "D" else "prompt")
        at += us
    return trace.get(Steps)


@pytest.mark.parametrize("names", [SGLANG, VLLM, TENSORRT, OWN], ids=["SGLang", "vLLM", "TensorRT-LLM", "a program's own"])
def test_steps_are_of_one_kind_and_the_others_are_said(names):
    steps = served("DDDPDDDDDDPDD", names)
    assert (steps.basis, steps.steps, steps.step_us, steps.start_us) == ("nvtx", 6, 100, 705)
    assert "those of decode; not judged: 5 of decode (100 µs each) and 2 of prefill (400 µs each)" in steps.detail
    assert steps.kind == "decode" and steps.apart == pytest.approx(2 * 385 / (2 * 385 + 11 * 60))


def test_the_kind_with_most_work_is_judged_of_those_that_repeat():
    assert served("PDDDDD", prefill_us=5_000).step_us == 100, "one prefill is no pattern"
    assert served("PPPDDDDD", prefill_us=5_000).step_us == 5_000
    assert served("P", prefill_us=5_000).steps == 1


def test_kinds_that_take_turns_are_one_step_where_nobody_knows_better():
    assert served("PDPDPDPD", OWN).step_us == 500
    steps = served("PDPDPDPD", SGLANG)
    assert (steps.steps, steps.step_us) == (1, 400) and "4 of decode" in steps.detail


def test_layers_that_repeat_inside_a_range_are_no_steps_though_it_is_marked_but_twice():
    trace = Trace()
    for run in range(2):
        trace.note(f"run [{run}]", 1000.0 * run, 950)
        for layer in range(12):
            at = 1000.0 * run + 70 * layer
            kernels(trace, at, ["norm", "project", "mlp"])
    steps = trace.get(Steps)
    assert (steps.basis, steps.step_us) == ("nvtx", 1000)


def test_a_single_step_begins_where_the_device_is_done_with_work_that_nobody_saw():
    trace = Trace().note("step[DECODE bs=2]", 0, 200).launch(10, 12, 14, "index", dur=3)
    for k in range(20):
        trace.launch(20 + 2 * k, 5_000 + 20 * k, 5_019 + 20 * k, "layer")
    steps = trace.get(Steps)
    assert (steps.basis, steps.steps, steps.start_us, steps.end_us, steps.periodic) == ("nvtx", 1, 5_000, 5_399, False)


def test_work_that_waits_for_what_was_launched_before_the_recording_is_not_late():
    trace = Trace().note("step[DECODE bs=2]", 0, 9_000).launch(1, 3, 4, "index")
    for k in range(20):
        trace.launch(20 + 2 * k, 5_000 + 20 * k, 5_019 + 20 * k, "layer")
    (check,) = [check for check in trace.get(TraceHealth).results if check.check == "unseen-work"]
    assert check.status == "ok"
