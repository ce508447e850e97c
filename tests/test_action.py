"""The GitHub action's shell steps, run here with an event and a `gh` of our own."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.engine.settings import tomllib
from tests.fuzz import examples
from tests.kineto_ranks import as_json
from tests.paths import ROOT, slow

pytestmark = slow

SLOW, FIXED = (ROOT / "samples" / "launch-gap" / f"{side}.json.gz" for side in ("slow", "fixed"))
MARKER = "<!-- trace-advisor: comment -->"

# Answers as GitHub does, and writes down what it was asked and the body it was given.
GH = f"""#!{sys.executable}
import json, os, sys
log = open(os.environ["GH_LOG"], "a")
body = [a.split("=@", 1)[1] for a in sys.argv if a.startswith("body=@")]
account = os.environ.get("ADVISOR_ACCOUNT")
print(json.dumps({{"args": sys.argv[1:], "body": open(body[0]).read() if body else "", "account": account}}), file=log)
if sys.argv[1:3] == ["api", "user"] and os.environ.get("GH_REFUSES"):
    print('{{"message": "Resource not accessible by integration"}}', end="")
    sys.exit(1)
elif sys.argv[1:3] == ["api", "user"]:
    print("somebody")
elif "--jq" in sys.argv:
    print(os.environ.get("GH_FOUND", ""))
"""


@pytest.fixture
def step(tmp_path):
    """Runs one of the action's scripts in an empty directory, as a runner does."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "gh").write_text(GH)
    for name, of in (("advisor", " -m advisor"), ("python3", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{of} "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": {"number": 7}}))
    files = {"GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_OUTPUT": "output", "GITHUB_EVENT_PATH": "event.json", "GH_LOG": "gh.log"}

    def run(script, **environment):
        given = {
            **{key: value for key, value in os.environ.items() if key != "RUNNER_TEMP"}, "PATH": f"{tools}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "a/b",
            **{key: str(tmp_path / name) for key, name in files.items()}, **{key: str(value) for key, value in environment.items()},
        }  # fmt: skip
        return subprocess.run(["bash", ROOT / "action" / script], cwd=tmp_path, env=given, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def analysed(step, tmp_path, tmp_path_factory):
    """What analyze.sh leaves of the slow trace, where comment.sh takes it; made once by a process."""
    kept = tmp_path_factory.getbasetemp() / "advisor-report"
    if not kept.is_dir():
        assert step("analyze.sh", ADVISOR_TRACE=SLOW).returncode == 0
        shutil.copytree(tmp_path / "advisor-report", kept)
    shutil.copytree(kept, tmp_path / "advisor-report", dirs_exist_ok=True)
    return step


def calls(tmp_path):
    return [json.loads(line) for line in (tmp_path / "gh.log").read_text().splitlines()]


def test_analyze_writes_reports_summary_comment_and_outputs(step, tmp_path):
    done = step("analyze.sh", ADVISOR_TRACE=SLOW)
    assert done.returncode == 0, done.stderr
    written = {p.name for p in (tmp_path / "advisor-report").iterdir()}
    assert written == {"report.html", "report.json", "report.sarif", "report.md", "comment.md"}
    summary, comment = (tmp_path / "summary.md").read_text(), (tmp_path / "advisor-report" / "comment.md").read_text()
    assert "launch-bound" in summary and len(summary.encode()) < 1 << 20
    assert comment.rstrip().endswith(MARKER) and len(comment) < 65_536
    outputs = dict(line.split("=") for line in (tmp_path / "output").read_text().splitlines())
    assert set(outputs) == {"directory", "report", "sarif", "json"} and all((tmp_path / path).exists() for path in outputs.values())


def test_with_a_baseline_the_comment_compares(step, tmp_path):
    assert step("analyze.sh", ADVISOR_TRACE=FIXED, ADVISOR_BASELINE=SLOW).returncode == 0
    comment = (tmp_path / "advisor-report" / "comment.md").read_text()
    assert "## Step time: −" in comment and "## GPU profile" in comment and comment.count(MARKER) == 1


def test_a_baseline_of_another_device_is_said_and_the_report_stands(analysed, tmp_path):
    other = (tmp_path / "advisor-report" / "report.json").read_text().replace("NVIDIA H200", "NVIDIA A100")
    (tmp_path / "old.json").write_text(other)
    done = analysed("analyze.sh", ADVISOR_TRACE=FIXED, ADVISOR_BASELINE="old.json")
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


@pytest.mark.parametrize(("name", "kind", "files"), [("job", "job", ("rank0", "rank1")), ("recording", "trace", ("deep", "light", "recording"))])
def test_a_directory_that_is_one_capture_is_reported_on_whole(step, tmp_path, name, kind, files):
    (tmp_path / name).mkdir()
    for rank, file in enumerate(files[:2]):
        (tmp_path / name / f"{file}.json.gz").write_bytes(as_json(ROOT / "samples" / "jobs" / "ddp_forward_host_2" / f"rank{rank}.trace.zst"))
    if "recording" in files:
        (tmp_path / name / "recording.json").write_text('{"version": 1, "light": "light.json.gz", "deep": "deep.json.gz"}')
    done = step("analyze.sh", ADVISOR_TRACE=name)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "advisor-report" / "report.json").read_text())
    assert report["kind"] == kind and report["source"]["path"] == name


