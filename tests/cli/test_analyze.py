"""The command as a user runs it: exit codes, outputs, and files that are not ours."""

import gzip
import json
import subprocess
import sys

import pytest

from tests.command import advisor
from tests.paths import ROOT, slow, slowly

SLOW = ROOT / "samples" / "launch-gap" / "slow.json.gz"
HEALTHY = ROOT / "samples" / "healthy" / "gemm_loop.json.gz"


def test_alone_it_prints_a_summary_and_writes_html_here(tmp_path):
    done = advisor("analyze", SLOW, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"LAUNCH-BOUND" in done.stdout and b"\x1b[" not in done.stdout  # no colours into a pipe
    assert b"wrote slow.advisor.html" in done.stderr
    assert (tmp_path / "slow.advisor.html").read_text().lstrip().lower().startswith("<!doctype html>")
    assert advisor("analyze", SLOW, cwd=tmp_path).returncode == 0, "its own file may be overwritten"


@pytest.mark.parametrize("format_", slowly(["html", "text", "markdown", "json"], quick=1))
def test_every_format_to_standard_output_and_to_a_file_it_may_overwrite(tmp_path, format_):
    done = advisor("analyze", SLOW, "-f", format_, "-o", "-", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout and not list(tmp_path.iterdir())
    for _ in range(2):
        assert advisor("analyze", SLOW, "-f", format_, "-o", "out", cwd=tmp_path).returncode == 0
    assert (tmp_path / "out").stat().st_size > 0 and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_never_overwrites_what_it_did_not_write(tmp_path):
    theirs = tmp_path / "slow.advisor.html"
    theirs.write_text("<html>my notes about the advisor</html>")
    done = advisor("analyze", SLOW, cwd=tmp_path)
    assert done.returncode == 2 and b"--force" in done.stderr
    assert theirs.read_text() == "<html>my notes about the advisor</html>"
    assert advisor("analyze", SLOW, "-o", theirs, cwd=tmp_path).returncode == 2
    assert advisor("analyze", SLOW, "--force", cwd=tmp_path).returncode == 0
    assert "my notes" not in theirs.read_text()


def test_never_overwrites_the_trace(tmp_path):
    trace = tmp_path / "t.json.gz"
    trace.write_bytes(SLOW.read_bytes())
    assert advisor("analyze", trace, "-f", "json", "-o", trace, cwd=tmp_path).returncode == 2
    assert advisor("analyze", trace, "-f", "json", "-o", trace, "--force", cwd=tmp_path).returncode == 2
    assert trace.read_bytes() == SLOW.read_bytes()


def test_standard_input_and_suffix_choose(tmp_path):
    done = advisor("analyze", "-", "-o", "report.md", cwd=tmp_path, stdin=SLOW.read_bytes())
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.md").read_text().count("|") > 10


def test_one_analysis_writes_several_files_in_their_formats(tmp_path):
    done = advisor("analyze", SLOW, "-o", "a.html", "-o", "a.sarif", "-o", "a.gitlab.json", "-o", "-", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(b"advisor ") and {p.name for p in tmp_path.iterdir()} == {"a.html", "a.sarif", "a.gitlab.json"}
    for name in ("sarif", "gitlab"):
        alone = advisor("analyze", SLOW, "-f", name, "-o", "-", cwd=tmp_path).stdout
        assert alone == next(tmp_path.glob(f"a.{name}*")).read_bytes()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-o", "a.html", "-o", "a.html"], "given twice"),
        (["-o", "a.json", "-o", "link/a.json"], "given twice"),
        (["-f", "json", "-o", "a.json", "-o", "a.html"], "a single format, and 2 outputs"),
        (["--each", "-o", "a.json", "-o", "a.html"], "a single directory"),
        (["-o", "a.json", "-o", "notes.md"], "was not written by advisor"),
    ],
)
def test_several_files_that_cannot_be_are_refused_before_any_is_written(tmp_path, options, says):
    (tmp_path / "notes.md").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path)
    done = advisor("analyze", SLOW, *options, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr.decode() and {p.name for p in tmp_path.iterdir()} == {"notes.md", "link"}


def test_a_saved_report_renders_as_the_analysis_did(tmp_path):
    assert advisor("analyze", SLOW, "-o", "r.json", cwd=tmp_path).returncode == 0
    for format_ in ("markdown", "text", "json"):
        direct = advisor("analyze", SLOW, "-f", format_, "-o", "-", cwd=tmp_path)
        saved = advisor("report", "r.json", "-f", format_, "-o", "-", cwd=tmp_path)
        assert saved.returncode == 0 and saved.stdout == direct.stdout


def test_json_keeps_the_schema(tmp_path):
    report = json.loads(advisor("analyze", SLOW, "-f", "json", "-o", "-", cwd=tmp_path).stdout)
    assert report["schema"] == 2 and report["source"]["format"] == "kineto"
    assert {"devices", "window", "time", "health", "headline", "findings", "clear", "skipped", "failed"} <= report.keys()
    finding = report["findings"][0]
    assert finding["rule"] == "launch-gap" and set(finding["saving"]) >= {"low_us", "expected_us", "high_us", "basis"}
    assert finding["fix"]["code"].keys() == {"before", "after"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["analyze", "no-such-file.json"], 3, b"no file"),
        (["analyze", SLOW, "-f", "pdf"], 2, b"no format 'pdf'"),
        (["analyze", SLOW, "--rule", "no-such-rule"], 2, b"no rule 'no-such-rule'"),
        (["analyze", SLOW, "--rule", "straggler", "--fail-on", "low"], 2, b"straggler does not look at a recording of kind trace"),
        (["analyze", ROOT / "samples" / "kernels" / "pairs.ncu-rep.gz", "--rule", "launch-gap"], 2, b"It is for a trace of one process."),
        (["explain", "straggler", SLOW], 2, b"It is for the traces of a job's ranks."),
        (["analyze", SLOW, "--fail-on", "awful"], 2, b"no severity"),
        (["analyze", SLOW, "-o", "no/such/dir.html"], 2, b"no directory"),
        (["analyze", SLOW, "--max-gib", "0.0001"], 3, b"--max-gib"),
        (["explain", "no-such-rule"], 2, b"no rule"),
        (["report", "no-such-report.json"], 3, b"cannot be read"),
        (["analyze", "--no-such-option", SLOW], 2, b""),
    ],
)
def test_what_is_wrong_is_said_with_its_exit_code(tmp_path, arguments, code, says):
    done = advisor(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr and b"Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_report_given_for_a_trace_is_told_from_one(tmp_path):
    assert advisor("analyze", SLOW, "-o", "r.json", cwd=tmp_path).returncode == 0
    done = advisor("analyze", "r.json", cwd=tmp_path)
    assert done.returncode == 3 and b"a report that advisor saved" in done.stderr and b"advisor report" in done.stderr


def test_a_file_that_is_no_report_is_refused(tmp_path):
    (tmp_path / "r.json").write_text('{"schema": 1}')
    done = advisor("report", "r.json", cwd=tmp_path)
    assert done.returncode == 3 and b"no saved report" in done.stderr


def test_a_gate_closes_where_nobody_could_look(tmp_path):
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10 * i, "dur": 5} for i in range(20)]
    (tmp_path / "cpu.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    asked = ["analyze", "cpu.json", "-f", "text", "--fail-on", "high"]
    assert advisor(*asked, cwd=tmp_path).returncode == 1
    assert advisor(*asked, "--allow-unjudged", cwd=tmp_path).returncode == 0
    assert advisor(*asked[:-2], cwd=tmp_path).returncode == 0, "nobody asked for a gate"


def test_fail_on_gates(tmp_path):
    assert advisor("analyze", SLOW, "-f", "text", "--fail-on", "high", cwd=tmp_path).returncode == 1
    assert advisor("analyze", HEALTHY, "-f", "text", "--fail-on", "medium", cwd=tmp_path).returncode == 0


def test_a_broken_rule_costs_only_itself(tmp_path):
    page = "\n\n".join(f"{s}\nx" for s in ("What", "Why", "How to fix", "When to ignore", "How it is measured", "References"))
    (tmp_path / "mine.py").write_text(
        f'import advisor\n\n@advisor.rule("team/broken")\ndef broken():\n    """Breaks\n\n{page}\n"""\n    raise ValueError("oh")\n'
    )
    done = advisor("analyze", SLOW, "--rules", "mine.py", "-f", "json", "-o", "-", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["findings"]
    assert report["failed"] == [{"rule": "team/broken", "error": "ValueError: oh"}]
    assert advisor("analyze", SLOW, "--rules", "mine.py", "--strict", "-f", "text", cwd=tmp_path).returncode == 4


def test_errors_say_what_is_read_and_what_lacks(tmp_path):
    (tmp_path / "norules.py").write_text("x = 1\n")
    (tmp_path / "a.json").write_text("{}")
    for command, code, says in (
        (["analyze", SLOW, "--rules", "norules.py"], 4, "norules.py holds no rule"),
        (["analyze", ROOT / "samples" / "kernels"], 3, "*.xplane.pb"),
        (["validate", "a.json"], 3, "a.json is no directory"),
        (["validate", "none"], 3, "none does not exist"),
    ):
        done = advisor(*command, cwd=tmp_path)
        assert done.returncode == code and says in done.stderr.decode(), (command, done.stderr)
    job = ROOT / "samples" / "jobs" / "ddp_even_2"
    done = advisor("analyze", job, "--shard", "2/2", "-o", "parts", cwd=tmp_path)
    assert b"part 2 of 2: of its 1 rank 1 is in parts; all parts together: advisor merge parts" in done.stderr, done.stderr


def test_a_file_of_rules_that_cannot_be_loaded_is_named(tmp_path):
    (tmp_path / "mine.py").write_text("import no_such_module")
    done = advisor("analyze", SLOW, "--rules", "mine.py", "-f", "text", cwd=tmp_path)
    assert done.returncode == 4 and b"mine.py cannot be loaded: ModuleNotFoundError" in done.stderr


@slow
def test_rules_and_explain(tmp_path):
    listed = advisor("rules", cwd=tmp_path).stdout.decode()
    assert "launch-gap" in listed
    for line in listed.splitlines():
        page = advisor("explain", line.split()[0], cwd=tmp_path)
        assert page.returncode == 0 and b"When to ignore" in page.stdout


def test_explain_lists_the_views_of_a_report_or_of_one_rule(tmp_path):
    every, one = (advisor("explain", "--views", *asked, cwd=tmp_path).stdout.decode() for asked in ([SLOW], ["launch-gap", SLOW]))
    assert "  launch-gap ← " in every and "  sync-stall ← " in every and "  launch-gap ← " in one and "sync-stall" not in one
    assert advisor("explain", "--views", "launch-gap", cwd=tmp_path).returncode == 3, "that is no trace"


def test_explain_says_why_a_rule_is_quiet_on_a_trace(tmp_path):
    done = advisor("explain", "launch-gap", HEALTHY, cwd=tmp_path)
    said = done.stdout.decode()
    assert done.returncode == 0 and "launch-gap is quiet" in said and "(threshold " in said
    assert "min_idle_share = " in said and "(`clock-causality`): passed" in said
    fires = advisor("explain", "launch-gap", SLOW, cwd=tmp_path).stdout.decode()
    assert "launch-gap fires, high" in fires and " x " in fires and "as-graph: " in fires and "less host time" in fires
    (tmp_path / "c.toml").write_text("[tool.advisor.options.launch-gap]\nmin_idle_share = 0.97\n")
    quiet = advisor("explain", "launch-gap", SLOW, "--config", tmp_path / "c.toml", cwd=tmp_path).stdout.decode()
    assert "launch-gap is quiet" in quiet and "min_idle_share = 0.97" in quiet


@pytest.mark.parametrize(
    ("rule", "trace", "said", "unsaid"),
    [
        ("atomic-contention", "kernels/pairs.ncu-rep.gz", "27 of them have faults", "removes : "),
        ("memory-leak", "memory/kept_losses.slow.pickle.gz", "addmm in linear, 4.83 GB", "0 µs"),
        ("low-arithmetic-intensity", "launch-gap/slow.json.gz", "fires, low, unconfirmed: ", "fires, low: "),
    ],
)
def test_explain_says_of_one_rule_what_the_whole_report_says(rule, trace, said, unsaid, tmp_path):
    shown = advisor("explain", rule, ROOT / "samples" / trace, cwd=tmp_path).stdout.decode()
    assert said in shown and unsaid not in shown


def test_a_measured_step_time_corrects_the_hosts(tmp_path):
    # encoder_infer: 3.48 ms under the profiler, 2.81 without, 0.23 once fixed.
    cases = json.loads((ROOT / "samples" / "manifest.json").read_text())["cases"]["encoder_infer"]
    done = advisor("analyze", SLOW, "--step-ms", cases["slow_ms"], "-f", "json", "-o", "-", cwd=tmp_path)
    report = json.loads(done.stdout)
    (check,) = (h for h in report["health"] if h["check"] == "recording-cost")
    assert check["status"] == "ok" and "measured without the profiler" in check["detail"]
    assert report["headline"]["step_us"] == pytest.approx(1000 * cases["slow_ms"])
    after = report["headline"]["predicted_step_us"]
    assert after["low"] <= after["expected"] <= after["high"] < report["headline"]["step_us"]
    for given, why in (("20", "recorded at 3.48 ms, with the profiler"), ("0.01", "kernels run for")):  # the GPU alone takes 0.24 ms, the recorded step 3.48
        other = advisor("analyze", SLOW, "--step-ms", given, "-f", "json", "-o", "-", cwd=tmp_path)
        assert other.returncode == 2 and not other.stdout and why in " ".join(other.stderr.decode().split()), given
    ends = json.loads(advisor("analyze", SLOW, "--step-ms", "0.25", "-f", "json", "-o", "-", cwd=tmp_path).stdout)
    assert "at any profiler overhead, not the measured 250 µs" in str(ends["health"]) and not ends["window"]["unused_step_us"]
    refused = advisor("analyze", SLOW, "--step-ms", "-1", cwd=tmp_path)
    assert refused.returncode == 2 and b"Traceback" not in refused.stderr


def test_help_loads_nothing_heavy():
    code = "import sys, advisor.cli; print([m for m in ('numpy', 'pandas', 'jinja2', 'msgspec', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_rules_pages_are_current():
    assert advisor("rules", "--markdown", cwd=ROOT).stdout.decode() == (ROOT / "rules" / "README.md").read_text(), "advisor rules --markdown > rules/README.md"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_byte_order_mark_changes_nothing(tmp_path, pack):
    (tmp_path / "a.json").write_bytes(pack(b"\xef\xbb\xbf" + gzip.decompress(SLOW.read_bytes())))
    with_mark, without = (json.loads(advisor("analyze", path, "-f", "json", "-o", "-", cwd=tmp_path).stdout) for path in ("a.json", SLOW))
    assert [with_mark[part] for part in ("devices", "findings", "headline")] == [without[part] for part in ("devices", "findings", "headline")]
