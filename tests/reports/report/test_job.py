"""What reports show of a job: the same in every format, with nothing of a name run, and each rank's own page a link away."""

import re

import msgspec
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.engine.fleet import reduced
from advisor.engine.reduce import Judging
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.report.model import Report
from advisor.reports import formats
from advisor.sources import read
from tests.paths import ROOT

JOB = ROOT / "samples" / "jobs" / "ddp_forward_host"


@pytest.fixture(scope="module")
def report():
    rules = [rule for rule in catalog().values() if "ranks" in rule.relies_on]
    return run(reduced(read(JOB), Judging(rules=()), executor="serial"), rules)


def test_the_page_draws_steps_waits_links_and_the_worst_collective(report):
    page = formats()["html"].render(report)
    for anchor in ("ranks", "worst", "heat", "waits", "links"):
        assert f'<section id="{anchor}"' in page and f'href="#{anchor}"' in page
    assert page.count("<svg") == page.count('role="img" aria-label') - page.count('<div class="stack" role="img"')
    assert "step 1</text>" in page and not re.search("step 0[:<]", page), "steps are counted as a trace's are"
    assert "rank 1 comes last" in page and 'http-equiv="Content-Security-Policy"' in page
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']?http", page)


def test_a_saved_report_draws_the_same(report):
    saved = Report.from_json(report.to_json())
    assert saved.worst == report.worst and formats()["html"].render(saved) == formats()["html"].render(report)


def test_the_culprit_is_the_rank_that_all_wait_for(report):
    assert report.worst.last == 1 and {row.waits_for for row in report.waits} == {1}
    waited = {row.rank: sum(step.wait_us for step in row.by_step) for row in report.ranks}
    assert waited[1] < 0.05 * min(waited[rank] for rank in (0, 2, 3))


def test_a_ranks_steps_wait_as_its_row_says(report):
    for row in report.ranks:
        assert sum(step.wait_us for step in row.by_step) / len(row.by_step) == pytest.approx(row.wait_us, rel=0.02, abs=20)


def test_on_the_timeline_the_last_rank_comes_when_the_transfer_begins(report):
    last = next(rank for rank in report.worst.ranks if rank.rank == report.worst.last)
    assert last.arrival_us == pytest.approx(report.worst.begin_us)
    for rank in report.worst.ranks:
        assert all(0 <= span.start_us < span.end_us <= report.worst.span_us for span in rank.spans)
        assert all(span.end_us <= report.worst.begin_us + 1e-6 for span in rank.spans if span.part == "wait" and span.start_us < report.worst.begin_us)


@pytest.mark.parametrize("form", ["html", "markdown", "text", "sarif", "json"])
def test_names_from_traces_are_text_in_every_format(report, form):
    nasty = '"><script>alert(1)</script>\x1b[2J'
    rows = [msgspec.structs.replace(row, host=nasty, trace=nasty) for row in report.ranks]
    collectives = [msgspec.structs.replace(row, group=nasty) for row in report.collectives]
    worst = msgspec.structs.replace(report.worst, group=nasty)
    shown = formats()[form].render(msgspec.structs.replace(report, ranks=tuple(rows), collectives=tuple(collectives), worst=worst))
    assert "\x1b" not in shown and (form in ("json", "text", "sarif") or "<script>alert" not in shown)


def test_a_thousand_ranks_fit_a_page(report):
    rows = [msgspec.structs.replace(report.ranks[i % 4], rank=i) for i in range(1000)]
    page = formats()["html"].render(msgspec.structs.replace(report, ranks=tuple(rows)))
    assert len(page.encode()) <= 1_000_000 and "Each row shows 11 ranks" in page


def test_a_directory_holds_each_ranks_own_page(tmp_path):
    done = CliRunner().invoke(app, ["analyze", str(JOB), "-o", str(tmp_path / "out"), "--executor", "serial", "--rule", "straggler"])
    assert done.exit_code == 0, done.output
    links = re.findall(r'href="(ranks/[^"]+)"', (tmp_path / "out" / "index.html").read_text())
    assert links == [f"ranks/rank{i}.html" for i in range(4)] and all((tmp_path / "out" / link).is_file() for link in links)