@pytest.mark.parametrize(("named", "kind"), [(True, "job"), (False, "trace")])
def test_where_python3_has_no_advisor_that_of_the_command_is_asked_else_it_is_said(step, tmp_path, named, kind):
    shutil.copytree(ROOT / "samples" / "jobs" / "ddp_forward_host_2", tmp_path / "job")
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without what is installed
    if named:  # as pip and pipx install it: a script whose first line names its Python, behind a link
        script = tmp_path / "installed"
        script.write_text(f"#!{sys.executable}\nfrom advisor.cli import main\nmain()\n")
        script.chmod(0o755)
        (tmp_path / "bin" / "advisor").unlink()
        (tmp_path / "bin" / "advisor").symlink_to(script)
    done = step("analyze.sh", ADVISOR_TRACE="job")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "advisor-report" / "report.json").read_text())["kind"] == kind
    told = (done.stderr, *((tmp_path / name).read_text() for name in ("summary.md", "advisor-report/comment.md")))
    assert all(("only its first file is reported on" in text) == (not named) for text in told)


def test_a_comment_that_is_cut_still_says_that_one_file_alone_was_looked_at(step, tmp_path):
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    long = f"#!{sys.executable} -S\nimport sys\nfor after, path in zip(sys.argv, sys.argv[1:]):\n    if after in ('-o', '--output'):\n"
    (tmp_path / "bin" / "advisor").write_text(f"{long}        open(path, 'w').write('the change' if 'diff' in path else 'x' * 70_000)\n")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.json").write_text("{}")
    assert step("analyze.sh", ADVISOR_TRACE="traces", ADVISOR_BASELINE="old.json").returncode == 0
    comment = (tmp_path / "advisor-report" / "comment.md").read_text()
    assert comment.startswith("No Python that has advisor") and "the change" in comment and MARKER in comment and len(comment) < 65_000


def test_any_name_without_control_characters_is_a_capture(step, tmp_path):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "\ta.json.gz").write_bytes(FIXED.read_bytes())
    (tmp_path / "traces" / "b\u00a0c.json.gz").write_bytes(SLOW.read_bytes())
    done = step("analyze.sh", ADVISOR_TRACE="traces")
    assert done.returncode == 0 and not done.stderr.count("No Python"), done.stderr
    assert json.loads((tmp_path / "advisor-report" / "report.json").read_text())["source"]["path"] == "traces/b\u00a0c.json.gz"


