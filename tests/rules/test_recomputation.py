"""recomputation: found where ops of the forward pass run again inside the backward pass, quiet for gradients and for gradients of gradients."""

import pytest

from tests.rules.test_rules import clear, found, repeat, skipped

LAYER = ("aten::layer_norm", "aten::linear", "aten::gelu", "aten::linear")
NODE, OTHER = "autograd::engine::evaluate_function: MmBackward0", 2
PERIOD = 1000


def layer(trace, at, sequence, tid=1, names=LAYER):
    """Four ops of 20 µs, each with a kernel of 10."""
    for k, name in enumerate(names):
        t = at + 20 * k
        trace.op(name, t, 18, tid=tid, sequence=sequence + k if sequence >= 0 else -1).launch(t + 5, t + 10, t + 20, name, tid=tid)


def speak(again=True, recorded=True, forward=LAYER, inside=LAYER):
    """A forward pass of two layers; the backward pass runs one of them again inside its first node."""

    def body(trace, at):
        for k in range(2):
            layer(trace, at + 100 * k, 100 + 10 * k, names=forward)
        t = at + 300
        trace.op(NODE, t, 200, tid=OTHER, sequence=113).op("MmBackward0", t + 2, 190, tid=OTHER, sequence=113)
        if again:
            layer(trace, t + 20, 500 if recorded else -1, tid=OTHER, names=inside)
        trace.op("aten::mm", t + 120, 40, tid=OTHER).launch(t + 130, t + 140, t + 180, "gemm", tid=OTHER)

    return body


def test_a_layer_that_runs_again_is_found_with_what_it_takes():
    finding = found("recomputation", repeat(PERIOD, speak()))
    assert finding.summary.startswith(
        "4 kernels per step of the forward pass run again in the backward pass (activation checkpointing). They take 40.0 µs of GPU time"
    )
    assert "layer_norm, linear, gelu, linear" in " ".join(finding.fix.steps)
    assert finding.saving.low_us < finding.saving.expected_us == pytest.approx(120, abs=20)


def test_the_older_way_is_seen_through():
    """CheckpointFunction runs the forward pass without gradients: its ops have no sequence numbers, and stand inside its own."""

    def body(trace, at):
        trace.op("CheckpointFunction", at, 90, sequence=7)
        layer(trace, at + 2, -1)
        t = at + 300
        trace.op("autograd::engine::evaluate_function: CheckpointFunctionBackward", t, 300, tid=OTHER, sequence=7)
        trace.op("CheckpointFunctionBackward", t + 1, 298, tid=OTHER, sequence=7)
        layer(trace, t + 10, 500, tid=OTHER)
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", t + 150, 100, tid=OTHER, sequence=503)
        trace.op("aten::mm", t + 160, 40, tid=OTHER).launch(t + 165, t + 170, t + 210, "gemm", tid=OTHER)

    finding = found("recomputation", repeat(PERIOD, body))
    assert finding.summary.startswith("4 kernels per step") and finding.saving.expected_us < 200, "the nested backward pass stays"


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("no region", speak(again=False)),
        ("formulas of gradients record none", speak(recorded=False)),
        ("gradients of gradients are formulas", speak(inside=("aten::mul", "aten::mm", "aten::t", "aten::mm"))),
        ("two ops are no region", speak(inside=LAYER[:2])),
    ],
)
def test_what_is_no_forward_pass_is_quiet(what, body):
    assert clear("recomputation", repeat(PERIOD, body)) == "no part of the forward pass runs again in the backward pass", what


def test_without_ops_it_is_skipped():
    assert "no framework ops" in skipped("recomputation", repeat(50, lambda trace, at: trace.launch(at + 1, at + 5, at + 45)))
