"""The rule on a trace of three steps made by hand, of which softmax is a known part."""

import json

import pytest
from acme_rules.use_our_kernel import use_our_kernel

import advisor


def trace(path, op="aten::_softmax"):
    """Steps of 100 µs that run one kernel of 80 µs each, and wait for it."""
    events = []
    for n in range(3):
        at = 1000.0 + 100 * n
        cpu = {"ph": "X", "pid": 1, "tid": 1}
        linked = {"correlation": n + 1}
        events += [
            {**cpu, "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": at, "dur": 99},
            {**cpu, "cat": "cpu_op", "name": op, "ts": at, "dur": 20},
            {**cpu, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 5, "dur": 2, "args": linked},
            {**cpu, "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": at + 8, "dur": 84},
            {
                "ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "softmax_warp_forward", "ts": at + 10, "dur": 80,
                "args": {**linked, "device": 0, "stream": 7},
            },
        ]  # fmt: skip
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": events}))
    return path


@pytest.fixture
def rules():
    return [use_our_kernel.advisor_rule]


def test_it_finds_softmax_and_says_how_often(tmp_path, rules):
    (finding,) = advisor.analyze(trace(tmp_path / "t.json"), rules=rules).findings
    assert finding.rule == "acme/use-our-kernel" and "80 µs of each step" in finding.summary


def test_it_is_quiet_about_other_ops(tmp_path, rules):
    report = advisor.analyze(trace(tmp_path / "t.json", op="aten::add"), rules=rules)
    assert not report.findings and "no kernel was launched by aten::_softmax" in report.clear[0].why


def test_its_options_are_a_team_s_to_set(tmp_path, rules):
    path = trace(tmp_path / "t.json", op="aten::add")
    assert advisor.analyze(path, rules=rules, options={"acme/use-our-kernel": {"op": "aten::add"}}).findings
