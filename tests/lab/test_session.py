import pytest

torch = pytest.importorskip("torch")

import advisor  # noqa: E402
from advisor.errors import UsageError  # noqa: E402


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
    assert said.rstrip().endswith("Exported trace to trace-1.json") and (tmp_path / "trace.json").read_text() == "mine"
    assert profiler.key_averages()
    timeline = advisor.load(tmp_path / "trace-1.json")
    assert timeline.annotations["name"].str.startswith("ProfilerStep#").sum() == 20
    # In training mode backward runs too.
    assert (timeline.cpu_ops["name"] == "autograd::engine::evaluate_function: AddmmBackward0").any()


def test_a_model_that_only_answers_needs_no_gradients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    advisor.full_profiling_session(torch.nn.Linear(4, 4).eval(), [{"input": torch.ones(2, 4)}], device="cpu")
    assert not advisor.load(tmp_path / "trace.json").cpu_ops["name"].str.startswith("autograd").any()


def test_what_is_not_there_is_said():
    with pytest.raises(UsageError, match="no batch"):
        advisor.full_profiling_session(torch.nn.Linear(4, 4), [], device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no CUDA device"):
            advisor.full_profiling_session(torch.nn.Linear(4, 4), [])
