"""padding-waste: rows of a captured graph that no request needs, and what they cost."""

import pytest

from advisor.knowledge.server_marks import SGLANG, TENSORRT_LLM, VLLM
from advisor.rules.fixes.serving import sizes_of
from tests.rules.served import served
from tests.rules.test_rules import clear, found, run

RULE = "padding-waste"


def padded(requests, rows, **more):
    return served(f"step[DECODE bs={requests}]", graph=True, rows=rows, kernel_us=19.0, period_us=400.0, wait=True, **more)


def test_padding_beyond_what_reading_the_weights_hides_is_found():
    finding = found(RULE, padded(264, 512))
    assert "264 rows runs in a graph of 512" in finding.summary and "--cuda-graph-bs-decode" in finding.fix.code.after
    assert " 264 " in finding.fix.code.after and finding.fix.code.after.endswith(" 512")
    # Of an H200 206 rows are at the ridge point: products keep (206 + 264) / (206 + 512), norms 264 / 512, attention all.
    products, norms = 1 - 470 / 718, 1 - 264 / 512
    assert finding.saving.expected_us == pytest.approx(95 * (2 * products + norms), rel=0.05)
    assert finding.saving.low_us == pytest.approx(finding.saving.expected_us / 2, rel=0.1)


def test_padding_that_reading_the_weights_hides_gains_nothing():
    assert "44% of the rows that graphs of decode steps compute are padding. The fix would gain" in clear(RULE, padded(9, 16))


@pytest.mark.parametrize(("requests", "quiet"), [(480, True), (400, False)])
def test_little_padding_is_clear(requests, quiet):
    assert bool(run(RULE, padded(requests, 512)).clear) == quiet
    assert run(RULE, padded(480, 512), min_padding_share=0.05).findings


def test_steps_of_other_sizes_say_what_rows_cost():
    trace = served("step[DECODE bs=40]", steps=6, graph=True, rows=64, kernel_us=10.0, period_us=220.0, wait=True)
    served("step[DECODE bs=32]", steps=6, graph=True, rows=32, kernel_us=6.0, period_us=220.0, wait=True, trace=trace, at=1320.0)
    finding = found(RULE, trace)
    # From 32 to 64 rows a graph takes from 120 to 200 µs, so that each costs 2.5; half of the steps have 24 that are padding.
    assert finding.saving.expected_us == pytest.approx(24 * 2.5 / 2, rel=0.15) and finding.confidence > 0.6


def test_rows_that_are_not_known_are_no_padding():
    assert "is not recorded" in clear(RULE, padded(264, 132 * 4))
    assert "no step ran in a graph" in clear(RULE, served("step[DECODE bs=9]"))
    assert "no inference server's steps are marked" in clear(RULE, served("decode", graph=True, rows=512))


@pytest.mark.parametrize(
    ("engine", "phase", "option"),
    [
        (VLLM, "decode", "vllm serve MODEL --cudagraph-capture-sizes 1 2 4 8 9 16"),
        (SGLANG, "decode", "python -m sglang.launch_server --model-path MODEL --cuda-graph-bs-decode 1 2 4 8 9 16"),
        (TENSORRT_LLM, "decode", "cuda_graph_config:\n  enable_padding: true\n  batch_sizes: [1, 2, 4, 8, 9, 16]"),
    ],
)
def test_each_engine_is_told_the_sizes_to_capture(engine, phase, option):
    fix = sizes_of(engine, phase, (9,), (16,))
    assert fix.code.after == option and fix.title == "Capture 9 rows as well"
