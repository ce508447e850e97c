"""graph-coverage: steps of a server that launch kernels one by one, told by phase and size; quiet where graphs launch them, and of no server."""

import pytest

from advisor.knowledge.server_marks import SGLANG, TENSORRT_LLM, VLLM
from advisor.rules.fixes.serving import graphs_of
from tests.rules.served import served
from tests.rules.test_rules import clear, found, run

RULE = "graph-coverage"
DECODE = "step[DECODE bs=24]"


def test_decode_steps_that_are_launched_one_by_one_are_found_with_the_size_to_capture():
    finding = found(RULE, served(DECODE))
    assert finding.severity == "high" and "20 single kernels" in finding.summary and "24 requests" in finding.summary
    assert "--cuda-graph-max-bs-decode 24" in finding.fix.code.after
    # Of 20 launches of 12 µs one graph's is left; what the host does behind them stays.
    assert finding.saving.expected_us == pytest.approx(20 * 12 - 10, abs=5)


def test_a_step_that_one_graph_launches_is_clear():
    assert "100% of the device's time in decode steps is launched by graphs" in clear(RULE, served(DECODE, graph=True))


def test_pieces_of_a_decode_step_want_one_graph():
    finding = found(RULE, served("execute_context_0(0)_generation_8(8)", graph=True, pieces=True, layers=10))
    assert "FULL_AND_PIECEWISE" in finding.fix.code.after and "decode" in finding.title


def test_a_prompt_wants_its_tokens_captured_and_no_word_of_decode():
    finding = found(RULE, served("execute_context_1(888_788544)_generation_0(0)"))
    assert "--max-cudagraph-capture-size 888" in finding.fix.code.after and "512" in finding.fix.steps[1]
    assert "decode" not in f"{finding.title} {finding.summary} {finding.fix}"
    assert finding.saving.low_us == 0


@pytest.mark.parametrize("kernel_us", [3.0, 40.0])
def test_a_busy_device_gains_nothing(kernel_us):
    trace = served(DECODE, kernel_us=kernel_us, period_us=max(400.0, 20 * kernel_us))
    assert bool(run(RULE, trace).findings) == (kernel_us < 12)


def test_few_launches_beside_a_graph_are_left_outside():
    trace = served(DECODE, graph=True)
    for step in range(5):
        for k in range(5):
            trace.launch(400.0 * step + 3 + k, 400.0 * step + 200 + 20 * k, 400.0 * step + 210 + 20 * k, "sample")
    assert "5 single kernels" in clear(RULE, trace, max_coverage=1.0)


def test_what_is_no_servers_or_of_no_known_phase_is_clear():
    assert "no inference server's steps are marked" in clear(RULE, served("decode [3]"))
    assert "no inference server's steps are marked" in clear(RULE, served("step[SPLIT_PREFILL bs=4]"))


def test_the_rules_for_other_programs_leave_these_steps_to_it():
    assert "graph-coverage covers" in clear("launch-gap", served(DECODE))
    assert "graph-coverage covers" in clear("graph-candidate", served(DECODE))
    assert found("launch-gap", served("decode [3]"))


@pytest.mark.parametrize(
    ("engine", "phase", "rows", "option"),
    [
        (VLLM, "decode", 24, "vllm serve MODEL --max-cudagraph-capture-size 24"),
        (VLLM, "decode", 9, "vllm serve MODEL --max-cudagraph-capture-size 16"),
        (VLLM, "mixed", 1000, "vllm serve MODEL --max-cudagraph-capture-size 1000"),
        (SGLANG, "verify", 3, "python -m sglang.launch_server --model-path MODEL --cuda-graph-max-bs-decode 3"),
        (SGLANG, "prefill", 900, "python -m sglang.launch_server --model-path MODEL --cuda-graph-backend-prefill breakable"),
        (TENSORRT_LLM, "decode", 24, "cuda_graph_config:\n  enable_padding: true\n  max_batch_size: 24"),
    ],
)
def test_each_engine_is_told_its_own_option_of_that_phase(engine, phase, rows, option):
    assert graphs_of(engine, phase, rows, (), False).code.after == option


def test_no_option_is_made_up():
    assert graphs_of(TENSORRT_LLM, "prefill", 900, (), False) is None
    assert graphs_of("another", "decode", 4, (), False) is None


def test_the_engines_pack_leaves_a_switch_with_its_size_alone():
    stack = found(RULE, served(DECODE)).fix.stack
    assert (stack.framework, stack.option) == (SGLANG, "--cuda-graph-max-bs-decode")
