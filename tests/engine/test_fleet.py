"""Ranks reduced here, in shards and resumed: the same job; what is no job is refused."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.engine import executors
from advisor.engine.fleet import Kept, Reduced, merged, reduce, reduced, stored, traces_of
from advisor.engine.redact_job import redact
from advisor.engine.reduce import Judging
from advisor.engine.rule import catalog
from advisor.engine.run import run
from advisor.errors import TraceError, UsageError
from advisor.knowledge.structs import replace
from advisor.recordings.kernel_profiles import KernelProfiles
from advisor.recordings.recording import Recording, with_kernels
from advisor.report.finding import Clear, Failed, Skipped
from advisor.report.recording import Health, UnseenWork
from advisor.report.saved import read_report
from advisor.reports import formats
from advisor.sources import isolated, load, read, read_several
from advisor.sources.ranks import holds_ranks, others_left, traces_among
from advisor.views.ranks.job import RankSummaries, UnreadRank
from advisor.views.ranks.summary import RankSummary
from tests.analysed import summarised
from tests.benchmarks.many_ranks import report
from tests.build import Trace
from tests.kernels import kernel
from tests.kineto_ranks import as_json, write_as_json
from tests.paths import ROOT, slow, slowly
from tests.views.ranks.build import rank_timeline, summary_of

JOB = ROOT / "samples" / "jobs" / "ddp_forward_host_2"
BARE = Judging(rules=())
SMALLEST = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}'
DEADLY = '''
import os
import advisor
from advisor.recordings.timeline import Timeline

@advisor.rule("team/deadly", min_saving_share=0.1)
def deadly(timeline: Timeline):
    """A rule that ends its process

    What
    It ends.

    Why
    It does not.

    How it is measured
    From {min_saving_share}.

    How to fix
    No.

    When to ignore
    Never.

    References
    None.
    """
    if timeline.source.rank == 1:
        os._exit(7)
    return advisor.Clear(why="alive")
'''


def packed(recording):
    return [one.to_bytes() for one in recording.parts[0].ranks]


def test_shards_merge_to_the_same_job_and_are_not_made_again(tmp_path):
    whole = packed(summarised(JOB))
    traces = traces_of(read(JOB)).traces
    for part in (0, 1):
        reduce(traces[part::2], BARE, executor="serial", kept=Kept(tmp_path))
    assert packed(merged(stored(tmp_path), "job")) == whole
    seen = []
    reduced(read(JOB), BARE, executor="serial", kept=Kept(tmp_path), progress=lambda *done: seen.append(done))
    assert not seen  # nothing was left to do


def test_a_rank_is_not_kept_beside_the_page_of_another_jobs_rank_of_that_name(tmp_path):
    kept, page = Kept(tmp_path / "summaries", tmp_path / "pages"), tmp_path / "pages" / "rank0.html"
    for job in (JOB, JOB.with_name("ddp_even_2"), JOB):
        reduce(traces_of(read(job)).traces[:1], BARE, executor="serial", kept=kept)
        assert f"{job.name}/rank0.trace.zst" in page.read_text()
    seen = []
    reduce(traces_of(read(JOB)).traces[:1], BARE, executor="serial", kept=kept, progress=lambda *done: seen.append(done))
    assert not seen, "its own page is kept"


def test_what_was_left_half_written_or_judged_otherwise_is_made_again(tmp_path):
    traces, other = traces_of(read(JOB)).traces, Judging(rules=("launch-gap",))
    reduce(traces, BARE, executor="serial", kept=Kept(tmp_path))
    one, _ = sorted(tmp_path.glob("*.rank"))
    one.write_bytes(b"half of it")
    seen = []
    reduce(traces, BARE, executor="serial", kept=Kept(tmp_path), progress=lambda *done: seen.append(done))
    assert len(seen) == 1 and one.stat().st_size > 1000
    reduce(traces, other, executor="serial", kept=Kept(tmp_path))
    assert len(list(tmp_path.glob("*.rank"))) == 4


def test_a_shard_says_which_rank_it_could_not_read_until_it_can(tmp_path):
    job, kept = tmp_path / "job", tmp_path / "kept"
    shutil.copytree(JOB, job)
    good = (job / "rank1.trace.zst").read_bytes()
    (job / "rank1.trace.zst").write_bytes(gzip.compress(b"no trace"))
    reduce(traces_of(read(job)).traces, BARE, executor="serial", kept=Kept(kept))
    assert [u.label for u in stored(kept).unread] == ["rank1.trace.zst"]
    (job / "rank1.trace.zst").write_bytes(good)
    reduce(traces_of(read(job)).traces, BARE, executor="serial", kept=Kept(kept))
    assert len(stored(kept).summaries) == 2


@slow
def test_processes_give_the_same():
    assert packed(reduced(read(JOB), BARE, workers=2)) == packed(summarised(JOB))


def test_small_traces_start_no_other_process(monkeypatch):
    monkeypatch.setattr(isolated, "start", None)
    assert len(reduced(read(JOB), BARE).parts[0].ranks) == 2
    monkeypatch.setattr(executors, "SMALL_BYTES", 1)
    with pytest.raises(TypeError):
        reduced(read(JOB), BARE)


def test_here_too_a_rank_that_breaks_costs_no_other(monkeypatch):
    def broken(trace, judging, whole=executors.tried):
        if "rank1" in trace.label:
            raise MemoryError("too large")
        return whole(trace, judging)

    monkeypatch.setattr(executors, "tried", broken)
    found = reduce(traces_of(read(JOB)).traces, BARE)
    assert len(found.summaries) == 1 and [(u.label, u.why) for u in found.unread] == [("rank1.trace.zst", "MemoryError: too large")]


@slow
def test_a_script_without_a_guard_analyses_a_job(tmp_path):
    script = tmp_path / "look.py"
    script.write_text(
        "import sys, advisor\nfrom advisor.engine.fleet import reduced\nfrom advisor.sources import read\nprint('begins')\n"
        "print([f.rule for f in advisor.analyze(reduced(read(sys.argv[1]), workers=2)).findings][0])\n"
    )
    done = subprocess.run([sys.executable, script, JOB], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.stdout.split() == ["begins", "straggler"], done.stderr


@slow
def test_a_process_that_dies_costs_its_rank_and_no_other(tmp_path):
    rules = tmp_path / "harsh.py"
    rules.write_text(DEADLY)
    found = reduce(traces_of(read(JOB)).traces, Judging(rules=("team/deadly",), paths=(str(rules),)), workers=2)
    assert len(found.summaries) == 1 and "ended with 7" in found.unread[0].why


def test_what_rules_say_of_each_rank_is_carried_to_the_job():
    job = summarised(JOB)
    of_each = [
        {"clear": (Clear(rule="both-clear", why="few"), Clear(rule="one-skips", why="few")), "failed": (Failed(rule="one-fails", error="KeyError: 1"),)},
        {
            "clear": (Clear(rule="both-clear", why="fewer"), Clear(rule="one-fails", why="few"), Clear(rule="one-finds", why="few")),
            "skipped": (Skipped(rule="one-skips", why="no shapes", record_with="record_shapes=True"),),
        },
    ]
    (part,) = job.parts
    ranks = tuple(replace(one, facts=msgspec.structs.replace(one.facts, **told)) for one, told in zip(part.ranks, of_each, strict=True))
    made = run(replace(job, parts=(replace(part, ranks=ranks),)), [])
    assert made.clear == (Clear(rule="both-clear", why="both ranks, as rank 0: few"),)  # of one-finds rank 0 says nothing
    assert made.skipped == (Skipped(rule="one-skips", why="rank 1: no shapes", record_with="record_shapes=True"),)
    assert made.failed == (Failed(rule="one-fails", error="rank 0: KeyError: 1"),)


def test_what_single_ranks_show_of_ranks_is_left_to_the_job_and_more_samples_shorten_no_step():
    job = summarised(JOB)
    (part,) = job.parts
    (one,) = run(read(ROOT / "samples" / "launch-gap" / "slow.json.gz"), [catalog()["launch-gap"]]).findings
    samples = msgspec.structs.replace(one, rule="low-arithmetic-intensity", saving=msgspec.structs.replace(one.saving, per="sample"))
    facts = {"findings": (msgspec.structs.replace(one, rule="missed-overlap"), samples)}
    ranks = tuple(replace(rank, facts=msgspec.structs.replace(rank.facts, **facts)) for rank in part.ranks)
    made = run(replace(job, parts=(replace(part, ranks=ranks),)), [])
    assert [(f.rule, f.saving.per) for f in made.findings] == [("low-arithmetic-intensity", "sample")]
    assert made.headline.predicted_step_us.low == made.headline.step_us
    assert [c.rule for c in made.clear] == ["missed-overlap"], "so that a budget of it is kept"
    alone = run(replace(job, parts=(replace(part, ranks=ranks[:1]),)), [catalog()["exposed-communication"]])
    assert [s.rule for s in alone.skipped] == ["exposed-communication", "missed-overlap"] and not alone.clear, "where the job could not look, nobody told"


BREAKS = DEADLY.replace("deadly", "breaks").replace("os._exit(7)", 'raise ValueError("no")')


def test_a_rule_that_fails_on_one_rank_fails_the_job_under_strict(tmp_path):
    rules = tmp_path / "own.py"
    rules.write_text(BREAKS)
    asked = ["analyze", str(JOB), "--rules", str(rules), "--rule", "team/breaks", "--executor", "serial", "-f", "text", "-o", "-"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0 and "rank 1: ValueError: no" in done.stdout
    assert "rule team/breaks failed: rank 1: ValueError: no" in str(CliRunner().invoke(app, [*asked, "--strict"]).exception)


def test_what_a_team_lives_with_is_allowed_where_only_ranks_show_it():
    launch = run(reduced(read(JOB), Judging(rules=("host-bound",)), executor="serial"), [], allow={"host-bound": "known"})
    assert [(f.rule, f.severity, f.allowed) for f in launch.findings] == [("host-bound", "info", "known")]


def test_a_rank_that_cannot_be_read_is_said_and_the_others_stand(tmp_path):
    shutil.copytree(JOB, tmp_path / "job")
    (tmp_path / "job" / "rank2.trace.zst").write_bytes(gzip.compress(b"no trace"))
    part = reduced(read(tmp_path / "job"), BARE, executor="serial").parts[0]
    assert isinstance(part, RankSummaries) and [s.rank for s in part.ranks] == [0, 1] and part.unread[0].label == "rank2.trace.zst"


def test_a_rank_whose_file_is_cut_before_its_kernels_is_said_to_be_cut(tmp_path):
    write_as_json(JOB, tmp_path / "job")
    whole = (tmp_path / "job" / "rank1.json.gz").read_bytes()
    (tmp_path / "job" / "rank1.json.gz").write_bytes(whole[:20_000])
    (unread,) = reduced(read(tmp_path / "job"), BARE, executor="serial").parts[0].unread
    assert "stops at byte 20,000" in unread.why


def test_what_lies_beside_a_jobs_traces_in_another_format_is_said_to_be_left_out(tmp_path):
    shutil.copytree(JOB, tmp_path / "job")
    (tmp_path / "job" / "rank2.sqlite").touch()
    assert read(tmp_path / "job").parts[0].chosen.startswith("rank2.sqlite was not read")
    unlike, packed = ["a.sqlite", "b.sqlite.gz"], ["a.sqlite", "a.sqlite.gz"]
    assert others_left(unlike, traces_among(unlike)) == ["b.sqlite.gz"] and not others_left(packed, traces_among(packed))


def test_a_directory_of_which_most_is_left_out_is_refused(tmp_path):
    for name in ("a.pt.trace.json", "b.json"):
        (tmp_path / name).write_text(SMALLEST)
    assert read(tmp_path).parts[0].source.issues[0].detail.startswith("b.json was not read")
    (tmp_path / "c.json").write_text(SMALLEST)
    (tmp_path / "k.ncu-rep").touch()  # of another kind than a trace: it is named, and counts for nothing
    with pytest.raises(UsageError, match=r"holds 3 traces of several formats, of which 1 is read; b.json and others are not"):
        read(tmp_path)


def ranks_of(work: list[list[list[float]]], **facts: object) -> tuple[RankSummary, ...]:
    """Summaries of ranks that do so much work before each collective of each step, with these facts."""
    made = [summary_of(rank_timeline(rank, own, work)) for rank, own in enumerate(work)]
    return tuple(replace(one, facts=msgspec.structs.replace(one.facts, **facts)) for one in made)


EVEN = [[[100.0]] * 3] * 2


def test_traces_that_share_no_collective_and_name_no_rank_are_no_job():
    trace = Trace()
    for number in range(4):
        trace.step(100 * number, 90, number + 1).launch(100 * number + 5, 100 * number + 10, 100 * number + 80)
    strangers = [summary_of(trace.timeline())] * 2

    def judged(summaries):
        return run(merged(Reduced(tuple(one.to_bytes() for one in summaries)), "job"), [])

    with pytest.raises(UsageError, match="ranks of the same job") as refused:
        judged(strangers)
    assert "--each" in refused.value.hint and "advisor diff" in refused.value.hint
    named = [replace(one, facts=msgspec.structs.replace(one.facts, rank=rank, rank_from="name")) for rank, one in enumerate(strangers)]
    assert judged(named).headline.bottleneck == "unmatched" and judged(ranks_of(EVEN, rank=-1)).matching.status == "ok"


def test_a_job_of_which_most_ranks_cannot_be_read_is_judged_in_part():
    summaries = RankSummaries(ranks_of(EVEN), (UnreadRank("rank2.json", "it is cut"),) * 3)
    headline = run(Recording("job", "job", (summaries,)), []).headline
    assert headline.judged == "partly" and headline.judged_why.startswith("3 of 5 ranks' traces could not be read: rank2.json: it is cut")
    assert run(Recording("job", "job", (replace(summaries, unread=summaries.unread[:2]),)), []).headline.judged == "yes"


def test_what_no_rank_s_figures_hold_is_told_of_the_job():
    lost = UnseenWork(kind="launch", what="launches without their GPU op (cudaLaunchKernel)", count=20)
    left = UnseenWork(kind="left-out", what="odd spans", count=3, us=5.0)
    first, second = ranks_of(EVEN, unseen=(left, lost))
    summaries = (first, replace(second, facts=msgspec.structs.replace(second.facts, unseen=(left,))))
    report = run(Recording("job", "job", (RankSummaries(summaries),)), [])
    assert report.unseen == (lost, msgspec.structs.replace(left, count=6, us=10.0))


@pytest.mark.parametrize("ranks", [1, 2])
def test_measured_kernels_that_no_rank_runs_are_of_another_program(ranks):
    failed = Health(check="kernels-joined", status="failed", detail="of another program", record_with="profile it")
    summaries = ranks_of(EVEN)
    of_others = [replace(one, facts=msgspec.structs.replace(one.facts, health=(failed,))) for one in summaries[:ranks]]
    job = Recording("job", "job", (RankSummaries((*of_others, *summaries[ranks:])),))
    if ranks == len(summaries):
        with pytest.raises(UsageError, match="of another program"):
            run(job, [])
    else:
        assert "kernels-joined" not in {check.check for check in run(job, []).health}


@pytest.fixture
def log(tmp_path):
    """A log directory of a process a rank, each with two cycles of its profiler, as torch's trace handler names them."""
    for rank, pid in ((0, 41), (1, 40)):
        for time in (1_700_000_000_000_000_000, 1_700_000_009_000_000_000):
            (tmp_path / f"node_{pid}.{time + pid}.pt.trace.json.gz").write_bytes(as_json(JOB / f"rank{rank}.trace.zst"))
    return tmp_path


