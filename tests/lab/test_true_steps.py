"""True steps held against measured ones: what counts as inside, and which bound is whose."""

import json
from pathlib import Path

import pytest

from advisor.errors import TraceError
from advisor.lab import tables
from advisor.lab.true_steps import Held, as_markdown, as_svg, held

RECORDING = Path(__file__).parents[2] / "samples" / "recording"


def one(measured_us, gpu_us, low, expected, high, name="p"):
    return Held(name, "slow", "NVIDIA H200", False, measured_us, gpu_us, 200.0, low, expected, high)


def test_off_inside_and_width_by_hand():
    host = one(100.0, 20.0, 80.0, 125.0, 180.0)
    assert (host.gpu_bound, host.in_interval) == (False, True)
    assert host.error == pytest.approx(0.25) and host.width == pytest.approx(0.8)
    assert one(125.0, 20.0, 80.0, 100.0, 180.0).error == pytest.approx(0.25), "too short by as much"
    assert one(100.0, 90.0, 104.0, 110.0, 120.0).in_interval and not one(100.0, 90.0, 106.0, 110.0, 120.0).in_interval
    assert one(100.0, 86.0, 90.0, 100.0, 110.0).gpu_bound


def test_both_bounds_stand_apart():
    text = as_markdown([one(100.0, 20.0, 80.0, 125.0, 180.0, "a"), one(100.0, 99.0, 97.0, 100.0, 110.0, "b")], "samples")
    assert "| the host is the bound | 1 | 100% | 25% | 25% | 100% | 0.80 |" in text
    assert "| the GPU is the bound | 1 | 100% | 0% | 0% | 100% | 0.13 |" in text


def test_the_chart_shows_each_and_which_are_outside():
    inside, outside = one(100.0, 20.0, 80.0, 125.0, 180.0), one(1000.0, 20.0, 80.0, 125.0, 180.0)
    svg = as_svg([inside, inside, outside])
    assert svg.count("h.01") == 3 and svg.split("#c2410c")[0].count("h.01") == 3


def test_a_step_of_a_corpus_is_made_anew_where_its_trace_is_here(tmp_path):
    kept = one(32812.2, 4407.9, 1.0, 2.0, 3.0)
    (tmp_path / "light.trace.zst").symlink_to(RECORDING / "vit_infer_graphs.light.trace.zst")
    here = Held(**{**vars(kept), "trace": "light.trace.zst"})
    (tmp_path / "true-steps.csv").write_text(tables.as_csv([kept, here], Held))
    left, made = held(tmp_path)
    assert left == kept and made.expected_us > 100 and made.gpu_us == kept.gpu_us


def test_every_recording_that_is_listed_is_held(tmp_path):
    programs = json.loads((RECORDING / "recordings.json").read_text())["programs"]
    program = programs["vit_infer_graphs"] | {"traces": ["light"]}
    (tmp_path / "vit_infer_graphs.light.trace.zst").symlink_to(RECORDING / "vit_infer_graphs.light.trace.zst")
    (tmp_path / "recordings.json").write_text(json.dumps({"programs": {"vit_infer_graphs": program}}))
    (found,) = held(tmp_path)
    assert found.gpu_bound and found.in_interval and found.error < 0.08
    with pytest.raises(TraceError, match="no recording"):
        held(tmp_path / "elsewhere")
