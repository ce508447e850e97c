"""loop-overhead: turns of JAX's compiled loops that cost more than their work; quiet for few turns, long kernels and other frameworks."""

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run as run_rules
from advisor.views.patterns.compiled_loops import CompiledLoops
from advisor.views.replay.replay import Replay
from tests.build import Trace
from tests.rules.test_rules import clear, found

STEPS, WEIGHTS, COUNTER = 4, 0, 1


def looped(turns=16, work_us=2.0, host_us=16.0, by_value=False, op="PjitFunction(f)"):
    """Steps of one jitted call whose loop launches, in each turn, its product and a counter; of a loop that a value ends, first a test and its copy to the host."""
    trace, step_us = Trace(recorder="jax" if op.startswith("Pjit") else "kineto"), turns * max(host_us, work_us + 2) + 40
    trace._add("compiled_ops", name="gemm", operands="bfloat16[64,64] bfloat16[64,64]")._add("compiled_ops", name="add", operands="int32[] int32[]")
    for step in range(STEPS + 1):
        at = step * step_us
        trace.step(at, step_us - 1, step + 1).op(op, at + 1, step_us - 3)
        trace.note("while.3", at + 5, turns * host_us)
        free = at
        for turn in range(turns):
            begin = at + 5 + turn * host_us
            trace.note(f"[iter={turn}]", begin, host_us - 0.1)
            free = max(free, begin + 5)
            if by_value:
                trace.launch(begin + 0.1, free, free + 1, "compare", 0.3, "cuLaunchKernel", grid_blocks=1)
                trace.launch(begin + 0.5, free + 1, free + 2, "Memcpy DtoH", 0.3, "cuMemcpyDtoHAsync", kind="memcpy", copy_kind="DtoH")
                free += 2
            trace.launch(begin + 1, free, free + work_us, "gemm_fusion_dot", 1, "cuLaunchKernel", grid_blocks=96, compiled=WEIGHTS)
            trace.launch(begin + 3, free + work_us, free + work_us + 1, "loop_add_fusion", 1, "cuLaunchKernel", grid_blocks=1, compiled=COUNTER)
            free += work_us + 1
    return trace


def test_turns_are_told_with_what_the_loop_spends_on_itself():
    finding = found("loop-overhead", looped())
    assert finding.summary.startswith("16 loop iterations per step launch 2.0 kernels and copies each") and "counters and slices" in finding.summary
    assert "unroll" in finding.fix.title.lower() and "unroll=8" in finding.fix.code.after
    # Of 16 turns of the host two are left; then 32 µs of products and 2 of counters bound the step.
    left_us = looped().get(Replay).true_step.expected_us - finding.saving.expected_us
    assert 34 <= left_us <= 60
    assert finding.saving.low_us < finding.saving.expected_us < finding.saving.high_us


def test_a_loop_that_a_value_ends_is_tested_less_often():
    finding = found("loop-overhead", looped(by_value=True))
    assert "Test less often" in finding.fix.title and "tests and counters" in finding.summary and "scan" not in finding.fix.code.after


def test_the_first_line_does_not_say_that_nothing_is_found():
    both, alone = (run_rules(looped().timeline(), [built_in()[rule] for rule in rules], {}) for rules in (("launch-gap", "loop-overhead"), ("launch-gap",)))
    assert "launch-gap found nothing to fix" in alone.headline.summary
    assert both.headline.bottleneck == "launch-bound" and "finds nothing" not in both.headline.summary


def test_own_work_is_counters_and_tests_alone():
    loops = looped(by_value=True).get(CompiledLoops)
    assert loops.by_value and loops.own.sum() == 3 * len(loops.turns)
    loops = looped().get(CompiledLoops)
    assert not loops.by_value and loops.own.sum() == len(loops.turns) and loops.number.max() == 15


def test_of_loops_in_loops_the_inner_turns_count():
    trace = looped()
    for step in range(STEPS + 1):
        trace.note("[iter=0]", step * 296 + 4.5, 257)
    assert trace.get(CompiledLoops).number.tolist().count(0) == STEPS + 1


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (looped(turns=4), "4 iterations of compiled loops were recorded per step (threshold 8)"),
        (looped(op="aten::mm"), "only JAX compiles loops"),
        (looped(work_us=400.0), "16 iterations of compiled loops are launched per step"),
    ],
)
def test_quiet(trace, why):
    assert why in clear("loop-overhead", trace)
