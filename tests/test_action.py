"""The GitHub action's shell steps, run here with an event and a `gh` of our own."""

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

SLOW, FIXED = (ROOT / "samples" / "launch-gap" / f"{side}.json.gz" for side in ("slow", "fixed"))
MARKER = "<!-- trace-advisor: comment -->"

# Answers as GitHub does, and writes down what it was asked and the body it was given.
GH = f"""#!{sys.executable}
import json, os, sys
log = open(os.environ["GH_LOG"], "a")
body = [a.split("=@", 1)[1] for a in sys.argv if a.startswith("body=@")]
print(json.dumps({{"args": sys.argv[1:], "body": open(body[0]).read() if body else ""}}), file=log)
if "--jq" in sys.argv:
    print(os.environ.get("GH_FOUND", ""))
"""


@pytest.fixture
def step(tmp_path):
    """Runs one of the action's scripts in an empty directory, as a runner does."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "gh").write_text(GH)
    (tools / "advisor").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m advisor "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": {"number": 7}}))
    files = {"GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_OUTPUT": "output", "GITHUB_EVENT_PATH": "event.json", "GH_LOG": "gh.log"}

    def run(script, **environment):
        given = {
            **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "a/b",
            **{key: str(tmp_path / name) for key, name in files.items()}, **{key: str(value) for key, value in environment.items()},
        }  # fmt: skip
        return subprocess.run(["bash", ROOT / "action" / script], cwd=tmp_path, env=given, capture_output=True, text=True, check=False)

    return run


def calls(tmp_path):
    return [json.loads(line) for line in (tmp_path / "gh.log").read_text().splitlines()]


def test_analyze_writes_reports_summary_comment_and_outputs(step, tmp_path):
    done = step("analyze.sh", ADVISOR_TRACE=SLOW)
    assert done.returncode == 0, done.stderr
    written = {p.name for p in (tmp_path / "advisor-report").iterdir()}
    assert written == {"report.html", "report.json", "report.sarif", "report.markdown", "comment.md"}
    summary, comment = (tmp_path / "summary.md").read_text(), (tmp_path / "advisor-report" / "comment.md").read_text()
    assert "launch-bound" in summary and len(summary.encode()) < 1 << 20
    assert comment.rstrip().endswith(MARKER) and len(comment) < 65_536
    outputs = dict(line.split("=") for line in (tmp_path / "output").read_text().splitlines())
    assert set(outputs) == {"report", "sarif", "json"} and all((tmp_path / path).is_file() for path in outputs.values())


def test_with_a_baseline_the_comment_compares(step, tmp_path):
    assert step("analyze.sh", ADVISOR_TRACE=FIXED, ADVISOR_BASELINE=SLOW).returncode == 0
    comment = (tmp_path / "advisor-report" / "comment.md").read_text()
    assert "## Step time: −" in comment and "## GPU profile" in comment and comment.count(MARKER) == 1


def test_a_baseline_of_another_device_is_said_and_the_report_stands(step, tmp_path):
    assert step("analyze.sh", ADVISOR_TRACE=SLOW).returncode == 0
    other = (tmp_path / "advisor-report" / "report.json").read_text().replace("NVIDIA H200", "NVIDIA A100")
    (tmp_path / "old.json").write_text(other)
    done = step("analyze.sh", ADVISOR_TRACE=FIXED, ADVISOR_BASELINE="old.json")
    comment = (tmp_path / "advisor-report" / "comment.md").read_text()
    assert done.returncode == 0 and "not comparable" in done.stderr
    assert "The baseline was not compared" in comment and "NVIDIA A100 before" in comment and "## GPU profile" in comment


def test_a_directory_of_captures_and_names_with_spaces(step, tmp_path):
    for side, trace in (("my before", SLOW), ("my after", FIXED)):
        (tmp_path / side).mkdir()
        for n in range(3):
            (tmp_path / side / f"run {n}.json.gz").write_bytes(trace.read_bytes())
    done = step("analyze.sh", ADVISOR_TRACE="my after", ADVISOR_BASELINE="my before")
    assert done.returncode == 0, done.stderr
    assert "95% of resampled means" in (tmp_path / "advisor-report" / "comment.md").read_text()


def test_a_trace_that_cannot_be_read_fails_the_step(step, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    assert step("analyze.sh", ADVISOR_TRACE="bad.json").returncode == 3
    (tmp_path / "empty").mkdir()
    assert step("analyze.sh", ADVISOR_TRACE="empty").returncode == 3


def test_the_first_run_comments_and_the_next_updates(step, tmp_path):
    assert step("analyze.sh", ADVISOR_TRACE=SLOW).returncode == 0
    assert "commented on pull request 7" in step("comment.sh").stdout
    _, made = calls(tmp_path)
    assert made["args"][:4] == ["api", "--method", "POST", "repos/a/b/issues/7/comments"] and MARKER in made["body"]
    assert "updated comment 42" in step("comment.sh", GH_FOUND=42).stdout
    assert calls(tmp_path)[-1]["args"][:4] == ["api", "--method", "PATCH", "repos/a/b/issues/comments/42"]


def test_an_event_without_a_pull_request_comments_nothing(step, tmp_path):
    (tmp_path / "event.json").write_text("{}")
    assert "nothing to comment on" in step("comment.sh").stdout and not (tmp_path / "gh.log").exists()


@pytest.mark.parametrize(("limit", "code"), [(1e6, 0), (0.001, 1)])
def test_check_fails_with_the_budget_and_says_so(step, tmp_path, limit, code):
    (tmp_path / "limits.toml").write_text(f"[budgets]\nstep_ms = {limit}\n")
    done = step("check.sh", ADVISOR_TRACE=SLOW, ADVISOR_CONFIG="limits.toml")
    assert done.returncode == code, done.stderr
    assert "step_ms" in done.stdout and "step_ms" in (tmp_path / "summary.md").read_text()


def test_no_input_is_pasted_into_a_script():
    text = (ROOT / "action.yml").read_text()
    scripts = re.findall(r"^ *run: (.*)$", text, re.MULTILINE)
    assert len(scripts) == 4 and not [s for s in scripts if "${{" in s]
    assert {Path(s.split("/")[-1].rstrip('"')).name for s in scripts if "/action/" in s} == {"analyze.sh", "comment.sh", "check.sh"}