def test_two_cycles_of_one_process_are_no_two_ranks(log):
    made = read(log)
    assert [t.label for t in traces_of(made).traces] == ["node_40.1700000009000000040.pt.trace.json.gz", "node_41.1700000009000000041.pt.trace.json.gz"]
    assert "the latest is taken: 2 traces left out" in traces_of(made).chosen and not traces_of(made).notes and holds_ranks(log)
    for path in log.glob("node_40*"):
        path.unlink()
    assert read(log).kind == "trace" and read(log).path.endswith("9000000041.pt.trace.json.gz") and not holds_ranks(log)
    page = formats()["text"].render(run(read(log), []))
    told = "note: node_41.1700000009000000041.pt.trace.json.gz was read, the latest of 2 recordings of one process; 1 other not."
    assert told in " ".join(page.split())
    with pytest.raises(TraceError, match="recordings of the same process"):
        read_several(sorted(log.iterdir()))


def test_what_a_jobs_traces_were_chosen_from_is_told_and_lowers_no_confidence():
    given = traces_of(read(JOB))
    told, plain = (reduced(Recording("job", "job", (replace(given, chosen=chosen),)), BARE, executor="serial") for chosen in ("the newest was read", ""))
    rules = [rule for rule in catalog().values() if "ranks" in rule.relies_on]
    told, plain = run(told, rules), run(plain, rules)
    assert told.findings == plain.findings and told.findings[0].rule == "straggler"
    (check,) = (check for check in told.health if check not in plain.health)
    assert (check.check, check.status, check.touches, check.detail) == ("latest-recording", "ok", (), "the newest was read")
    assert "note: the newest was read." in " ".join(formats()["text"].render(told).split())


