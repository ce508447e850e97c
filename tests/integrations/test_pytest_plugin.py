"""`pytest --advisor-budgets TRACE`: each budget a test."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.engine.run import analyze
from advisor.errors import UsageError
from advisor.integrations.pytest_plugin import _Held
from advisor.reports.report import json as json_format
from tests.paths import ROOT, slow, slowly

PROJECT = "[tool.advisor.budgets]\nstep_ms = 100\nidle_share = 0.1\n"


@pytest.mark.parametrize("parallel", slowly([[], ["-p", "xdist", "-n", "2"]], quick=1), ids=["alone", "xdist"])
def test_each_budget_is_a_test(tmp_path: Path, parallel: list[str]) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    trace = ROOT / "samples" / "launch-gap" / "slow.json.gz"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "advisor.integrations.pytest_plugin", "-p", "no:cacheprovider", "-v", *parallel, f"--advisor-budgets={trace}", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert re.search(r"^(slow.json.gz::idle_share FAILED|\[gw\d\].* FAILED slow.json.gz::idle_share)", done.stdout, re.MULTILINE)
    assert "over the limit of 10%" in done.stdout and "Traceback" not in done.stdout


@slow
def test_a_budget_that_nothing_is_held_against_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.advisor.budgets]\nregression_percent = 5\n")
    trace = ROOT / "samples" / "launch-gap" / "slow.json.gz"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "advisor.integrations.pytest_plugin", "-p", "no:cacheprovider", "-rs", f"--advisor-budgets={trace}", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert "1 skipped" in done.stdout and "no --baseline was given" in done.stdout, done.stdout + done.stderr


def test_traces_are_held_with_the_rates_that_the_settings_say(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'{PROJECT}[tool.advisor.devices."NVIDIA H200"]\nfp32_tflops = 1.5\nmemory_gbps = 12\n')
    held = _Held(ROOT / "samples" / "launch-gap" / "slow.json.gz", None, tmp_path)
    with patch("advisor.engine.run.analyze", wraps=analyze) as analyzed:
        assert [verdict.budget for verdict in held.verdicts] == ["step_ms", "idle_share"]
    (rates,) = analyzed.call_args.kwargs["devices"]
    assert (rates.names, rates.memory_gbps) == (("NVIDIA H200",), 12)


def test_a_baseline_of_another_device_is_refused(tmp_path: Path) -> None:
    trace = ROOT / "samples" / "launch-gap" / "slow.json.gz"
    other = json.loads(gzip.decompress(trace.read_bytes()))
    for device in other["deviceProperties"]:
        device["name"] = "NVIDIA A100-SXM4-80GB"
    (tmp_path / "other.json").write_text(json.dumps(other))
    (tmp_path / "pyproject.toml").write_text("[tool.advisor.budgets]\nregression_percent = 5\n")
    with pytest.raises(UsageError, match="not comparable"):
        _ = _Held(trace, tmp_path / "other.json", tmp_path).verdicts


def test_every_capture_keeps_a_budget_and_is_judged_as_by_check(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.advisor.budgets]\nstep_ms = 1000\n")
    runs = tmp_path / "runs"
    runs.mkdir()
    report = analyze(str(ROOT / "samples" / "launch-gap" / "slow.json.gz"), rules=[]).report
    partly = msgspec.structs.replace(report, headline=msgspec.structs.replace(report.headline, judged="partly", judged_why="a cut"))
    for name, saved in (("a.json", report), ("b.json", partly)):
        (runs / name).write_text(json_format.render(saved))
    (verdict,) = _Held(runs, None, tmp_path).verdicts
    assert verdict.status == "unknown" and "only be judged in part: a cut" in verdict.detail
    assert CliRunner().invoke(app, ["check", str(runs), "--config", str(tmp_path / "pyproject.toml")]).exit_code == 1
    assert _Held(runs, None, tmp_path, allow_unjudged=True).verdicts[0].status == "kept"
    (runs / "b.json").write_text(json_format.render(msgspec.structs.replace(report, headline=msgspec.structs.replace(report.headline, step_us=2e6))))
    assert _Held(runs, None, tmp_path).verdicts[0].status == "crossed"
