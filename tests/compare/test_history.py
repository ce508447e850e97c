"""Saved reports by commit, and what they say together."""

import subprocess
from datetime import datetime, timezone

import msgspec
import pytest

from advisor.compare import history
from advisor.errors import TraceError, UsageError
from advisor.report.step import Part
from advisor.reports.history import formats, text
from tests.analysed import analysed
from tests.paths import ROOT
from tests.reports.examples import healthy, launch_bound


def with_step(report, us):
    return msgspec.structs.replace(report, headline=msgspec.structs.replace(report.headline, step_us=us))


def day(number):
    return datetime(2026, 5, number, 12, tzinfo=timezone.utc)


def kept(tmp_path):
    for n, (report, us) in enumerate([(launch_bound(), 20_000.0), (launch_bound(), 10_000.0), (healthy(), 5_000.0)]):
        history.add(tmp_path / "h", with_step(report, us), f"abc{n}", day(n + 1))
    return tmp_path / "h"


def test_reports_come_back_oldest_first_whatever_the_order_they_were_kept_in(tmp_path):
    for number in (3, 1, 2):
        history.add(tmp_path, with_step(healthy(), number * 1000.0), f"c{number}", day(number))
    trend = history.read(tmp_path)
    assert [(e.commit, e.report.headline.step_us) for e in trend.entries] == [("c1", 1000), ("c2", 2000), ("c3", 3000)]


def test_a_commit_measured_again_stands_once(tmp_path):
    history.add(tmp_path, with_step(healthy(), 1000.0), "c1", day(1))
    history.add(tmp_path, with_step(healthy(), 2000.0), "c1", day(2))
    assert [e.report.headline.step_us for e in history.read(tmp_path).entries] == [2000]


def test_the_text_gives_each_step_and_its_change(tmp_path):
    shown = text.render(history.read(kept(tmp_path)))
    assert "20.0 ms → 5.00 ms over 3 commits" in shown and "█" in shown and "▁" in shown
    lines = [line.split() for line in shown.splitlines() if line.startswith("2026-05")]
    assert [line[1] for line in lines] == ["abc0", "abc1", "abc2"] and "−50%" in lines[1]


LINE = (
    '{"rule": "launch-gap", "name": "launch-gap-1", "low": 0.31, "expected": 0.4, "high": 0.52, "measured": %s, "measured_low": 0.35, "measured_high": 0.39,'
    ' "verdict": "faster", "device": "NVIDIA H200", "torch": "2.11.0", "date": "2026-05-02"}'
)


@pytest.mark.parametrize("form", ["text", "html"])
def test_measured_gains_are_shown_beside_their_predictions(tmp_path, form):
    """The directory's own ledger is found, and is no file that is left out."""
    (kept(tmp_path) / "accuracy.jsonl").write_text(f"{LINE % 0.37}\n{LINE % 0.1}\n")
    trend = history.read(tmp_path / "h")
    shown = formats()[form].render(trend)
    assert not trend.skipped and [fix.in_interval for fix in trend.measured] == [True, False]
    for told in ("launch-gap-1", "predicted 40% (31% to 52%)", "measured 37% (35% to 39%)", "outside the range", "2026-05-02, NVIDIA H200"):
        assert told in shown


def test_a_ledger_elsewhere_is_read_and_a_damaged_line_refused(tmp_path):
    (tmp_path / "mine.jsonl").write_text(LINE % 0.37)
    assert [fix.measured for fix in history.read(kept(tmp_path), tmp_path / "mine.jsonl").measured] == [0.37]
    (tmp_path / "mine.jsonl").write_text('{"rule": "launch-gap"}')
    with pytest.raises(TraceError, match=r"mine\.jsonl is no ledger"):
        history.read(tmp_path / "h", tmp_path / "mine.jsonl")


def test_a_report_that_a_diff_refuses_breaks_the_history(tmp_path):
    """The step is then no change of the program's: 10 ms of one device, 5 ms of another, which goes on to 4 ms, 20% less."""
    first = msgspec.structs.replace(launch_bound(), breakdown=(Part(kind="compute", name="matmul", us=1.0),))
    other = msgspec.structs.replace(first, devices=(msgspec.structs.replace(first.devices[0], name="NVIDIA Other"),))
    for n, (report, us) in enumerate([(first, 20_000.0), (first, 10_000.0), (other, 5_000.0), (other, 4_000.0)]):
        history.add(tmp_path, with_step(report, us), f"abc{n}", day(n + 1))
    trend = history.read(tmp_path)
    assert [found and found.what for found in trend.breaks] == [None, None, "device", None]
    assert text.changes(trend) == ["", "−50%", "break", "−20%"]
    shown, page = (formats()[name].render(trend) for name in ("text", "html"))
    assert "5.00 ms → 4.00 ms over 2 commits since the break at abc2" in shown
    assert all("Break at abc2: device is " in made and "NVIDIA Other after. Record each on the same GPU." in made for made in (shown, page))
    assert page.count("<polyline") == 2 and "5.00 ms → 4.00 ms</h1>" in page