def test_a_trace_that_cannot_be_read_fails_the_step(step, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    assert step("analyze.sh", ADVISOR_TRACE="bad.json").returncode == 3
    (tmp_path / "empty").mkdir()
    assert step("analyze.sh", ADVISOR_TRACE="empty").returncode == 3


def test_the_first_run_comments_and_the_next_updates(analysed, tmp_path):
    assert "commented on pull request 7" in analysed("comment.sh").stdout
    made = calls(tmp_path)[-1]
    assert made["args"][:4] == ["api", "--method", "POST", "repos/a/b/issues/7/comments"] and MARKER in made["body"]
    assert "updated comment 42" in analysed("comment.sh", GH_FOUND=42).stdout
    assert calls(tmp_path)[-1]["args"][:4] == ["api", "--method", "PATCH", "repos/a/b/issues/comments/42"]


def test_the_comment_says_where_the_page_is_and_its_first_finding_once(analysed, tmp_path):
    for _ in range(2):
        assert analysed("comment.sh", ADVISOR_PAGE="https://example.org/artifact").returncode == 0
    comment = (tmp_path / "advisor-report" / "comment.md").read_text()
    assert comment.count("(https://example.org/artifact)") == 1 and "report.html#finding-launch-gap" in comment


def test_an_event_without_a_pull_request_comments_nothing(step, tmp_path):
    (tmp_path / "event.json").write_text("{}")
    assert "nothing to comment on" in step("comment.sh").stdout and not (tmp_path / "gh.log").exists()


@pytest.mark.parametrize(("limit", "code"), [(1e6, 0), (0.001, 1)])
def test_check_fails_with_the_budget_and_says_so(step, tmp_path, limit, code):
    (tmp_path / "limits.toml").write_text(f"[budgets]\nstep_ms = {limit}\n")
    done = step("check.sh", ADVISOR_TRACE=SLOW, ADVISOR_CONFIG="limits.toml")
    assert done.returncode == code, done.stderr
    assert "step_ms" in done.stdout and "step_ms" in (tmp_path / "summary.md").read_text()


def test_only_a_comment_of_its_own_is_updated(analysed, tmp_path):
    analysed("comment.sh")
    asked = next(call for call in calls(tmp_path) if "--paginate" in call["args"])["args"][-1]
    assert "select(.user.login == env.ADVISOR_ACCOUNT)" in asked and "endswith(env.ADVISOR_MARKER)" in asked
    assert "commented on" in analysed("comment.sh", GH_FOUND="42; rm -rf x").stdout


@pytest.mark.parametrize(("refuses", "account"), [("", "somebody"), ("yes", "github-actions[bot]")])
def test_a_workflows_own_token_finds_its_comment_again(analysed, tmp_path, refuses, account):
    """gh prints the body of a refusal to standard output: taken for a name, every run would add a comment."""
    assert "updated comment 42" in analysed("comment.sh", GH_FOUND=42, GH_REFUSES=refuses).stdout
    assert next(call for call in calls(tmp_path) if "--paginate" in call["args"])["account"] == account


def test_the_comment_leads_with_the_change_and_shows_it(step, tmp_path):
    assert step("analyze.sh", ADVISOR_TRACE=SLOW, ADVISOR_BASELINE=FIXED).returncode == 0
    lines = [line for line in (tmp_path / "advisor-report" / "comment.md").read_text().splitlines() if line and not line.startswith("<!--")]
    assert lines[0].startswith("## Step time: +") and "slower" in lines[0]
    picture = lines[lines.index("```text") + 1 :]
    assert picture[0].startswith("step before") and len(lines[: lines.index("```text")]) < 6
    assert next(line for line in picture if "waiting for launches" in line).count("█") > 20


def test_a_pull_request_with_rights_does_not_bring_its_own_settings(step, tmp_path):
    (tmp_path / "ours.py").write_text("open('ran', 'w').close()\n")
    (tmp_path / "pyproject.toml").write_text('[tool.advisor]\nrules = ["ours.py"]\n')
    done = step("analyze.sh", ADVISOR_TRACE=SLOW, GITHUB_EVENT_NAME="pull_request_target")
    assert done.returncode == 0 and "are ignored" in done.stdout and not (tmp_path / "ran").exists()
    done = step("analyze.sh", ADVISOR_TRACE=SLOW, ADVISOR_CONFIG="pyproject.toml", GITHUB_EVENT_NAME="pull_request_target")
    assert done.returncode == 2 and "rules are code" in done.stderr and not (tmp_path / "ran").exists()
    step("analyze.sh", ADVISOR_TRACE=SLOW, GITHUB_EVENT_NAME="pull_request")
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("event", "own"),
    [("push", "yes"), ("pull_request", "yes"), ("pull_request_target", "no"), ("issues", "no"), ("discussion", "no"), ("pull_request_review_comment", "no"), ("new", "no")],
)  # fmt: skip
def test_own_rules_run_on_listed_events_alone(event, own, tmp_path):
    command = f'. "{ROOT}/action/common.sh"; echo "own rules: ${{ADVISOR_OWN_RULES:-yes}}, ${{#config[@]}}"'
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env={**os.environ, "GITHUB_EVENT_NAME": event}, capture_output=True, text=True, check=True)
    assert f"own rules: {own}, {0 if own == 'yes' else 2}" in done.stdout