def test_a_shard_says_which_run_of_a_log_it_takes_and_two_runs_do_not_merge(tmp_path):
    kept = tmp_path / "kept"
    for day in (1, 2, 3):
        folder = tmp_path / f"log/plugins/profile/2026_01_0{day}_00_00_00"
        folder.mkdir(parents=True)
        for host in ("a", "b"):
            shutil.copy(ROOT / "samples/jax/attention.fixed.xplane.pb.gz", folder / f"{host}.xplane.pb.gz")
        if day > 1:
            done = CliRunner().invoke(app, ["analyze", str(tmp_path / "log"), "--shard", f"{day - 1}/2", "-o", str(kept), "--executor", "serial"])
            assert f"note: the run 2026_01_0{day}_00_00_00 was read, the newest of {day}" in done.stderr
    assert {RankSummary.from_bytes(data).facts.run for data in stored(kept).summaries} == {"2026_01_02_00_00_00", "2026_01_03_00_00_00"}
    redact(kept, tmp_path / "given")
    for directory, named in ((kept, "2026_01_02_00_00_00, 2026_01_03_00_00_00"), (tmp_path / "given", "run-a, run-b")):
        with pytest.raises(TraceError, match=f"of several runs: {named}"):
            merged(stored(directory), "job")


def test_processes_of_one_name_that_say_different_ranks_are_all_kept(log):
    # Containers of one host name in which each process is the first.
    for path in log.glob("*.17000000000*"):
        path.unlink()
    for path in log.iterdir():
        path.rename(log / path.name.replace("node_40", "node_1").replace("node_41", "node_1"))
    assert len(traces_of(read(log)).traces) == 2 and not traces_of(read(log)).chosen


