"""The ledger: which fixes a manifest holds, and how often findings that were so sure were right."""

import json
from pathlib import Path

import pytest

from advisor.lab.accuracy import Pair, as_markdown, validate
from tests.analysed import analysed

SAMPLE = Path(__file__).parents[2] / "samples" / "public" / "gcn_cora.slow.json.gz"


def test_each_fix_that_was_timed_alone_is_a_pair_and_further_ways_are_left_out(tmp_path):
    alone = {"precision": 4.0, "precision/tf32": 3.0, "optimizer-foreach": 3.4}
    case = {"rule": None, "slow_ms": 3.6, "alone": alone, "kineto": {"slow": str(SAMPLE)}}
    (tmp_path / "manifest.json").write_text(json.dumps({"cases": {"gcn_cora": case}}))
    pairs = {p.rule: p for p in validate(tmp_path, analysed)}
    assert set(pairs) == {"precision", "optimizer-foreach"}
    assert pairs["precision"].measured == 0.0, "a fix that costs time gains nothing"
    assert pairs["optimizer-foreach"].measured == pytest.approx(1 - 3.4 / 3.6)
    assert pairs["optimizer-foreach"].confidence > 0 and pairs["precision"].confidence == 0


def test_confidence_is_held_against_what_fixes_gained():
    pairs = [Pair(f"p{n}", "memcpy", 0.1, 0.2, 0.3, gain, 0.9) for n, gain in enumerate((0.2, 0.15, 0.05, 0.0))]
    assert "| 0.88 to 1.00 | 4 | 75% | 50% |" in as_markdown(pairs, "samples")


def test_what_was_predicted_blind_is_told_of_its_own_directory_alone(tmp_path):
    pairs = [Pair("p", "memcpy", 0.1, 0.2, 0.3, 0.2)]
    assert "never seen" not in as_markdown(pairs, str(tmp_path))
    (tmp_path / "blind.md").write_text("## Programs never seen before\n")
    assert "\n## Programs never seen before\n\n| Program | Rule |" in as_markdown(pairs, str(tmp_path))


def test_pairs_of_folders_are_told_apart(tmp_path):
    case = {"rule": "memcpy", "slow_ms": 3.6, "fixed_ms": 3.4, "kineto": {"slow": str(SAMPLE)}}
    (tmp_path / "public").mkdir()
    for folder in (tmp_path, tmp_path / "public"):
        (folder / "manifest.json").write_text(json.dumps({"cases": {"gcn": case}}))
    pairs = validate(tmp_path, analysed)
    assert [p.group for p in pairs] == ["", "public"]
    page = as_markdown(pairs, "samples")
    assert "| of these: programs of its own | 1 |" in page and "| of these: public | 1 |" in page