def test_a_trace_that_is_called_as_standard_input_is_a_file(step, tmp_path):
    (tmp_path / "b.toml").write_text("[budgets]\nstep_ms = 1000\n")
    shutil.copy(SLOW, tmp_path / "-")
    done = step("check.sh", ADVISOR_TRACE="-", ADVISOR_CONFIG="b.toml")
    assert done.returncode == 0 and "kept         step_ms" in done.stdout, done.stderr


def test_modules_of_the_workspace_are_not_imported(step, tmp_path):
    for name in ("json", "os", "secrets", "pip", "venv"):
        (tmp_path / f"{name}.py").write_text(f"open('{name}.ran', 'w').close()\n")
    (tmp_path / "advisor-report").mkdir()
    (tmp_path / "advisor-report" / "comment.md").write_text("x")
    assert step("comment.sh").returncode == 0
    subprocess.run(["bash", "-c", f'. "{ROOT}/action/common.sh"'], cwd=tmp_path, check=True)
    assert not list(tmp_path.glob("*.ran"))


def test_links_that_a_pull_request_laid_under_our_names_are_not_followed(step, tmp_path):
    """What the steps write, upload and comment with lies in the runner's own directory."""
    (tmp_path / "runner").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "token").write_text("ghs_secret")
    (tmp_path / "advisor-report").symlink_to("secret")
    for name in ("comment.md", "diff.md", "diff.log", "budgets.txt"):
        (tmp_path / "secret" / name).symlink_to("token")
    (tmp_path / "limits.toml").write_text("[budgets]\nstep_ms = 1000\n")
    given = {"ADVISOR_TRACE": SLOW, "ADVISOR_BASELINE": SLOW, "ADVISOR_CONFIG": "limits.toml", "RUNNER_TEMP": tmp_path / "runner"}
    for script in ("analyze.sh", "comment.sh", "check.sh"):
        done = step(script, **given)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "secret" / "token").read_text() == "ghs_secret" and "ghs_secret" not in calls(tmp_path)[-1]["body"]
    outputs = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
    assert (
        all(Path(path).is_relative_to(tmp_path / "runner") for path in outputs.values())
        and "${{ steps.analyze.outputs.directory }}" in (ROOT / "action.yml").read_text()
    )


def test_a_name_that_begins_with_a_dash_is_no_option(step, tmp_path):
    (tmp_path / "--rules=x").mkdir()
    (tmp_path / "--rules=x" / "t.json.gz").write_bytes(SLOW.read_bytes())
    (tmp_path / "--rules=x.json.gz").write_bytes(SLOW.read_bytes())
    done = step("analyze.sh", ADVISOR_TRACE="--rules=x", ADVISOR_BASELINE="--rules=x.json.gz")
    assert done.returncode == 0, done.stderr
    assert (
        "no change" in (tmp_path / "advisor-report" / "comment.md").read_text().lower()
        or "## Step time" in (tmp_path / "advisor-report" / "comment.md").read_text()
    )


