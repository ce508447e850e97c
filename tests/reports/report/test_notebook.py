"""A report in a notebook: shown as its page, and read as DataFrames."""

from __future__ import annotations

from html import unescape

import pytest

import advisor
from advisor.engine.analysis import Analysis
from advisor.report.model import Report
from advisor.reports.report import html
from tests.paths import ROOT
from tests.reports.examples import EXAMPLES, hostile


def test_a_notebook_shows_the_page_in_a_frame_that_nothing_leaves() -> None:
    shown = Analysis(hostile())._repr_html_()
    assert shown.startswith("<iframe ") and shown.count("<") == 2
    assert 'sandbox="allow-scripts"' in shown
    assert unescape(shown.partition('srcdoc="')[2].removesuffix('"></iframe>')) == html.render(hostile())


def test_tables_hold_the_reports_numbers() -> None:
    report = advisor.analyze(ROOT / "samples" / "launch-gap" / "slow.json.gz")
    tables = report.tables()
    assert tables["findings"]["saving.expected_us"].tolist() == [f.saving.expected_us for f in report.findings]
    assert tables["kernels"]["total_us"].sum() == pytest.approx(sum(row.total_us for row in report.kernels))
    assert tables["time"]["idle.launch"].tolist() == [row.idle.launch for row in report.time]
    assert len(tables["evidence"]) == sum(len(f.evidence) for f in report.findings)
    parts = tables["steps"][["compute_us", "communication_us", "copy_us", "memset_us", "idle_us"]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx(tables["steps"]["period_us"].to_numpy())
    assert set(Report.from_json(report.to_json()).tables()) == set(tables) - {"steps", "copies"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_report_has_tables(name: str) -> None:
    assert {len(EXAMPLES[name]().tables()[key]) for key in ("health",)} == {len(EXAMPLES[name]().health)}
