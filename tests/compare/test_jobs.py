"""Two jobs held against each other, and a job against budgets."""

import msgspec
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.compare import compare
from advisor.compare.budgets import check
from advisor.engine.fleet import reduced
from advisor.engine.reduce import Judging
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.reports.comparison import formats
from advisor.sources import read
from advisor.sources.ranks import holds_ranks
from tests.paths import ROOT

JOBS = ROOT / "samples" / "jobs"


def report_of(name):
    return run(reduced(read(JOBS / name), Judging(rules=()), executor="serial"), [r for r in catalog().values() if "ranks" in r.relies_on])


@pytest.fixture(scope="module")
def sides():
    return report_of("ddp_forward_host_2"), report_of("ddp_even_2")


def test_the_parts_of_a_job_sum_to_its_step_and_the_rows_to_the_change(sides):
    slow, fixed = sides
    assert sum(part.us for part in slow.breakdown) == pytest.approx(slow.headline.step_us, rel=1e-6)
    made = compare([slow], [fixed])
    assert [table.by for table in made.tables] == ["class"] and sum(row.change_us for row in made.tables[0].rows) == pytest.approx(made.change_us)
    assert made.verdict == "faster" and [f.status for f in made.findings if f.rule == "straggler"] == ["gone"]
    for form in formats().values():
        assert form.render(made)


def test_jobs_of_other_numbers_of_ranks_are_not_comparable(sides):
    slow, fixed = sides
    fewer = msgspec.structs.replace(fixed, ranks=fixed.ranks[:1])
    assert any(d.what == "number of ranks" and d.serious for d in compare([slow], [fewer]).differences)


def test_budgets_of_a_job(sides):
    slow, fixed = sides
    budgets = {"step_ms": 10.0, "wait_share": 0.2, "idle_share": 0.3, "exposed_comm_share": 0.3, "kernel_count": 10}
    assert [v.status for v in check(budgets, slow)] == ["crossed", "crossed", "crossed", "crossed", "unknown"]
    assert [v.status for v in check(budgets, fixed)] == ["kept", "kept", "kept", "kept", "unknown"]


def test_a_directory_is_a_job_where_its_traces_say_different_ranks(tmp_path):
    assert holds_ranks(JOBS / "ddp_even_2")
    for name in ("first.json.gz", "second.json.gz"):
        (tmp_path / name).write_bytes((JOBS / "ddp_even_2" / "rank0.json.gz").read_bytes())
    assert not holds_ranks(tmp_path)  # two captures of rank 0
    for rank in (0, 1):
        (tmp_path / f"host_{rank}.17.pt.trace.json.gz").write_bytes((JOBS / "ddp_even_2" / f"rank{rank}.json.gz").read_bytes())
    assert holds_ranks(tmp_path)


def test_diff_on_the_command_line(tmp_path):
    done = CliRunner().invoke(app, ["diff", str(JOBS / "ddp_forward_host_2"), str(JOBS / "ddp_even_2"), "-o", str(tmp_path / "diff.md")])
    assert done.exit_code == 0 and "waiting for other ranks" in (tmp_path / "diff.md").read_text()