def test_two_jobs_in_one_directory_are_refused(tmp_path):
    other = ROOT / "samples" / "jobs" / "ddp_even"
    shutil.copy(JOB / "rank0.trace.zst", tmp_path / "rank0.trace.zst")
    shutil.copy(other / "rank1.trace.zst", tmp_path / "rank1.trace.zst")
    with pytest.raises(TraceError, match=r"several jobs: rank0\.trace\.zst says 2 ranks and rank1\.trace\.zst says 4 ranks"):
        reduced(read(tmp_path), BARE, executor="serial")


def test_the_commands(tmp_path):
    run = CliRunner().invoke
    for part in ("1/2", "2/2"):
        assert run(app, ["analyze", str(JOB), "--shard", part, "-o", str(tmp_path / "kept"), "--executor", "serial"]).exit_code == 0
    done = run(app, ["merge", str(tmp_path / "kept"), "-f", "json", "-o", "-"])
    assert done.exit_code == 0 and '"kind": "job"' in done.stdout and '"straggler"' in done.stdout


@pytest.mark.parametrize("is_there", slowly([False, True], quick=1))
def test_summaries_merge_into_a_directory_as_traces_are_analysed_into_one(tmp_path, is_there):
    run, job = CliRunner().invoke, tmp_path / "job"
    assert run(app, ["analyze", str(JOB), "--shard", "1/1", "-o", str(tmp_path / "kept"), "--executor", "serial"]).exit_code == 0
    if is_there:
        job.mkdir()
    done = run(app, ["merge", str(tmp_path / "kept"), "-o", f"{job}/"])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in job.iterdir()) == ["index.html", "report.json"]
    assert [row.page for row in read_report(job / "report.json").ranks] == ["", ""]  # no page, no link
    (job / "index.html").write_text("somebody's")
    assert isinstance(run(app, ["merge", str(tmp_path / "kept"), "-o", str(job)]).exception, UsageError)
    assert run(app, ["analyze", str(JOB), "-o", str(job), "--executor", "serial", "--force"]).exit_code == 0
    assert [row.page for row in read_report(job / "report.json").ranks] == ["ranks/rank0.html", "ranks/rank1.html"]
    assert run(app, ["merge", str(tmp_path / "kept"), "-f", "json", "-o", str(job)]).stdout.startswith("{")
    assert [row.page for row in read_report(job / "report.json").ranks] == ["", ""], "pages that are there may be another job's"
    assert "ranks/rank0.html" not in (job / "index.html").read_text()


