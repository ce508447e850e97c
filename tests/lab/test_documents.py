"""The documents that hold the samples against what was measured are those that today's rules give."""

import json
import re

import pytest

from advisor.knowledge.data import load
from advisor.lab import accuracy, accuracy_page, coverage, ledger
from advisor.lab.accuracy_chart import by_set_as_svg
from tests.analysed import analysed
from tests.command import advisor
from tests.paths import ALL_SAMPLES, ROOT

SAMPLES, CORPUS = ROOT / "samples", ROOT / "corpus"


def test_accuracy_is_that_of_the_ledger():
    found = accuracy.of_ledger(ledger.standing(CORPUS))
    page = (ROOT / "docs" / "accuracy.md").read_text()
    assert page == accuracy_page.as_markdown(found, "corpus") + "\n", "python corpus/update.py"
    assert page.count("\n") < 120
    assert (ROOT / "docs" / "accuracy-by-set.svg").read_text() == by_set_as_svg(accuracy_page.blind(CORPUS)) + "\n", "python corpus/update.py"


@pytest.mark.skipif(not ALL_SAMPLES, reason="analyses every trace of the corpus: ADVISOR_SAMPLES=all, when documents are written anew")
def test_the_ledger_is_what_todays_rules_predict():
    assert ledger.predicted(CORPUS, analysed, "another").rows == ledger.read(CORPUS), "python corpus/update.py"


@pytest.mark.skipif(not ALL_SAMPLES, reason="analyses every sample: ADVISOR_SAMPLES=all, when documents are written anew")
def test_rules_by_sample_are_current():
    made = coverage.as_markdown(coverage.samples(SAMPLES, analysed), coverage.reasons(SAMPLES), "samples")
    assert made + "\n" == (ROOT / "docs" / "rules-by-sample.md").read_text(), "advisor validate samples --table > docs/rules-by-sample.md"


def test_each_loud_finding_that_nothing_was_planted_for_has_its_reason_and_no_reason_is_left_over():
    table = (ROOT / "docs" / "rules-by-sample.md").read_text()
    assert "not explained" not in table, "samples/also.toml needs a reason for each loud finding off the diagonal"
    gone = [f"{sample}, {rule}" for sample, rules in coverage.reasons(SAMPLES).items() for rule in rules if f"- **{sample}**, `{rule}`" not in table]
    assert not gone


def test_margins_are_wider_for_the_rules_that_the_ledger_has_few_pairs_of():
    few = re.findall(r"`([\w-]+)` \(fewer than 5 pairs\)", (ROOT / "docs" / "accuracy.md").read_text())
    assert sorted(few) == sorted(load("interval_margins")["few"]["rules"])


def test_the_command_prints_them(tmp_path):
    trace = SAMPLES / "launch-gap" / "slow.json.gz"
    case = {"rule": "launch-gap", "slow_ms": 3.6, "fixed_ms": 3.4, "kineto": {"slow": str(trace)}}
    (tmp_path / "manifest.json").write_text(f'{{"cases": {{"gcn_cora": {json.dumps(case)}}}}}')
    for option, begins in (("--markdown", b"# Accuracy"), ("--svg", b"<svg"), ("--table", b"# Rules by sample")):
        done = advisor("validate", tmp_path, option, cwd=tmp_path)
        assert done.returncode == 0 and done.stdout.startswith(begins), done.stderr
    assert b"1 pair: rank correlation unknown" in advisor("validate", tmp_path, cwd=tmp_path).stdout
