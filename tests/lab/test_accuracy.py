"""The ledger: which fixes a manifest or a corpus holds, and how often findings that were so sure were right."""

import json
import shutil
from pathlib import Path

import pytest

from advisor.errors import TraceError
from advisor.knowledge.structs import replace
from advisor.lab import ledger, tables
from advisor.lab.accuracy import Pair, Validated, validate
from advisor.lab.accuracy_chart import by_set_as_svg
from advisor.lab.accuracy_page import BlindSet, as_markdown
from tests.analysed import analysed
from tests.paths import ROOT

SAMPLE = ROOT / "samples" / "launch-gap" / "slow.json.gz"
ROW = ledger.Row("mlp", "public", "7", "graph-candidate", "launch-gap", "", "NVIDIA H200", 2.8, 0.7, 0.75, 0.1, 0.2, 0.3, 0.9, "0ld", "slow.json.gz")


def page_of(pairs, directory="samples"):
    return as_markdown(Validated(pairs, len(pairs)), directory)


def test_each_fix_that_was_timed_alone_is_a_pair_and_further_ways_are_left_out(tmp_path):
    alone = {"precision": 4.0, "precision/tf32": 3.0, "launch-gap": 3.4}
    case = {"rule": None, "slow_ms": 3.6, "alone": alone, "kineto": {"slow": str(SAMPLE)}}
    (tmp_path / "manifest.json").write_text(json.dumps({"cases": {"encoder": case}}))
    pairs = {p.rule: p for p in validate(tmp_path, analysed).pairs}
    assert set(pairs) == {"precision", "launch-gap"}
    assert pairs["precision"].measured == 0.0, "a fix that costs time gains nothing"
    assert pairs["launch-gap"].measured == pytest.approx(1 - 3.4 / 3.6)
    assert pairs["launch-gap"].confidence > 0 and pairs["precision"].confidence == 0


def test_confidence_is_held_against_what_fixes_gained():
    pairs = [Pair(f"p{n}", "memcpy", 0.1, 0.2, 0.3, gain, 0.9) for n, gain in enumerate((0.2, 0.15, 0.05, 0.0))]
    assert "| 0.88 to 1.00 | 4 | 75% | 50% |" in page_of(pairs)


def test_what_was_predicted_blind_is_told_of_its_own_directory_alone_and_first(tmp_path):
    pairs = [Pair("p", "memcpy", 0.1, 0.2, 0.3, 0.2)]
    assert "never seen" not in page_of(pairs, str(tmp_path))
    early = BlindSet(1, "three models", "c0ffee", "2026-11-21", 9, 0.9, 0.09, None, 6, None, None, None, None, None, None, None)
    later = BlindSet(2, "four <more>", "c0ffee", "2026-11-22", 10, 0.5, 0.02, 0.064, 8, 6, 0.72, 0.111, 0.125, 5, 4, 1)
    (tmp_path / "blind.csv").write_text(tables.as_csv([early, later], BlindSet))
    page = page_of(pairs, str(tmp_path))
    assert "| 1 | 9 | 9.0% |  | 67% | 0.90 |  |  |\n| 2 | 10 | 2.0% | 6.4% | 80% | 0.50 | 11.1%, 12.5%, 0.72 | 4, 1 |" in page
    assert page.index("never seen") < page.index("as predicted today")
    svg = by_set_as_svg([early, later])
    assert svg.count("<title>") == 1 and "four &lt;more&gt;" in svg, "a set without a mean has no bar"
    assert ">9%<" in svg and ">12%<" not in svg, "the axis ends above the largest error"


def test_pairs_of_folders_are_told_apart(tmp_path):
    case = {"rule": "memcpy", "slow_ms": 3.6, "fixed_ms": 3.4, "kineto": {"slow": str(SAMPLE)}}
    (tmp_path / "public").mkdir()
    for folder in (tmp_path, tmp_path / "public"):
        (folder / "manifest.json").write_text(json.dumps({"cases": {"gcn": case}}))
    pairs = validate(tmp_path, analysed).pairs
    assert [p.group for p in pairs] == ["", "public"]
    assert "| of these: programs of its own | 1 |" in page_of(pairs) and "| of these: public | 1 |" in page_of(pairs)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A row whose trace is here, one whose trace left, and a further way to a fix."""
    shutil.copy(SAMPLE, tmp_path / "slow.json.gz")
    (tmp_path / "ledger.csv").write_text(tables.as_csv([ROW, replace(ROW, program="gone", trace=""), replace(ROW, way="tf32")], ledger.Row))
    return tmp_path


def test_a_ledger_is_predicted_anew_where_its_trace_is_here_and_kept_elsewhere(corpus):
    found = validate(corpus, analysed)
    assert (found.anew, found.kept, len(found.pairs)) == (1, 1, 2)
    report = analysed(SAMPLE)
    finding = next(f for f in report.findings if f.rule in ("graph-candidate", "launch-gap"))
    assert found.pairs[0].expected == pytest.approx(finding.saving.expected / report.step_us), "the first finding of the rules that may name the fix"
    assert (found.pairs[1].low, found.pairs[1].expected, found.pairs[1].high) == (0.1, 0.2, 0.3)


def test_a_prediction_that_changed_has_the_commit_that_changed_it(corpus):
    once = ledger.predicted(corpus, analysed, "new").rows
    assert [row.commit for row in once] == ["new", "0ld", "0ld"]
    (corpus / "ledger.csv").write_text(tables.as_csv(once, ledger.Row))
    assert ledger.predicted(corpus, analysed, "newer").rows[0].commit == "new", "what comes out the same keeps its commit"


def test_a_ledger_that_is_none_is_refused(corpus):
    for text in ("", "program,set\nmlp,public\n", (corpus / "ledger.csv").read_text().replace("0.75", "much")):
        (corpus / "ledger.csv").write_text(text)
        with pytest.raises(TraceError, match=r"ledger\.csv"):
            validate(corpus, analysed)
