"""The headline: what every fix together gains, of findings that stand."""

import msgspec
import pytest

from advisor.engine.run import run
from tests.engine.test_rule import halved, ruled, steps

# A kernel of 4 µs every 20 µs, all of it issuing: half of that is 10 µs.
STEP_US, HALF_US = 20.0, 10.0
POSSIBLE = {"status": "possible", "possible_why": "Recording may have made it.", "decide_with": "advisor analyze TRACE --step-ms MS"}


def second(**said):
    """The same finding by another rule."""
    made = ruled(halved(**said))
    return type(made)("acme/slower", made.function)


def as_json(report):
    return msgspec.json.decode(msgspec.json.encode(report))


def test_a_finding_that_is_only_possible_gains_nothing_in_the_headline():
    report = run(steps(), [ruled(halved(**POSSIBLE))])
    (found,) = report.findings
    assert found.status == "possible" and found.severity == "low" and found.saving.expected_us == pytest.approx(HALF_US, rel=0.1)
    after = as_json(report)["headline"]["predicted_step_us"]
    assert after == {"low": STEP_US, "expected": STEP_US, "high": STEP_US}


def test_a_possible_finding_adds_nothing_to_one_that_stands():
    alone = run(steps(), [second()])
    both = run(steps(), [second(), ruled(halved(**POSSIBLE))])
    assert {f.status for f in both.findings} == {"found", "possible"}
    assert alone.headline.predicted_step_us.expected == pytest.approx(STEP_US - HALF_US, rel=0.1)
    assert as_json(both)["headline"] == as_json(alone)["headline"]


def test_two_that_stand_are_replayed_together():
    both = run(steps(), [second(), ruled(halved())])
    assert both.headline.predicted_step_us.expected == pytest.approx(STEP_US / 4, rel=0.1)  # half of a half
