"""step-gap: a server's own work between two steps, for which the device waits."""

import pytest

from tests.rules.served import served
from tests.rules.test_rules import clear, found, run

RULE = "step-gap"


def gapped(kernel_us=10.0, **more):
    """Graphs of 200 µs; the host waits for each, and works 180 µs before the next."""
    return served("step[DECODE bs=8]", graph=True, kernel_us=kernel_us, gap_us=170.0, wait=True, steps=6, **more)


def test_work_between_steps_is_found_and_hides_behind_the_next_where_nothing_waits():
    finding = found(RULE, gapped())
    assert "decode steps" in finding.title and finding.severity == "medium"
    assert finding.saving.expected_us == pytest.approx(195, abs=15)
    assert "--disable-overlap-schedule" in finding.fix.code.before and finding.saving.low_us == 0


def test_a_device_that_never_waits_is_clear():
    assert "the GPU idles" in clear(RULE, gapped(kernel_us=19.9))


def test_tokens_that_are_read_one_by_one_are_to_be_read_at_once():
    trace = gapped()
    for step in range(6):
        for k in range(4):
            trace.call("cudaStreamSynchronize", 400.0 * step + 250 + 20 * k, 2)
    assert found(RULE, trace).fix.title == "Read the tokens of all requests at once"


def test_of_one_step_nothing_is_known_of_what_comes_between():
    assert "a single step is marked" in clear(RULE, served("step[DECODE bs=8]", steps=1, graph=True))
    assert "no inference server's steps are marked" in clear(RULE, served("decode [3]", graph=True))


def test_waits_between_a_servers_steps_are_its_own():
    assert not run("sync-stall", gapped()).findings
    assert "step-gap covers" in clear("host-bound", gapped())
