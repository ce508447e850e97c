"""The report of each sample says what it said. Meant to change? `python -m tests.golden`, and read the diff before you commit it."""

import importlib
import json
import os
import subprocess
import sys

import numpy
import pytest

from tests.analysed import analysed
from tests.golden.digest import FOLDER, differences, digest, digested, golden_of, name, recordings, written
from tests.paths import sampled, slow

RECORDINGS = recordings()


@pytest.mark.parametrize("recording", sampled(RECORDINGS), ids=name)
def test_the_report_says_what_it_said(recording):
    file = golden_of(recording)
    kept = json.loads(file.read_text()) if file.exists() else {}
    assert name(recording) in kept, f"{name(recording)} has no golden: python -m tests.golden {name(recording)}"
    changed = [*differences(kept[name(recording)], digest(recording, analysed))]
    assert not changed, "\n".join([f"{len(changed)} fields of {name(recording)} differ; if that is meant: python -m tests.golden", *changed])


@slow
def test_the_report_is_the_same_on_an_older_processor():
    """NumPy adds in another order there: of these two the critical path once had steps that were nothing but rounding."""
    core = importlib.import_module(f"numpy.{'core' if numpy.__version__.startswith('1.') else '_core'}._multiarray_umath")
    newer = " ".join(feature for feature in core.__cpu_dispatch__ if core.__cpu_features__[feature])
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", __file__, "-k", "says_what_it_said and (market_stalls or olmoe_prefill)"]
    done = subprocess.run(command, env={**os.environ, "NPY_DISABLE_CPU_FEATURES": newer, "ADVISOR_SAMPLES": "all"}, capture_output=True, text=True)
    assert done.returncode == 0 and "\n2 passed" in done.stdout, done.stdout[-2000:]


def test_no_golden_is_left_of_a_sample_that_went():
    kept = {sample for file in FOLDER.glob("*.json") for sample in json.loads(file.read_text())}
    assert kept == {name(recording) for recording in RECORDINGS}
    assert sum(file.stat().st_size for file in FOLDER.glob("*.json")) < 3_600 * len(kept)


REPORT = {
    "advisor": "1", "schema": 2, "source": {"path": "x"}, "kind": "trace", "window": {"step_us": 1.00000004}, "kernels": [{"name": "gemm"}],
    "findings": [{"id": "memcpy-1", "rule": "memcpy", "severity": "high", "saving": {"low_us": 1.0}, "fix": {"title": "Pin"}}],
    "clear": [{"rule": "fp64", "why": "none"}], "skipped": [], "health": [{"check": "clock", "status": "ok", "detail": "fine"}], "failed": [],
}  # fmt: skip


def test_what_differs_is_named():
    changed = json.loads(json.dumps(REPORT))
    changed["findings"][0]["severity"] = "low"
    changed["findings"][0]["fix"]["title"] = "Pin it"
    changed["clear"][0]["why"] = "other"
    changed["kernels"] = []
    found = [line.split(":")[0] for line in differences(digested(REPORT), digested(changed))]
    assert found == ["findings.memcpy-1.severity", "findings.memcpy-1.rest", "clear.fp64", "hashes.kernels"]


def test_the_last_digits_of_a_number_and_the_version_are_no_difference():
    changed = {**REPORT, "advisor": "2", "window": {"step_us": 1.00000001}}
    assert not [*differences(digested(REPORT), digested(changed))]


def test_what_is_written_reads_back_a_finding_a_line():
    kept = {"a/slow.json.gz": digested(REPORT)}
    assert json.loads(written(kept)) == kept
    assert any(line.strip().startswith('"memcpy-1":') for line in written(kept).splitlines())
