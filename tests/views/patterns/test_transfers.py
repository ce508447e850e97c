"""Arrays that JAX stages on the host while a program waits for its arguments."""

import pytest

from advisor.views.patterns.transfers import StagedCopies
from tests.rules.test_rules import clear, found, repeat

MB = 1_000_000


def step(stage=3000, own=0, size=32 * MB, run="CommonPjRtLoadedExecutable::Execute (jit_step)", hidden=False):
    """A jitted call that waits `stage` µs for its argument, copies it and multiplies; `own`: what Python does after it."""

    def body(trace, at):
        length = stage + 100
        trace.op("PjitFunction(step)", at, length).note(run, at + 10, length - 20)
        trace.note("H2D Dispatch", at + 20 + (length if hidden else 0), stage - 40, tid=9)
        trace.copy(at + stage - 10, 5, at + stage, at + stage + 40, memory="Pinned", size=size, tid=9, stream=8)
        trace.launch(at + stage + 20, at + stage + 45, at + stage + 445, "gemm_fusion_dot")

    return repeat(stage + 500 + own, body)


def test_what_is_staged_while_the_program_waits_is_told():
    staged = step().get(StagedCopies)
    assert staged.us == pytest.approx(2960, abs=20) and staged.same and "staged on the host first, for 2.96 ms" in staged.text
    finding = found("memcpy", step())
    assert "staged on the host" in finding.summary and finding.severity == "high"
    assert finding.saving.expected_us == pytest.approx(3000, rel=0.1), "the array of the step before stays on the device"
    assert finding.saving.low_us < 700, "a new one each step is hidden behind 540 µs at most"


def test_a_host_with_time_to_make_a_new_array_may_have_made_one():
    # 32 MB take 1.6 ms to write at 20 GB/s.
    assert step(own=1000).get(StagedCopies).same
    staged = step(own=4000).get(StagedCopies)
    assert not staged.same
    assert found("memcpy", step(own=4000)).saving.expected_us == pytest.approx(3000, rel=0.1), "and then the step hides all of it"


def test_staging_that_nobody_waits_for_costs_nothing():
    assert not step(hidden=True, own=4000).get(StagedCopies).us
    assert not step(run="SomethingElse").get(StagedCopies).us
    assert "threshold" in clear("memcpy", step(stage=60, size=1 * MB, own=3000))