def test_a_report_without_a_breakdown_hides_no_break(tmp_path):
    first = msgspec.structs.replace(launch_bound(), breakdown=(Part(kind="compute", name="matmul", us=1.0),))
    other = msgspec.structs.replace(first, devices=(msgspec.structs.replace(first.devices[0], name="NVIDIA Other"),))
    for n, report in enumerate([first, msgspec.structs.replace(first, breakdown=()), other]):
        history.add(tmp_path, with_step(report, 20_000.0), f"abc{n}", day(n + 1))
    trend = history.read(tmp_path)
    assert [found and found.what for found in trend.breaks] == [None, None, "device"] and trend.stretch_start == 2


def test_a_report_that_fits_both_sides_hides_no_break(tmp_path):
    """A replayed graph does not say what it works: between two programs it would let the summary count from one to the other."""
    for n, sample in enumerate(["launch-gap/slow", "launch-gap/fixed", "sync-stall/slow"]):
        history.add(tmp_path, analysed(ROOT / "samples" / f"{sample}.json.gz"), f"abc{n}", day(n + 1))
    trend = history.read(tmp_path)
    assert [found and found.what for found in trend.breaks] == [None, None, "program"] and trend.stretch_start == 2


def test_every_format_renders_and_escapes(tmp_path):
    hostile = msgspec.structs.replace(launch_bound(), headline=msgspec.structs.replace(launch_bound().headline, bottleneck="<script>alert(1)</script>\x1b[31m"))
    history.add(tmp_path, hostile, "c1", day(1))
    trend = history.read(tmp_path)
    for form in formats().values():
        shown = form.render(trend)
        assert "\x1b" not in shown and ("<script>alert" not in shown or form.NAME == "text")


def test_head_of_the_repository_is_the_commit_where_none_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key, value in (("GIT_AUTHOR_DATE", "2026-03-04T05:06:07Z"), ("GIT_COMMITTER_DATE", "2026-03-04T05:06:07Z")):
        monkeypatch.setenv(key, value)
    run = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "init", "-q", "."], check=True)
    subprocess.run([*run, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    path = history.add(tmp_path / "h", healthy())
    (entry,) = history.read(tmp_path / "h").entries
    assert path.name.startswith("20260304T050607Z-") and len(entry.commit) == 12


def test_what_is_no_history_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="no directory"):
        history.read(tmp_path / "none")
    with pytest.raises(UsageError, match="no git repository"):
        history.add(tmp_path / "h", healthy())
    with pytest.raises(UsageError, match="no name of a commit"):
        history.add(tmp_path / "h", healthy(), "../../etc/passwd")
    with pytest.raises(UsageError, match="no name of a commit"):
        history.add(tmp_path / "h", healthy(), "-p")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="no history"):
        history.read(tmp_path)
    (tmp_path / "20260101T000000Z-abc.json").write_text("{}")
    with pytest.raises(TraceError, match="no saved report"):
        history.read(tmp_path)


def test_a_commit_that_could_not_be_judged_says_so(tmp_path):
    report = healthy()
    for number, judged in enumerate(("yes", "partly", "no")):
        headline = msgspec.structs.replace(report.headline, judged=judged)
        history.add(tmp_path, msgspec.structs.replace(report, headline=headline), f"c{number}", day(number + 1))
    trend = history.read(tmp_path)
    for name in ("text", "html"):
        shown = formats()[name].render(trend)
        assert shown.count("judged in part") == 1 and shown.count("could not be judged") == 1


def test_a_file_whose_digits_are_no_date_is_passed_over(tmp_path):
    directory = kept(tmp_path)
    (directory / "20251399T999999Z-abc.json").write_text("{}")
    trend = history.read(directory)
    assert len(trend.entries) == 3 and trend.skipped == ("20251399T999999Z-abc.json",)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "20251399T999999Z-abc.json").write_text("{}")
    assert history.add(tmp_path / "new", healthy(), "c1", day(1)).exists()


def test_reports_without_steps_or_of_two_kinds_are_no_history(tmp_path):
    report, job = healthy(), msgspec.structs.replace(healthy(), kind="job")
    stepless = msgspec.structs.replace(report, kind="kernels", window=None, headline=msgspec.structs.replace(report.headline, step_us=None))
    with pytest.raises(UsageError, match="has no step"):
        history.add(tmp_path, stepless, "c1", day(1))
    history.add(tmp_path, report, "c1", day(1))
    with pytest.raises(UsageError, match="keeps reports of kind trace"):
        history.add(tmp_path, job, "c2", day(2))
    (tmp_path / "20260502T000000Z-c2.json").write_bytes(job.to_json())
    with pytest.raises(UsageError, match="kind job and trace"):
        history.read(tmp_path)


@pytest.mark.parametrize("made", [healthy, launch_bound])
def test_what_is_read_of_a_report_is_all_that_a_history_needs(tmp_path, monkeypatch, made):
    """A history of whole reports says the same, also of a program on another device."""
    others = msgspec.structs.replace(made(), devices=(), work=msgspec.structs.replace(made().work, flops=1e9))
    for number, report in enumerate([made(), launch_bound(), others]):
        history.add(tmp_path, report, f"c{number}", day(number + 1))
    parts = [form.render(history.read(tmp_path)) for form in formats().values()]
    monkeypatch.setattr(history, "TOLD", ())
    assert parts == [form.render(history.read(tmp_path)) for form in formats().values()]
