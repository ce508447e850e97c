"""`%%advise`: a cell under the profiler, its report as the cell's value."""

from __future__ import annotations

import builtins
import sys

import pytest

import advisor

pytest.importorskip("torch")
interactive = pytest.importorskip("IPython.core.interactiveshell")


def test_a_cell_is_profiled_and_its_report_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    # By these a process is known to be a notebook: what runs later in this one is in none.
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    monkeypatch.setattr(sys, "ps1", "", raising=False)
    shell = interactive.InteractiveShell.instance()
    try:
        shell.run_line_magic("load_ext", "advisor")
        report = shell.run_cell_magic("advise", "", "import torch\nx = torch.ones(64, 64)\nfor _ in range(5): x = x @ x")
        assert isinstance(report, advisor.Analysis)
        assert any(row.name == "aten::mm" and row.calls == 5 for row in report.ops)
        assert "x" in shell.user_ns
        with pytest.raises(ZeroDivisionError):
            shell.run_cell_magic("advise", "", "1 / 0")
    finally:
        interactive.InteractiveShell.clear_instance()


def test_only_what_is_public_is_listed() -> None:
    assert set(dir(advisor)) == {*advisor.__all__, "__version__"}
    assert advisor.__version__
