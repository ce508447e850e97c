"""The step as a Chrome trace: what Perfetto needs of one, and nothing that the step does not hold."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

import advisor
from advisor.engine.analysis import Analysis
from advisor.reports.report import perfetto
from tests.paths import ROOT
from tests.reports.examples import hostile


@pytest.fixture(scope="module")
def report() -> Analysis:
    return advisor.analyze(ROOT / "samples" / "launch-gap" / "slow.json.gz")


@pytest.fixture(scope="module")
def events(report: Analysis) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(perfetto.render(report))["traceEvents"]
    return found


def test_every_slice_of_the_step_is_written_where_it_was(report: Analysis, events: list[dict[str, Any]]) -> None:
    cut = report.picture.step
    slices = [e for e in events if e["ph"] == "X" and e["cat"] != "finding"]
    assert [e["ts"] for e in slices] == cut.slice_start_us.tolist()
    assert [e["dur"] for e in slices] == cut.slice_dur_us.tolist()
    kernels = [e for e in slices if e["args"].get("op") == "aten::addmm"]
    assert kernels and {e["cat"] for e in kernels} == {"gemm"}


def test_each_launch_points_at_its_work(events: list[dict[str, Any]]) -> None:
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) > 50 and starts.keys() == ends.keys()
    assert all(starts[i]["ts"] <= ends[i]["ts"] and starts[i]["pid"] != ends[i]["pid"] for i in starts)


def test_each_finding_is_a_track_of_places_that_do_not_overlap(report: Analysis, events: list[dict[str, Any]]) -> None:
    tracks = defaultdict(list)
    for event in events:
        if event.get("cat") == "finding":
            tracks[event["tid"]].append(event)
    assert sorted(tracks) == list(range(len(report.findings)))
    for number, places in tracks.items():
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(places))
        assert places[0]["args"]["saves_us"] == report.findings[number].saving.expected_us


def test_numbers_fit_what_perfetto_reads(events: list[dict[str, Any]]) -> None:
    assert all(0 <= e["pid"] < 1 << 32 and 0 <= e.get("tid", 0) < 1 << 32 for e in events)
    named = {(e["pid"], e.get("tid")) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named


def test_a_saved_report_gives_its_findings_alone() -> None:
    made = json.loads(perfetto.render(hostile()))["traceEvents"]
    assert {e["cat"] for e in made if e["ph"] == "X"} == {"finding"}


def test_bytes_are_no_microseconds() -> None:
    text = perfetto.render(advisor.analyze(ROOT / "samples" / "memory" / "grown_cache.slow.pickle.gz"))
    assert '"saves_bytes"' in text and '"saves_us"' not in text
