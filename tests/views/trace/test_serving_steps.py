"""Steps of servers and engines: the stretch that repeats after prefill; layers with numbers in their names are none."""

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
