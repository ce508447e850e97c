"""What commands write: only over what is ours, whole or not at all, into a pipe where there is one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from advisor.cli import lab
from advisor.cli.outputs import write
from advisor.errors import OutputError, UsageError
from advisor.files import is_ours, write_whole
from advisor.lab.page import page
from advisor.reports import comparison, formats, history
from tests.cli.test_analyze import SLOW
from tests.command import advisor as run
from tests.paths import ROOT, slow, slowly
from tests.reports.examples import EXAMPLES


def advisor(*arguments, cwd, **environment):
    done = run(*arguments, cwd=cwd, **environment)
    done.stderr = done.stderr.decode()
    return done


LOOK_ALIKES = [
    b'# Notes\n\nI ran trace-advisor today, it says "schema": 1 and advisor 0.1.0 \xc2\xb7 x\n',
    b'{"name": "x", "advisor": "trace-advisor", "schema": 1}',
    b'<!doctype html>\n<html lang="en">\n<head>\n<title>trace-advisor</title>',
    b"[]",
    b"[]\n",
    b"[\n]\n",
    b"advisors 1.0",
    "advisor 3 · meeting of Monday\n\nPRESENT  Ann, Bob\n".encode(),
    "advisor 1.2.3 · notes on the tool\n\nIt is slow.\n".encode(),
    b"advisor 1.2.3 diff\nagainst 1.2.2: none\n",
    b"advisor 1.2.3 history\n\nWritten by hand.\n",
    b'{"schema": 1, "advisor": "Prof. Smith", "students": []}',
    b'{"schema": 1, "advisor": "1.2.3", "notes": []}',
    b'{"schema": 1, "kind": "thesis", "advisor": "1.2.3", "title": ""}',
    b'{"displayTimeUnit": "ns", "trace-advisor": {}, "traceEvents": []}',
    b'[{"description": "x", "check_name": "unused", "fingerprint": "0123456789abcdef0123456789abcdef"}]',
    b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="advisor">\n</testsuites>\n',
    b'{"$schema": "https://x/sarif-2.1.0.json", "version": "2.1.0", "runs": [{"tool": {"driver": {"name": "advisor", "rules": []}}}]}',
]


@pytest.mark.parametrize("name", sorted(formats()))
@pytest.mark.parametrize("example", sorted(set(EXAMPLES) - {"hostile"}))
def test_every_format_of_a_report_is_known_by_how_it_begins(name, example):
    made = formats()[name].render(EXAMPLES[example]())
    ours = is_ours((made if made.endswith("\n") else made + "\n").encode()[:2048])
    assert ours, f"say in advisor/cli/outputs.py how a file of the format {name} begins, so that the next run may overwrite it"


def test_so_are_comparisons_and_histories(tmp_path):
    for command, some in ((["diff", SLOW, SLOW], comparison.formats()),):
        for name in some:
            done = advisor(*command, "-f", name, "-o", tmp_path / name, cwd=tmp_path)
            assert done.returncode == 0 and is_ours((tmp_path / name).read_bytes()[:2048]), (name, done.stderr)
    assert history.formats()


@pytest.mark.parametrize("head", LOOK_ALIKES)
def test_a_file_that_only_speaks_of_us_is_not_ours(head, tmp_path):
    assert not is_ours(head)
    target = tmp_path / "notes.md"
    target.write_bytes(head)
    done = advisor("analyze", SLOW, "-f", "markdown", "-o", target, cwd=tmp_path)
    assert done.returncode == 2 and target.read_bytes() == head


@pytest.mark.parametrize(("asked", "target"), [("html", "x.json"), ("json", "x.html"), ("json", "x.sarif"), ("markdown", "x.perfetto.json")])
def test_a_format_that_the_suffix_contradicts_is_refused(tmp_path, asked, target):
    done = advisor("analyze", SLOW, "-f", asked, "-o", target, cwd=tmp_path)
    assert done.returncode == 2 and "contradicts" in str(done.stderr) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("asked", "target"), [("sarif", "x.json"), ("gitlab", "x.json"), ("junit", "x.xml"), ("markdown", "x.txt"), ("html", "page.aspx")])
def test_a_format_may_stand_under_a_suffix_of_its_kind_and_of_none(tmp_path, asked, target):
    assert advisor("analyze", SLOW, "-f", asked, "-o", target, cwd=tmp_path).returncode == 0 and (tmp_path / target).is_file()


def test_a_pipe_is_written_into_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write("whole\n", pipe)
    reader.join()
    assert read == ["whole\n"] and pipe.is_fifo()


def test_a_link_is_replaced_and_what_it_points_at_stays(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "out.txt").symlink_to(mine)
    write("advisor", tmp_path / "out.txt")
    assert mine.read_text() == "mine" and (tmp_path / "out.txt").read_text() == "advisor"


def test_what_cannot_be_written_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    (tmp_path / "out.txt").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        write("new", tmp_path / "out.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["out.txt"] and (tmp_path / "out.txt").read_text() == "old"


def test_a_closed_pipe_is_no_finding():
    command = f"{sys.executable} -m advisor analyze {SLOW} -f json -o - | sleep 0; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert done.returncode == 141 and b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", slowly(["schema", "rules", "explain launch-gap", f"check {SLOW} --config b.toml", f"analyze {SLOW} -f text -o -"], quick=1))
def test_standard_output_that_takes_nothing_is_no_finding(command, tmp_path):
    """Gone, full or closed: what is said and the exit code tell so, whatever command prints."""
    (tmp_path / "b.toml").write_text("[budgets]\nstep_ms = 1000\n")
    for into, code in (("| sleep 0; exit ${PIPESTATUS[0]}", 141), (">/dev/full", 5), (">&-", 5)):
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m advisor {command} {into}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == code and "Traceback" not in done.stderr, (into, done.returncode, done.stderr)


@pytest.mark.parametrize("encoding", slowly(["ascii", "latin-1", "cp1252"]))
def test_what_an_encoding_lacks_is_replaced_and_files_and_data_lose_nothing(encoding, tmp_path):
    """A locale of C, a console of Windows: prose has twins, what declares itself UTF-8 is that, and JSON is the same in every encoding."""
    for command in (["analyze", SLOW], ["diff", SLOW, SLOW], ["explain", "small-grid"], ["rules", "--markdown"], ["analyze", SLOW, "-f", "markdown"]):
        done = run(*command, cwd=tmp_path, encoding=encoding)
        said = done.stdout.decode(encoding)
        assert done.returncode == 0 and not done.stderr.count(b"Traceback") and ("us" in said or "µ" in said), (command, done.stderr)
    assert "µs" in next(tmp_path.glob("*.html")).read_text(encoding="utf-8")
    for form in ("json", "junit", "html"):
        wide, narrow = (run("analyze", SLOW, "-f", form, "-o", "-", cwd=tmp_path, encoding=each).stdout for each in ("utf-8", encoding))
        assert json.loads(wide) == json.loads(narrow) and narrow.isascii() if form == "json" else wide == narrow
    done = run("analyze", "µ→文", cwd=tmp_path, encoding=encoding)
    assert done.returncode == 3 and done.stderr.decode(encoding).startswith(f"advisor: there is no file {'u' if encoding == 'ascii' else 'µ'}>?\n")


@pytest.mark.parametrize(
    ("command", "code"), slowly([("no-such-command", 2), ("analyze no-such-file", 3), (f"analyze {SLOW} -f json -o out.json", 0)], quick=1)
)
def test_standard_error_that_takes_nothing_leaves_the_exit_code(command, code, tmp_path):
    for into in ("2>/dev/full", "2>&-"):
        line = f"{sys.executable} -m advisor {command} {into}"
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == code, (into, done.stdout)


@slow
def test_a_closed_standard_input_is_an_error(tmp_path):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m advisor analyze - <&-"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 3 and "closed" in done.stderr


@pytest.mark.parametrize("number", slowly([signal.SIGTERM, signal.SIGHUP], quick=1))
def test_a_signal_leaves_the_old_file_and_no_litter(number, tmp_path):
    """It comes while the file is being written."""
    (tmp_path / "out.json").write_bytes(b"")
    code = (
        f"import os, signal, sys\nsignal.signal({int(number)}, signal.SIG_DFL)  # nohup has one ignored\n"
        "from advisor import files\nfrom advisor.cli import main\nreplace = os.replace\n"
        f"os.replace = lambda *a: os.kill(os.getpid(), {int(number)}) or replace(*a)\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "analyze", SLOW, "-f", "json", "-o", "out.json"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 128 + number, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"] and (tmp_path / "out.json").read_bytes() == b""


@pytest.mark.parametrize(
    "command",
    slowly(
        [
            ["analyze", SLOW, "-f", "json", "-o", "out.json"],
            ["redact", SLOW, "red.json"],
            ["history", "kept", "--add", SLOW, "--commit", "c"],
            ["analyze", "job", "-o", "paged"],
        ],
        quick=1,
    ),
)
def test_a_full_disk_leaves_the_old_file_and_no_litter(command, tmp_path):
    """As a file may not grow beyond a limit, which the system refuses as it refuses a full disk."""
    old = tmp_path / "out.json"
    old.write_bytes(b"")
    code = (
        "import resource, signal\nfrom advisor.cli import main\nimport pandas\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\nmain()\n"
    )
    (tmp_path / "job").mkdir()
    for rank in range(2):
        shutil.copy(SLOW, tmp_path / "job" / f"rank{rank}.json.gz")
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, command)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        # Python, too, would leave modules that it compiled cut off at the limit, for all who import them later.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 5 and "Traceback" not in done.stderr, (done.returncode, done.stderr)
    assert old.read_bytes() == b"" and not [p for p in tmp_path.rglob("*") if ".part" in p.name or p.name == "red.json"]


def test_two_writers_leave_one_of_both_whole(tmp_path):
    target = tmp_path / "out.txt"
    writers = [threading.Thread(target=lambda c=c: [write_whole(target, c * 1_000_000) for _ in range(20)]) for c in (b"a", b"b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if target.exists():
            assert len(set(target.read_bytes())) == 1
    assert len(target.read_bytes()) == 1_000_000 and [p.name for p in tmp_path.iterdir()] == ["out.txt"]


def test_bad_arguments_are_2_and_an_error_of_our_own_is_70(tmp_path):
    assert advisor("analyze", SLOW, "--max-gib", "many", cwd=tmp_path).returncode == 2
    assert advisor("no-such-command", cwd=tmp_path).returncode == 2
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys\nfrom advisor import cli\nfrom advisor.cli import rules\n"
        "def boom():\n    raise KeyError('\\x1b]0;x')\nrules.rules = boom\nsys.argv = ['advisor', 'rules']\ncli.main()\n"
    )
    done = subprocess.run([sys.executable, broken], capture_output=True, text=True, check=False)
    assert done.returncode == 70 and "\x1b" not in done.stderr and "please report it" in done.stderr


# --- names, pages and shells


@slow
def test_pages_of_two_traces_of_one_name_do_not_overwrite_each_other(tmp_path):
    for folder, side in (("a", "slow"), ("b", "fixed")):
        (tmp_path / folder).mkdir()
        shutil.copy(ROOT / "samples" / "launch-gap" / f"{side}.json.gz", tmp_path / folder / "rank0.json.gz")
    for _ in range(2):
        done = advisor("analyze", "a/rank0.json.gz", "b/rank0.json.gz", "--each", "-q", cwd=tmp_path)
        assert done.returncode == 0 and not done.stdout and not done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["b-rank0.advisor.html", "rank0.advisor.html"]


@pytest.mark.parametrize(
    ("arguments", "near"),
    [(("analyze", "x", "--rule", "launch-gpa"), "launch-gap"), (("analyze", "x", "-f", "htm"), "html"), (("analyze", "x", "--formt", "html"), "--format")],
)
def test_the_nearest_name_is_offered(tmp_path, arguments, near):
    done = advisor(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and near in done.stderr


def test_open_shows_the_page_that_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr("webbrowser._tryorder", None)  # asks the environment again
    (tmp_path / "browser").write_text('#!/bin/sh\necho "$1" >> opened\n')
    (tmp_path / "browser").chmod(0o755)
    done = advisor("analyze", SLOW, "--open", "-q", cwd=tmp_path, BROWSER=f"{tmp_path}/browser %s")
    assert done.returncode == 0 and (tmp_path / "opened").read_text().split() == [(tmp_path / "slow.advisor.html").as_uri()]
    done = advisor("analyze", SLOW, "--open", "-f", "text", cwd=tmp_path, BROWSER=f"{tmp_path}/browser %s")
    assert done.returncode == 2 and "none is written" in done.stderr and not done.stdout and len((tmp_path / "opened").read_text().split()) == 1


def test_a_jobs_directory_takes_nobodys_files(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<h1>mine</h1>")
    job = ROOT / "samples" / "jobs" / "ddp_even_2"
    done = advisor("analyze", job, "-o", "site", "-q", cwd=tmp_path)
    assert done.returncode == 2 and "not written by advisor" in done.stderr
    assert (tmp_path / "site" / "index.html").read_text() == "<h1>mine</h1>" and not (tmp_path / "site" / "report.json").exists()


def test_no_input_is_overwritten_even_by_force(tmp_path):
    ranks = sorted((ROOT / "samples" / "jobs" / "ddp_even_2").glob("*.trace.zst"))
    (tmp_path / "job").mkdir()
    for rank in ranks:
        shutil.copy(rank, tmp_path / rank.name)
        shutil.copy(rank, tmp_path / "job" / rank.name)
    for inputs, target in (([r.name for r in ranks], ranks[1].name), (["job"], f"job/{ranks[0].name}")):
        done = advisor("analyze", *inputs, "-f", "json", "-o", target, "--force", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert (tmp_path / target).read_bytes() == (ROOT / "samples" / "jobs" / "ddp_even_2" / (tmp_path / target).name).read_bytes()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["analyze", SLOW, "-o", "a.foo"], "a.foo has the suffix of no format"),
        (["analyze", SLOW, "-o", "a.json", "-o", "a.markdown"], "a.markdown has the suffix of no format"),
        (["diff", SLOW, SLOW, "-o", "d.sarif"], "the suffix .html, .json, .md, .txt, or"),
        (["diff", SLOW, SLOW, "-o", "d.html", "-o", "d.json"], "writes a single file, and 2 outputs are given"),
        (["report", "r.json", "-o", "d.html", "-o", "d.json"], "writes a single file"),
        (["merge", "parts", "-o", "d.html", "-o", "d.json"], "writes a single file"),
        (["history", "h", "-o", "d.html", "-o", "d.txt"], "writes a single file"),
        (["bench", "math:sqrt", "-o", "d.csv"], "the suffix .txt, .json, .html, or"),
        (["verify", "--before", "true", "--after", "true", "-o", "a.json", "-o", "b.json"], "writes a single file"),
        (["analyze", SLOW, "--executor", "foo"], "there is no executor foo"),
        (["analyze", SLOW, "--open", "-f", "json"], "none is written"),
        (["analyze", SLOW, "--fail-on", "critical"], "Give high, medium, low or info."),
        (["analyze", SLOW, "--rules", "nosuch.py"], "there is no file nosuch.py"),
        (["analyze", SLOW, "--memory", SLOW], "slow.json.gz is no memory snapshot but a recording of kind trace"),
        (["analyze", SLOW, "--kernels", SLOW], "slow.json.gz is no report of Nsight Compute but a recording of kind trace"),
    ],
)
def test_options_that_contradict_what_is_asked_for_are_refused_before_any_work(command, says, tmp_path):
    (tmp_path / "r.json").write_text(formats()["json"].render(EXAMPLES["launch-bound"]()))
    done = advisor(*command, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr and not done.stdout, (done.returncode, done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_each_of_two_traces_of_one_name_has_a_report(tmp_path):
    for folder, side in (("a", "slow"), ("b", "fixed")):
        (tmp_path / folder).mkdir()
        shutil.copy(ROOT / "samples" / "launch-gap" / f"{side}.json.gz", tmp_path / folder / "rank0.json.gz")
    (tmp_path / "out").mkdir()
    done = advisor("analyze", "a/rank0.json.gz", "b/rank0.json.gz", "--each", "-o", "out", "-f", "json", cwd=tmp_path)
    assert done.returncode == 0 and len(list((tmp_path / "out").iterdir())) == 2, done.stderr
    done = advisor("analyze", "a/rank0.json.gz", "--each", "-o", "out", "-f", "json", cwd=tmp_path)
    assert done.returncode == 0, "a pattern may match one file"


@slow
def test_each_trace_of_a_directory_or_a_pattern_has_a_report(tmp_path):
    """And no job is made of them, nor of the ranks of one; of several directories each may be a job."""
    (tmp_path / "two").mkdir()
    for side in ("slow", "fixed"):
        shutil.copy(ROOT / "samples" / "launch-gap" / f"{side}.json.gz", tmp_path / "two")
    job = ROOT / "samples" / "jobs" / "ddp_even_2"
    for number, (given, kinds) in enumerate(
        ((["two"], ["trace"] * 2), (["two/*.json.gz"], ["trace"] * 2), ([job], ["trace"] * 2), (["two", job], ["trace"] * 2 + ["job"]))
    ):
        out = tmp_path / f"out{number}"
        out.mkdir()
        done = advisor("analyze", *given, "--each", "-o", out, "-f", "json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert sorted(json.loads(path.read_text())["kind"] for path in out.iterdir()) == sorted(kinds), given
    done = advisor("analyze", "two", "--each", "-o", "one.json", cwd=tmp_path)
    assert done.returncode == 2 and "2 traces cannot go to the file one.json" in done.stderr
    for nothing in ("no*such", "out0/none"):
        assert advisor("analyze", nothing, "--each", cwd=tmp_path).returncode == 3


def test_a_command_that_is_none_takes_no_recording_away(tmp_path):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "recording.json").write_text('{"version": 1, "unprofiled_step_us": [1000]}')
    done = advisor("record", "-o", "r", "--", "no-such-command", cwd=tmp_path)
    assert done.returncode == 2 and (tmp_path / "r" / "recording.json").exists()
    (tmp_path / "r" / "recording.json").write_text('{"my": "notes"}')
    done = advisor("record", "-o", "r", "--", sys.executable, "-c", "pass", cwd=tmp_path)
    assert done.returncode == 2 and "not written by advisor" in done.stderr and (tmp_path / "r" / "recording.json").exists()


def test_quiet_keeps_no_report_that_was_asked_for(tmp_path):
    done = run("analyze", SLOW, "-f", "json", "-q", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["kind"] == "trace" and not done.stderr


def test_what_a_measuring_command_wrote_is_its_own(tmp_path):
    for name in ("out.json", "out.txt", "out.html"):
        lab.write_measured("bench", "Function", '{"timings": []}', page("Timings"), *lab.check_measured(None, [tmp_path / name], force=False))
        lab.check_measured(None, [tmp_path / name], force=False)
        (tmp_path / name).write_text("mine")
        with pytest.raises(UsageError, match="not written by advisor"):
            lab.check_measured(None, [tmp_path / name], force=False)


def test_a_capture_of_nsys_that_is_somebodys_stays(tmp_path):
    (tmp_path / "nsys").write_text("#!/bin/sh\necho ran > nsys-ran\n")
    (tmp_path / "nsys").chmod(0o755)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "nsys.sqlite").write_text("mine")
    done = run("record", "--nsys", "-o", "r", "--", sys.executable, "-c", "pass", cwd=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 2 and b"no recording of advisor's" in done.stderr and not (tmp_path / "nsys-ran").exists()


def test_a_run_of_nsys_that_recorded_nothing_is_not_in_the_way_of_the_next(tmp_path):
    (tmp_path / "nsys").write_text("#!/bin/sh\nwhile [ $1 != -o ]; do shift; done\necho x > $2.nsys-rep\nexit 3\n")
    (tmp_path / "nsys").chmod(0o755)
    for _ in range(2):
        done = run("record", "--nsys", "-o", "r", "--", sys.executable, "-c", "pass", cwd=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
        assert done.returncode == 3, done.stderr