@slow
def test_a_directory_gets_the_page_and_none_is_printed(tmp_path):
    run, kept, job = CliRunner().invoke, tmp_path / "kept", tmp_path / "job"
    assert run(app, ["analyze", str(JOB), "--shard", "1/1", "-o", str(kept), "--executor", "serial"]).exit_code == 0
    for command in (["merge", str(kept)], ["analyze", str(JOB), "--executor", "serial"]):
        done = run(app, [*command, "-f", "html", "-o", str(job)])
        assert done.exit_code == 0 and not done.stdout and (job / "index.html").exists(), done.output


def test_a_directory_of_another_job_keeps_nothing_of_it_and_all_that_is_not_ours(tmp_path):
    """Nor of ranks that cannot be read now; what was made of this job stays, and is not made again."""
    kept = Kept(tmp_path / "summaries", tmp_path / "ranks")
    for name in ("first", "second"):
        shutil.copytree(JOB, tmp_path / name)
    (tmp_path / "first" / "rank1.trace.zst").rename(tmp_path / "first" / "other.trace.zst")
    made = reduced(read(tmp_path / "first"), BARE, executor="serial", kept=kept)
    theirs = {kept.summaries / "notes.rank": "mine", kept.pages / "mine.html": "<html>", kept.pages / "other.html": "<html>I wrote over it"}
    assert (kept.pages / "other.html").is_file() and len(made.parts[0].ranks) == 2
    for path, text in theirs.items():
        path.write_text(text)
    (tmp_path / "second" / "rank0.trace.zst").write_bytes(b"")
    for _ in range(2):
        reduced(read(tmp_path / "second"), BARE, executor="serial", kept=kept)
    assert {path.name for path in kept.pages.iterdir()} == {"rank1.html", "mine.html", "other.html"}
    (kept.summaries / "notes.rank").unlink()
    found = stored(kept.summaries)
    assert [RankSummary.from_bytes(data).facts.label for data in found.summaries] == ["rank1.trace.zst"] and [u.label for u in found.unread] == [
        "rank0.trace.zst"
    ]


