"""Faults planted in a copy of advisor, one a layer: the short tests of that layer catch each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.paths import ALL_SAMPLES, ROOT

COPIED = ("advisor", "rules", "reports", "tests")
CAUGHT = 1
"""What pytest returns where tests failed, rather than could not be run."""


class Fault(NamedTuple):
    file: str
    was: str
    planted: str
    tests: str
    """The tests that catch it: of the layer, and quick."""


FAULTS = {
    "columns": Fault("advisor/sources/columns/layout.py", "if _digest(payload) != digest:", "if not digest:", "tests/sources/columns"),
    "nsys": Fault("advisor/sources/frames.py", 'part["dur_us"] = part.pop("dur_ns") / 1000.0', 'part["dur_us"] = part.pop("dur_ns") / 1024.0', "tests/sources/nsys"),
    "timeline": Fault("advisor/recordings/timeline.py", "return found or (alike.pop() if len(alike) == 1 else Device(device_id))", "return found or Device(device_id)", "tests/recordings"),
    "intervals": Fault("advisor/intervals.py", "reach = np.maximum.accumulate(ends)", "reach = ends", "tests/test_intervals.py"),
    "trace": Fault("advisor/views/trace/launches.py", "order[first[i] + max(before - 1, 0)]", "order[first[i]]", "tests/views/trace/test_launches.py"),
    "steps": Fault("advisor/views/trace/steps.py", "return (self.end_us - self.start_us) / self.steps", "return (self.host_end_us - self.host_start_us) / self.steps", "tests/views/trace/test_steps.py"),
    "replay": Fault("advisor/views/replay/simulate.py", "(ready := ends[a] + gap[k]) > start", "(ready := ends[a]) > start", "tests/views/replay/test_simulate.py"),
    "edits": Fault("advisor/views/replay/edits.py", "waits[self.calls], cost[self.calls] = -1, 0.0", "waits[self.calls] = -1", "tests/views/replay/test_edits.py"),
    "time": Fault("advisor/views/time/idle_gaps.py", 'causes["host" if len(timeline.cpu_ops) or len(timeline.api_calls) else "unknown"] += rest', 'causes["host"] += rest', "tests/views/time/test_idle_gaps.py"),
    "bound": Fault("advisor/views/time/bound.py", "largest = shares._replace(idle=0.0).largest if unsure else shares.largest", "largest = shares.largest", "tests/views/time/test_bound.py"),
    "critical path": Fault("advisor/views/time/critical_path.py", "now = min(ends[last], at)", "now = at", "tests/views/time/test_critical_path.py"),
    "patterns": Fault("advisor/views/patterns/transposes.py", "if not work.backward[turned].all():", "if not turned.size:", "tests/views/patterns/test_transposes.py"),
    "health": Fault("advisor/views/health/events.py", 'early = launches.start_us[known] - timeline.gpu_ops["start_us"][known]', 'early = timeline.gpu_ops["start_us"][known] - launches.start_us[known]', "tests/views/health/test_health.py"),
    "ranks": Fault("advisor/views/ranks/culprit.py", 'if most == "compute" and self.uneven_work else most', 'if most == "compute" else most', "tests/views/ranks/test_job.py tests/rules/test_straggler.py"),
    "kernels": Fault("advisor/views/kernels/limits.py", "max(loading, busy[L1] or 0.0)", "busy[L1]", "tests/rules/test_kernels.py tests/views/kernels"),
    "memory": Fault("advisor/views/memory/allocator.py", "return LARGE_SEGMENT if size < MIN_LARGE", "return LARGE_SEGMENT if size <= MIN_LARGE", "tests/views/memory/test_allocator.py"),
    "engine": Fault("advisor/engine/folding.py", "if added < FOLDED_SHARE * own:", "if added < FOLDED_SHARE:", "tests/engine/test_folding.py"),
    "grades": Fault("advisor/engine/grade.py", 'capped: Severity = "low" if found.status == "possible" else "high"', 'capped: Severity = "high"', "tests/engine/test_rule.py tests/engine/test_uncertainty.py"),
    "report": Fault("advisor/report/finding.py", "LOW_SHARE = 0.20, ", "LOW_SHARE = 0.25, ", "tests/report"),
    "reports": Fault("reports/_clean.py", "missing = max(len(text) - most, 0) + max(len(start) - most, 0)", "missing = max(len(text) - most, 0)", "tests/reports/report/test_formats.py::test_what_is_cut_off_is_counted_and_not_looked_at"),
    "words": Fault("advisor/report/wording/savings.py", "round(10 * LEVEL)", "round(9 * LEVEL)", "tests/reports/report/test_formats.py"),
    "compare": Fault("advisor/compare/differences.py", "max(old.low, new.low) > min(old.high, new.high)", "max(old.low, new.low) < min(old.high, new.high)", "tests/compare/test_compare.py"),
    "command line": Fault("advisor/cli/terminal.py", "order.index(level) <= order.index(fail_on)", "order.index(level) < order.index(fail_on)", "tests/cli/test_analyze.py"),
    "knowledge": Fault("advisor/knowledge/op_costs/products.py", "return _product(1, prod(x.shape[:-1]), _inner(x.shape[-1], k)", "return _product(1, x.shape[0], _inner(x.shape[-1], k)", "tests/knowledge/test_op_costs.py"),
    "rules": Fault("rules/launch_gap.py", "if (replayed := gaps.replayed_share) > 0.5:", "if (replayed := gaps.replayed_share) > 1.0:", "tests/rules/test_rules.py"),
}  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of its own, with advisor's rules and reports where an installed one has them; what is only read is shared."""
    place = tmp_path_factory.mktemp("planted")
    for each in ROOT.iterdir():
        if each.name in COPIED:
            shutil.copytree(each, place / each.name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        elif not each.name.startswith("."):
            (place / each.name).symlink_to(each)
    for part in ("rules", "reports"):
        (place / "advisor" / part).symlink_to(place / part)
    yield place
    shutil.rmtree(place)


def run(copy: Path, tests: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ADVISOR_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests.split()]
    # No bytecode: it is known by its source's second, and a fault is planted and taken out within one.
    environment |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "ADVISOR_NATIVE": "no"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)


planted = pytest.mark.skipif(not ALL_SAMPLES, reason="runs tests of each layer with a fault in it: ADVISOR_SAMPLES=all, when tests are changed")


@pytest.mark.parametrize("layer", FAULTS)
def test_each_fault_still_has_its_line(layer: str) -> None:
    fault = FAULTS[layer]
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.was) == 1, "the line is no longer there: plant another fault"


@planted
@pytest.mark.parametrize("layer", FAULTS)
def test_a_fault_in_each_layer_is_caught(layer: str, copy: Path) -> None:
    fault = FAULTS[layer]
    file = copy / fault.file
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace(fault.was, fault.planted), encoding="utf-8")
    try:
        done = run(copy, fault.tests)
    finally:
        file.write_text(whole, encoding="utf-8")
    assert done.returncode == CAUGHT, f"{fault.tests} do not catch it:\n{done.stdout[-1000:]}{done.stderr[-1000:]}"


@planted
def test_without_a_fault_these_tests_pass(copy: Path) -> None:
    done = run(copy, " ".join(dict.fromkeys(" ".join(fault.tests for fault in FAULTS.values()).split())))
    assert done.returncode == 0, f"{done.stdout[-1000:]}{done.stderr[-1000:]}"
