"""Generated traces are sound: every check of the trace's health passes, and the steps are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor import analyze, load
from tests.benchmarks import generate, nsys_export
from tests.paths import slowly


@pytest.mark.parametrize(
    "options",
    slowly([{"layout": "indented", "stacks": True, "shapes": False}, {}, {"layout": "compact"}, {"shapes": False}, {"stacks": True, "names": 500}], quick=1),
)
def test_kineto(options: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    events = generate.kineto(path, 3_000_000, **options)  # type: ignore[arg-type]
    report = analyze(path)
    assert {check.status for check in report.health} == {"ok"}
    assert report.window.basis == "profiler-step" and report.window.steps >= 4
    assert report.source.events == events
    assert report.source.recorded.shapes == options.get("shapes", True)
    assert report.source.recorded.stacks == options.get("stacks", False)
    assert not report.failed


def test_the_same_arguments_give_the_same_file(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        generate.kineto(tmp_path / name, 100_000)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_distinct_names(tmp_path: Path) -> None:
    generate.kineto(tmp_path / "trace.json", 1_000_000, names=1000)
    timeline = load(tmp_path / "trace.json")
    names = {*timeline.cpu_ops["name"], *timeline.gpu_ops["name"]}
    assert len(names) >= 1000


def test_nsys(tmp_path: Path) -> None:
    path = tmp_path / "export.sqlite"
    nsys_export.generate(path, 2000)
    report = analyze(path)
    assert {check.status for check in report.health} == {"ok"}
    assert report.window.basis == "nvtx" and report.window.steps >= 8
    assert report.source.recorded.syncs and not report.failed