@slow
def test_a_page_written_since_stays_and_what_is_taken_away_is_counted(tmp_path):
    """Of the first job go two summaries and the page of rank 1: that of rank 0 somebody else wrote by now, and a directory is no summary."""
    kept, counts = Kept(tmp_path / "summaries", tmp_path / "ranks"), []
    for rank in (0, 1):
        for job in ("first", "second"):
            (tmp_path / job).mkdir(exist_ok=True)
            shutil.copy(JOB / f"rank{rank}.trace.zst", tmp_path / job / f"{job}-rank{rank}.trace.zst")
    reduced(read(tmp_path / "first"), BARE, executor="serial", kept=kept, cleared=counts.append)
    page = kept.pages / "first-rank0.html"
    page.write_bytes(page.read_bytes())
    newest = max(path.stat().st_mtime_ns for path in kept.summaries.iterdir())
    os.utime(page, ns=(newest + 10**9, newest + 10**9))
    (kept.summaries / f"{'0' * 20}.rank").mkdir()
    reduced(read(tmp_path / "second"), BARE, executor="serial", kept=kept, cleared=counts.append)
    assert {path.name for path in kept.pages.iterdir()} == {"first-rank0.html", "second-rank0.html", "second-rank1.html"} and counts == [3]


@slow
def test_what_cannot_be_taken_away_costs_no_report(tmp_path, monkeypatch):
    kept = Kept(tmp_path / "summaries", tmp_path / "ranks")
    reduced(read(JOB), BARE, executor="serial", kept=kept)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: missing_ok or os.unlink(tmp_path / "gone"))
    assert len(reduced(read(JOB), Judging(rules=("launch-gap",)), executor="serial", kept=kept).parts[0].ranks) == 2


