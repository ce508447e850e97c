"""The view of a server's steps against a count by hand of the same traces (`tests.serving_count`)."""

import json
import re

import pytest

from advisor.engine.run import analyze
from advisor.sources import load
from advisor.sources.kineto.write import write
from advisor.views.trace.serving import Serving
from advisor.views.workspace import Workspace
from tests import serving_count
from tests.paths import needs_shared, samples, shared_files, slow

RECORDED = [
    *shared_files("public/kineto/inference__*.json.gz"),
    *(path for name in ("sglang", "vllm", "graph") for path in shared_files(f"cases/{name}*/*.json.gz")),
]
SAMPLED = [path for path in samples("serving/**/*.trace.zst") if path.parent.name != "capture_traces"]
A_POINT = 0.01


def check(timeline, trace):
    steps, counted = Workspace(timeline).get(Serving).steps, serving_count.count(trace)
    assert len(steps) == len(counted) > 0
    for step, by_hand in zip(steps, counted, strict=True):
        mark = step.mark
        assert (mark.phase, mark.requests, mark.query_tokens, mark.kv_tokens) == tuple(by_hand[key] for key in ("phase", "requests", "tokens", "cached"))
        by_view = step.graph_us / step.gpu_us if step.gpu_us > 0 else None
        assert by_view == (None if by_hand["in_graphs"] is None else pytest.approx(by_hand["in_graphs"], abs=A_POINT))


@needs_shared
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_steps_of_public_traces_are_those_counted_by_hand(path):
    check(load(path), serving_count.read(path))


@slow
@pytest.mark.parametrize("path", SAMPLED, ids=lambda path: path.name)
def test_steps_of_recorded_samples_are_those_counted_by_hand(path):
    timeline = load(path)
    check(timeline, json.loads(write(timeline)))


_OF_TRAINING = {"optimizer-foreach", "data-loading", "recomputation", "straggler", "load-imbalance", "pipeline-bubble"}
_PHASE = re.compile(r"\b(prefill|decode)")


def check_advice(timeline):
    """No rule of a training loop speaks, and no fix names a phase that no step has."""
    report = analyze(timeline).report
    held = {phase.phase for phase in report.serving.phases}
    held |= {"prefill", "decode"} if "mixed" in held else {"decode"} if "verify" in held else set()
    assert not {finding.rule for finding in report.findings} & _OF_TRAINING
    for finding in report.findings:
        said = " ".join((finding.title, finding.fix.title, *finding.fix.steps)) if finding.fix else finding.title
        assert set(_PHASE.findall(said)) <= held, (finding.rule, said)


@needs_shared
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_public_traces_of_servers_have_advice_for_their_own_phases(path):
    check_advice(load(path))


@slow
@pytest.mark.parametrize("path", SAMPLED, ids=lambda path: path.name)
def test_recorded_samples_of_servers_have_advice_for_their_own_phases(path):
    check_advice(load(path))
