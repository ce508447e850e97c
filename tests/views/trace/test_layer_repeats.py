"""Layers of one pass repeat like steps do; what tells them from steps."""

import pytest

from advisor.views.trace.steps import Steps
from tests.build import Trace

LAYER = ("norm", "qkv", "attention", "mlp")


def layers(trace, at=100.0, n=10, tid=1, names=LAYER, prefix="void at::"):
    """So many repeats of four kernels of 8 µs, launched 10 µs apart."""
    for k in range(n):
        for i, name in enumerate(names):
            start = at + 10 * (len(names) * k + i)
            trace.launch(start, start + 2, start + 10, prefix + name, tid=tid)
    return trace


def stem(trace, n=3, dur=30.0):
    """Kernels before the first layer."""
    for k in range(n):
        trace.launch(30.0 * k, 30 * k + 1, 30 * k + 1 + dur - 2, f"void at::stem{k}")
    return trace


def test_repeats_alone_are_steps():
    steps = layers(Trace()).get(Steps)
    assert (steps.basis, steps.steps, steps.step_us) == ("detected", 8, 40)


@pytest.mark.parametrize(
    ("name", "until", "basis"), [("nn.Module: Encoder_0", 1000, "whole"), ("nn.Module: Encoder_0", 300, "detected"), ("train.py(3): run", 1000, "detected")]
)
def test_repeats_inside_one_call_of_a_module_are_its_layers(name, until, basis):
    steps = layers(Trace().python(name, 90, until - 90)).get(Steps)
    assert steps.basis == basis
    assert ("a single module call" in steps.detail) == (basis == "whole")


@pytest.mark.parametrize(("until", "basis"), [(1000, "whole"), (300, "detected")])
def test_repeats_inside_one_step_of_the_optimizer_are_its_parameters(until, basis):
    steps = layers(Trace().note("Optimizer.step#Adam.step", 90, until - 90)).get(Steps)
    assert steps.basis == basis
    assert ("a single optimizer step" in steps.detail) == (basis == "whole")


def test_a_module_on_another_thread_holds_nothing():
    assert layers(Trace().python("nn.Module: Other_0", 90, 900, tid=5)).get(Steps).basis == "detected"


def test_repeats_of_the_backward_thread_alone_are_layers():
    # The forward pass on thread 1, then ten layers on the thread of autograd. A whole step would need both.
    trace = Trace()
    for k in range(20):
        trace.launch(5.0 * k, 5 * k + 1, 5 * k + 4, f"void at::forward{k}")
    steps = layers(trace, tid=2, names=("void at::norm_backward", "void at::linear_backward", "a", "b")).get(Steps)
    assert steps.basis == "whole" and "a single backward pass" in steps.detail and steps.start_us == 0


@pytest.mark.parametrize(("ahead", "basis"), [(1, "whole"), (3, "detected")])
def test_a_repeat_may_begin_before_the_backward_pass(ahead, basis):
    # Of ten layers of four kernels the first one's first kernels were launched by the forward pass: 1 of 40, or 3, more than a twentieth.
    trace = Trace()
    for k in range(20):
        trace.launch(5.0 * k, 5 * k + 1, 5 * k + 4, f"void at::forward{k}")
    names = ("void at::norm_backward", "void at::linear_backward", "a", "b")
    for k in range(40):
        at = 100 + 10.0 * k
        trace.launch(at, at + 2, at + 10, "void at::" + names[k % 4], tid=1 if k < ahead else 2)
    assert trace.get(Steps).basis == basis


def test_a_loop_that_runs_on_another_thread_than_its_setting_up_is_a_loop():
    trace = Trace()
    for k in range(20):
        trace.launch(5.0 * k, 5 * k + 1, 5 * k + 4, f"void at::init{k}")
    assert layers(trace, tid=2).get(Steps).basis == "detected", "nothing says that it trains"


def test_kernels_issued_in_one_go_with_the_repeats_make_them_layers():
    # 84 of 404 µs are the stem's; 12 µs, a thirtieth, tell nothing.
    steps = layers(stem(Trace())).get(Steps)
    assert steps.basis == "whole" and "launched together with kernels" in steps.detail and (steps.start_us, steps.end_us) == (0, 500)
    assert layers(stem(Trace(), n=1, dur=14)).get(Steps).basis == "detected"


@pytest.mark.parametrize(("names", "basis"), [(("gemm", "add"), "detected"), (("gemm", "add", "relu"), "whole")])
def test_one_ops_loop_is_a_benchmark(names, basis):
    # 28 µs before 160 or 240: more than a twentieth.
    assert layers(stem(Trace(), n=1), n=10, names=names).get(Steps).basis == basis


def test_steps_exchange_data_with_the_host():
    waited = layers(stem(Trace())).call("cudaStreamSynchronize", 265, 2)
    assert waited.get(Steps).basis == "detected", "between two repeats"
    before = layers(stem(Trace())).call("cudaDeviceSynchronize", 95, 2)
    assert before.get(Steps).basis == "detected", "the stem was done before"
    read = Trace()
    stem(read)
    for k in range(10):
        at = 100 + 50 * k
        for i, name in enumerate(LAYER):
            read.launch(at + 10 * i, at + 10 * i + 2, at + 10 * i + 10, "void at::" + name)
        read.copy(at + 40, 9, at + 42, at + 48, kind="DtoH")
    assert read.get(Steps).basis == "detected"


def test_a_prefill_is_more_than_a_repeat():
    assert layers(stem(Trace(), n=5, dur=15), at=200).get(Steps).basis == "detected"


def test_only_frameworks_have_layers():
    own = Trace(recorder="nsys")
    for k in range(3):
        own.launch(30.0 * k, 30 * k + 1, 30 * k + 29, f"init{k}")
    assert layers(own, prefix="").get(Steps).basis == "detected"