def test_what_a_trace_holds_is_no_command_and_stays_in_its_block(step, tmp_path):
    trace = examples.training()
    trace["deviceProperties"][0]["name"] = "H\n::error::x\n```\n# out\n````` \x1b]0;x\x07"
    (tmp_path / "t.json").write_text(json.dumps(trace))
    (tmp_path / "limits.toml").write_text("[budgets]\nstep_ms = 0.001\n")
    done = step("check.sh", ADVISOR_TRACE="t.json", ADVISOR_CONFIG="limits.toml")
    lines = done.stdout.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    assert len(token) == 32 and lines[-1] == f"::{token}::"
    for text in (done.stdout, done.stderr, (tmp_path / "summary.md").read_text()):
        assert "\x1b" not in text and not re.search(r"^::error", text, re.MULTILINE) and "\n# out" not in text


def test_fences_are_longer_than_what_they_hold(step, tmp_path):
    (tmp_path / "text").write_text("a ````` b\n```\nc")
    common = f'. "{ROOT}/action/common.sh"; fenced text'
    done = subprocess.run(["bash", "-c", common], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "\n``````text\na ````` b\n```\nc\n``````\n" in done.stdout


def test_dependencies_and_actions_are_pinned_by_hash():
    locked = (ROOT / "action" / "requirements.txt").read_text()
    packages = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", locked, flags=re.MULTILINE))
    assert all("--hash=sha256:" in package for package in packages if "==" in package)
    wanted = {re.match(r"[\w.-]+", d)[0].lower().replace(".", "-") for d in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]}
    assert wanted <= {re.match(r"[\w.-]*", package)[0].lower().replace(".", "-") for package in packages}
    for file in (ROOT / "action.yml", ROOT / "docs" / "ci.md", ROOT / "advisor" / "cli" / "init.py"):
        for used in re.findall(r"uses: (?!\./)(\S+)", file.read_text()):
            if used in ("OWNER/advisor@COMMIT", "ACTION"):  # this action, by the user's choice of a commit
                continue
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", used), used


@pytest.mark.parametrize(
    ("install", "last"),
    [
        ("", f"--no-deps --no-build-isolation {ROOT}"),
        ("https://host/a.whl#sha256=0a", "--no-deps -- https://host/a.whl#sha256=0a"),
        ("advisor==1", "-- advisor==1"),
    ],
)
def test_what_is_installed_is_pinned(step, tmp_path, install, last):
    """A build of the action's commit and a wheel have the locked dependencies; what else a user names is the user's choice."""
    (tmp_path / "bin" / "python3").write_text(
        f'#!/bin/sh\nmkdir -p "$4/bin"\nprintf \'#!/bin/sh\\necho "$@" >>"{tmp_path}/pip.log"\\n\' >"$4/bin/python"\nchmod +x "$4/bin/python"\n'
    )
    done = step("install.sh", ADVISOR_INSTALL=install, GITHUB_ACTION_PATH=ROOT, RUNNER_TEMP=tmp_path)
    asked = [line.split("--disable-pip-version-check ")[-1] for line in (tmp_path / "pip.log").read_text().splitlines() if " install " in line]
    assert done.returncode == 0 and asked[-1] == last
    assert ("--require-hashes" in asked[0]) == (install != "advisor==1")


def test_no_input_is_pasted_into_a_script():
    text = (ROOT / "action.yml").read_text()
    scripts = re.findall(r"^ *run: (.*)$", text, re.MULTILINE)
    assert len(scripts) == 4 and not [s for s in scripts if "${{" in s]
    assert {Path(s.split("/")[-1].rstrip('"')).name for s in scripts if "/action/" in s} == {"analyze.sh", "comment.sh", "check.sh", "install.sh"}
