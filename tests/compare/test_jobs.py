"""Two jobs held against each other, and a job against budgets."""

import re

import msgspec
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.compare import compare
from advisor.compare.across import compare_programs
from advisor.compare.budgets import check
from advisor.engine.fleet import reduced
from advisor.engine.reduce import Judging
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.errors import UsageError
from advisor.report.step import Part
from advisor.reports.across import formats as across_formats
from advisor.reports.comparison import formats
from advisor.sources import read
from advisor.sources.ranks import holds_ranks
from tests.kineto_ranks import as_json
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


def exchanging(report, *kinds):
    (row,) = {row.kind: row for row in report.collectives}.values()
    return msgspec.structs.replace(report, collectives=tuple(msgspec.structs.replace(row, kind=kind) for kind in kinds))


@pytest.mark.parametrize(
    ("kinds", "serious"),
    [
        (["send/recv"], True),
        (["all-to-all", "all-reduce"], True),
        (["all-gather", "reduce-scatter"], False),
        (["all-reduce"], None),
        ([], None),
    ],
)
def test_jobs_whose_work_is_split_in_other_ways_are_not_comparable(sides, kinds, serious):
    """Averaging a model or sharding it is a choice that a fix may make; a pipeline or experts are another program."""
    slow, fixed = sides
    found = {d.what: d.serious for d in compare([slow], [exchanging(fixed, *kinds)]).differences}
    assert found.get("what ranks exchange") is serious


def test_the_command_refuses_jobs_of_two_programs_and_names_each_that_it_reads():
    done = CliRunner().invoke(app, ["diff", str(JOBS / "pipeline_2_2"), str(JOBS / "ddp_even_2")])
    assert isinstance(done.exception, UsageError) and "what ranks exchange is send/recv before and all-reduce after" in done.exception.message
    for name in ("pipeline_2_2", "ddp_even_2"):
        assert f"1 of 2 of {JOBS / name}: rank0.trace.zst" in done.stderr


def test_budgets_of_a_job(sides):
    slow, fixed = sides
    budgets = {"step_ms": 10.0, "wait_share": 0.2, "idle_share": 0.2, "exposed_comm_share": 0.25, "kernel_count": 10}
    assert [v.status for v in check(budgets, slow)] == ["crossed", "crossed", "crossed", "crossed", "crossed"]
    assert [v.status for v in check(budgets, fixed)] == ["kept", "kept", "kept", "kept", "crossed"]
    (kernels,) = check({"kernel_count": 1000}, fixed)
    assert (kernels.status, kernels.value) == ("kept", compare([slow], [fixed]).after.kernels), "as a comparison counts them"


def test_shares_of_a_job_are_of_the_step_as_it_runs_when_nobody_records(sides):
    us = {"compute": 4_000.0, "copy": 500.0, "transfer": 1_000.0, "wait": 2_500.0, "data_loading": 300.0, "host": 1_500.0, "unknown": 200.0}
    kinds = {"compute": "compute", "copy": "copy", "transfer": "communication"}
    job = msgspec.structs.replace(sides[0], breakdown=tuple(Part(kind=kinds.get(name, "idle"), name=name, us=took) for name, took in us.items()))
    details = [v.detail.split(" of")[0] for v in check({"idle_share": 0, "exposed_copy_share": 0, "exposed_comm_share": 0, "wait_share": 0}, job)]
    assert details == ["20%", "5.0%", "35%", "25%"]
    shown = compare_programs(job, sides[1])
    assert (shown.left.idle_share, shown.left.waiting_share) == (0.2, 0.25) and shown.right.idle_share > 0
    assert re.search(r"Idle +20%", across_formats()["text"].render(shown)) and re.search(
        r"Waiting for other ranks +25%", across_formats()["text"].render(shown)
    )


def test_a_directory_is_a_job_where_its_traces_say_different_ranks(tmp_path):
    assert holds_ranks(JOBS / "ddp_even_2")
    for name in ("first.trace.zst", "second.trace.zst"):
        (tmp_path / name).write_bytes((JOBS / "ddp_even_2" / "rank0.trace.zst").read_bytes())
    assert not holds_ranks(tmp_path)  # two captures of rank 0
    for rank in (0, 1):
        (tmp_path / f"host_{rank}.17.pt.trace.json.gz").write_bytes(as_json(JOBS / "ddp_even_2" / f"rank{rank}.trace.zst"))
    assert holds_ranks(tmp_path)


def test_diff_on_the_command_line(tmp_path):
    done = CliRunner().invoke(app, ["diff", str(JOBS / "ddp_forward_host_2"), str(JOBS / "ddp_even_2"), "-o", str(tmp_path / "diff.md")])
    assert done.exit_code == 0 and "waiting for other ranks" in (tmp_path / "diff.md").read_text()
