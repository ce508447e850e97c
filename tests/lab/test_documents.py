"""The documents that hold programs against what was measured are those of the corpus' tables, and the tables those of today's rules."""

import importlib.util
import json
import re

import pytest

from advisor.knowledge.data import load
from advisor.lab import coverage, ledger, tables
from tests.analysed import analysed
from tests.command import advisor
from tests.paths import ALL_SAMPLES, ROOT

SAMPLES, CORPUS = ROOT / "samples", ROOT / "corpus"
SCREEN = 40
"""Lines that one shows."""


@pytest.fixture(scope="module")
def documents():
    spec = importlib.util.spec_from_file_location("corpus_update", CORPUS / "update.py")
    update = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(update)
    return update.documents()


def test_documents_are_those_of_the_tables(documents):
    for path, text in documents.items():
        assert path.read_text() == text + "\n", f"{path.name}: python corpus/update.py --documents"


def test_what_is_evidence_lies_in_tables(documents):
    for path, text in documents.items():
        if path.suffix == ".md":
            assert text.count("\n") < (120 if path.name == "accuracy.md" else SCREEN), path.name


@pytest.mark.skipif(not ALL_SAMPLES, reason="analyses every trace of the corpus: ADVISOR_SAMPLES=all, when documents are written anew")
def test_the_tables_are_what_todays_rules_say():
    assert ledger.predicted(CORPUS, analysed, "another").rows == ledger.read(CORPUS), "python corpus/update.py"
    said = coverage.cells(coverage.samples(SAMPLES, analysed), coverage.reasons(SAMPLES))
    assert said == tables.read(CORPUS / coverage.FILE, coverage.Cell), "python corpus/update.py"


def test_each_loud_finding_that_nothing_was_planted_for_has_its_reason_and_no_reason_is_left_over():
    stray = {(cell.sample, cell.rule): cell.why for cell in tables.read(CORPUS / coverage.FILE, coverage.Cell) if cell.stray}
    assert all(stray.values()), "samples/also.toml needs a reason for each loud finding off the diagonal"
    assert {(sample, rule) for sample, rules in coverage.reasons(SAMPLES).items() for rule in rules} <= stray.keys()


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
