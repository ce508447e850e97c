import re

import pytest

torch = pytest.importorskip("torch")

import advisor  # noqa: E402
from advisor.errors import UsageError  # noqa: E402
from advisor.lab.profiling_session import _said_of  # noqa: E402
from tests.paths import ROOT  # noqa: E402


def test_a_session_prints_its_tables_and_exports_a_trace_that_is_analysed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.json").write_text("mine")
    seen = []
    net = torch.nn.Linear(4, 4)
    net.register_forward_hook(lambda *call: seen.append(call))
    batches = [(torch.ones(2, 4), torch.ones(2)) for _ in range(7)]
    profiler = advisor.full_profiling_session(net, batches, device="cpu")
    said = capsys.readouterr().out
    assert len(seen) == 25
    assert said.index("=== Top operations by GPU time ===") < said.index("=== Top operations by memory ===")
    assert "\nExported trace to trace-1.json\n" in said and (tmp_path / "trace.json").read_text() == "mine"
    conclusion = said.partition("=== What makes it slow, and what to do ===\n")[2]
    assert re.match(r"aten::\w+ takes \d+% of the CPU's time by itself, in \d+ calls\.\n", conclusion)
    assert "CPU-ONLY" in conclusion and "trace-1.json" in conclusion
    assert profiler.key_averages()
    timeline = advisor.load(tmp_path / "trace-1.json")
    assert sum(name.startswith("ProfilerStep#") for name in timeline.annotations["name"]) == 20
    # In training mode backward runs too.
    assert (timeline.cpu_ops["name"] == "autograd::engine::evaluate_function: AddmmBackward0").any()


def test_a_model_that_only_answers_needs_no_gradients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    advisor.full_profiling_session(torch.nn.Linear(4, 4).eval(), [{"input": torch.ones(2, 4)}], device="cpu")
    assert not any(name.startswith("autograd") for name in advisor.load(tmp_path / "trace.json").cpu_ops["name"])


def test_it_ends_with_what_to_do_or_why_that_cannot_be_said(tmp_path):
    (tmp_path / "no-trace.json").write_text("{}")
    said = _said_of(ROOT / "samples" / "launch-gap" / "slow.json.gz")
    assert "LAUNCH-BOUND" in said and "Fix: " in said
    assert "no profiler trace" in _said_of(tmp_path / "no-trace.json")


def test_what_is_not_there_is_said():
    with pytest.raises(UsageError, match="no batch"):
        advisor.full_profiling_session(torch.nn.Linear(4, 4), [], device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no CUDA device"):
            advisor.full_profiling_session(torch.nn.Linear(4, 4), [])
