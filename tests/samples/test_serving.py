"""Pairs of runs of a small inference engine: what its marks say is read, each fault found, what was measured inside what was predicted."""

import json
import sys

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.reports import formats
from advisor.sources import read
from tests.analysed import analysed
from tests.paths import MANY_SAMPLES, ROOT, sampled, slow

SERVING = ROOT / "samples" / "serving"
CASES = json.loads((SERVING / "manifest.json").read_text())["cases"]
FAULTS = [name for name, case in CASES.items() if case["rule"] and case["gains"]]
RUNS = [name for name, case in CASES.items() if case["rule"]]
POINTS, WIDEST = 0.05, 0.30
TRAINING = {"optimizer-foreach", "data-loading", "grad-zeroing", "amp-scaler-sync", "dense-gradients", "recomputation", "missed-overlap", "memory-gradients"}
"""Rules that speak of a loop that trains."""


def gain(name):
    case = CASES[name]
    return 1 - case["fixed_ms"] / case["slow_ms"]


def told(name, side="slow"):
    return analysed(SERVING / CASES[name]["kineto"][side])


def timed(name):
    """The finding of a pair's rule and its step, where the step's time without a profiler is known."""
    case = CASES[name]
    report = run(read(SERVING / case["kineto"]["slow"]), built_in().values(), step_ms=case["slow_ms"])
    return next((f for f in report.findings if f.rule == case["rule"]), None), report.step_us


@pytest.mark.parametrize("name", sampled(FAULTS, 1 if MANY_SAMPLES else 3))
def test_the_fault_is_found_and_its_twin_quiet(name):
    rule = CASES[name]["rule"]
    before, after = told(name), told(name, "fixed")
    assert not before.failed and not after.failed
    assert rule in {f.rule for f in before.findings if not f.folded_into}
    assert rule not in {f.rule for f in after.findings if f.loud} or rule == "step-gap", "tokens that are read at once are still waited for"


def test_padding_that_costs_nothing_is_told_as_nothing():
    report = told("padded_to_16")
    assert report.serving.phases[0].padded_to == 16 and report.serving.phases[0].requests == 9
    assert "padding-waste" in {c.rule for c in report.clear}


def test_what_was_measured_lies_inside_what_was_predicted_from_the_trace_alone():
    inside = []
    for name in FAULTS:
        report = told(name)
        saving = next(f.saving for f in report.findings if f.rule == CASES[name]["rule"])
        inside.append(saving.low_us / report.step_us - 0.02 <= gain(name) <= saving.high_us / report.step_us + 0.02)
    assert sum(inside) >= 0.8 * len(inside)


def test_with_the_step_timed_most_gains_are_told_within_five_points_and_narrowly():
    found = [(timed(name), gain(name)) for name in FAULTS if CASES[name]["rule"] != "step-gap"]
    off = [abs(finding.saving.expected_us / step - measured) for (finding, step), measured in found]
    wide = [(finding.saving.high_us - finding.saving.low_us) / step for (finding, step), _ in found]
    assert sum(points <= POINTS for points in off) >= 0.8 * len(off)
    assert sum(width <= WIDEST for width in wide) >= 2 / 3 * len(wide)


@pytest.mark.parametrize("name", CASES)
def test_marks_say_phase_requests_and_cached_tokens(name):
    case = CASES[name]
    report = told(name)
    decode = [row for row in report.serving.phases if row.phase == "decode"]
    assert [row.requests for row in decode] == [case["requests"]]
    first = case["cached"] + 7
    if report.serving.engine == "vLLM":
        assert decode[0].kv_tokens / case["requests"] == pytest.approx(first, abs=15)


@pytest.mark.parametrize("name", CASES)
def test_no_finding_is_of_a_training_loop(name):
    assert not TRAINING & {f.rule for f in told(name).findings}


def test_a_server_with_few_requests_a_step_is_told_its_limit_and_no_loop_to_write():
    fix = next(f.fix for f in told("eager_decode").findings if f.rule == "low-arithmetic-intensity")
    assert fix.code.after == "vllm serve MODEL --max-num-seqs 512"


@pytest.mark.parametrize(("name", "side", "said"), [("eager_decode", "fixed", True), ("padded_to_512", "slow", False)])
def test_decode_below_the_ridge_point_is_said_to_read_weights(name, side, said):
    """An H200 does 989.5 TFLOP/s in BF16 and reads 4.8 TB/s: 206 FLOP/byte, and as many rows of weights of two bytes."""
    report = told(name, side)
    assert report.serving.phases[0].knee_rows == pytest.approx(206, rel=0.01)
    assert ("bound by reading weights, up to about 206 rows" in formats()["markdown"].render(report)) == said


@pytest.fixture
def engine(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(SERVING))
    yield __import__("engine"), torch
    for module in ("engine", "kernels"):
        sys.modules.pop(module, None)


@slow
@pytest.mark.parametrize("options", [{"chunk": 16}, {"read": "each", "whole_texts": True}, {"marks": "sglang"}])
def test_the_engine_generates_the_same_however_it_is_run(engine, options):
    made, torch = engine

    def tokens(**given):
        model = made.Model(made.TINY, torch.device("cpu"), torch.float32)
        served = made.Engine(model, made.Options(**given), requests=4, tokens=64)
        requests = [made.Request([(7 * n + k) % 96 for k in range(18 + 3 * n)], 5) for n in range(3)]
        for request in requests:
            served.add(request)
        with torch.inference_mode():
            while served.step():
                pass
        return [request.tokens for request in requests]

    assert tokens(**options) == tokens() and all(len(one) == 5 for one in tokens())