@slow
def test_a_command_says_how_much_of_earlier_runs_it_took_away(tmp_path):
    for job in (JOB, JOB.with_name("ddp_even_2")):
        done = CliRunner().invoke(app, ["analyze", str(job), "-o", str(tmp_path / "job"), "--executor", "serial"])
        assert ("of earlier runs" in done.stderr) == (job != JOB)
    assert f"taken away from {tmp_path / 'job'}: 2 files of earlier runs" in done.stderr, "the summaries: the pages are written anew"


def test_a_job_is_not_merged_into_its_summaries(tmp_path):
    run, kept = CliRunner().invoke, tmp_path / "kept"
    assert run(app, ["analyze", str(JOB), "--shard", "1/1", "-o", str(kept), "--executor", "serial"]).exit_code == 0
    there = sorted(kept.iterdir())
    (tmp_path / "link").symlink_to(kept)
    for into in (kept, tmp_path / "link"):
        refused = run(app, ["merge", str(kept), "-o", str(into), "--force"]).exception
        assert isinstance(refused, UsageError) and "is the input" in refused.message and sorted(kept.iterdir()) == there


@pytest.mark.parametrize("is_there", [False, True])
@slow
def test_beside_a_jobs_directory_files_are_written_in_any_order(tmp_path, monkeypatch, is_there):
    opened, job = [], tmp_path / "job"
    monkeypatch.setattr("webbrowser.open", opened.append)
    outputs = [["-o", str(tmp_path / "rep.html")], ["-o", str(job)]]
    for first, second in (outputs, outputs[::-1]):
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if is_there:
            job.mkdir()
        done = CliRunner().invoke(app, ["analyze", str(JOB), *first, *second, "--executor", "serial", "--open"])
        assert done.exit_code == 0 and not done.stdout, done.output
        assert {path.name for path in job.iterdir()} == {"index.html", "report.json", "ranks", "summaries"}
        assert (tmp_path / "rep.html").read_text().startswith("<!doctype html>")
    assert opened == [(job / "index.html").as_uri()] * 2


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (["job", "job/index.html"], "given twice"),
        (["job/../job/report.json", "job"], "given twice"),
        (["job", "job/ranks/rank0.html"], "given twice"),
        (["job", "link"], "is a directory"),
        (["job", "other"], "second directory"),
        (["job", "x.html", "--shard", "1/2"], "--shard writes into a single directory"),
    ],
)
def test_what_cannot_be_written_beside_a_jobs_directory_is_refused(tmp_path, monkeypatch, outputs, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job" / "ranks").mkdir(parents=True)
    (tmp_path / "link").symlink_to("job")
    given = [argument for path in outputs[:2] for argument in ("-o", path)]
    refused = CliRunner().invoke(app, ["analyze", str(JOB), *given, *outputs[2:], "--executor", "serial"]).exception
    assert isinstance(refused, UsageError) and said in refused.message
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_shard_refuses_what_only_the_whole_job_s_report_has(tmp_path):
    given = ["analyze", str(JOB), "--shard", "1/2", "-o", str(tmp_path / "kept"), "-f", "html", "--fail-on", "high", "--strict", "--step-ms", "5", "--open"]
    refused = CliRunner().invoke(app, given).exception
    assert isinstance(refused, UsageError) and "--format, --fail-on, --strict, --step-ms, --open would do nothing" in refused.message
    assert not [*tmp_path.iterdir()]


def test_measured_kernels_are_found_in_every_rank():
    ops = load(JOB / "rank0.trace.zst").gpu_ops
    products = ops[[re.search("gemm|nvjet|cutlass", name) is not None for name in ops["name"]]]
    top = products.to_pandas().iloc[products["dur_us"].argmax()]
    waits = kernel(
        str(top["name"]), grid=int(top["grid_blocks"]), block=int(top["block_threads"]), launch__waves_per_multiprocessor=4,
        shared_bytes=200 << 10, dram=5, l2=7, l1=3, compute=15, issue=17,
    )  # fmt: skip
    measured = Recording("kernels", "k.ncu-rep", (KernelProfiles("k.ncu-rep", "ncu-rep", 1, (waits,), {0: "NVIDIA H200"}),))
    options = {"low-occupancy": {"min_saving_share": 0.001}}
    job = reduced(with_kernels(read(JOB), measured), Judging(("low-occupancy",), options=options), executor="serial")
    # The other rank waits for this one, and gains nothing by itself.
    assert [[f.rule for f in rank.facts.findings] for rank in job.parts[0].ranks] == [["low-occupancy"], []]


@slow
def test_among_hundreds_of_ranks_the_late_one_is_found():
    made = report(300, late=123)
    assert made.findings[0].rule == "straggler" and made.findings[0].ranks == (123,) and len(made.ranks) == 300
    assert made.slowdown and made.slowdown.worst_ranks[0] == 123


def test_a_rank_without_gpu_work_is_said_and_the_others_stand(tmp_path):
    write_as_json(ROOT / "samples" / "jobs" / "ddp_even", tmp_path)
    (tmp_path / "rank3.json.gz").write_bytes((tmp_path / "rank3.json.gz").read_bytes()[:20_000])
    part = reduced(read(tmp_path), BARE, executor="serial").parts[0]
    assert isinstance(part, RankSummaries) and [s.rank for s in part.ranks] == [0, 1, 2] and "no GPU work" in part.unread[0].why
