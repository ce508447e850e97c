"""diff, check and history as a user runs them."""

import json

import pytest

from tests.cli.test_analyze import HEALTHY, SLOW
from tests.command import advisor
from tests.paths import ROOT, slowly

FIXED = ROOT / "samples" / "launch-gap" / "fixed.json.gz"
OTHER_DEVICE = {"deviceProperties": []}


def test_diff_of_two_traces_and_of_their_saved_reports_says_the_same(tmp_path):
    shown = advisor("diff", SLOW, FIXED, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert b"FASTER" in shown.stdout and b"idle: waiting for launches" in shown.stdout and not list(tmp_path.iterdir())
    for name, trace in (("a.json", SLOW), ("b.json", FIXED)):
        assert advisor("analyze", trace, "-o", name, cwd=tmp_path).returncode == 0
    again = advisor("diff", "a.json", "b.json", cwd=tmp_path)
    assert again.stdout.split(b"\n")[3:] == shown.stdout.split(b"\n")[3:]


def test_the_logs_of_jax_are_one_capture_each(tmp_path):
    for side in ("slow", "fixed"):
        run = tmp_path / side / "plugins" / "profile" / "2026_01_01_00_00_00"
        run.mkdir(parents=True)
        (run / "vm.xplane.pb.gz").write_bytes((ROOT / "samples" / "jax" / f"attention.{side}.xplane.pb.gz").read_bytes())
    shown = advisor("diff", "slow", "fixed", cwd=tmp_path)
    assert shown.returncode == 0 and b"FASTER" in shown.stdout, shown.stderr


def test_directories_and_options_give_more_captures(tmp_path):
    for side, trace in (("before", SLOW), ("after", FIXED)):
        (tmp_path / side).mkdir()
        assert advisor("analyze", trace, "-o", f"{side}/1.json", cwd=tmp_path).returncode == 0
        for n in (2, 3):
            (tmp_path / side / f"{n}.json").write_bytes((tmp_path / side / "1.json").read_bytes())
    done = advisor("diff", "before", "after", "-f", "json", cwd=tmp_path)
    assert json.loads(done.stdout)["noise"]["high_us"] < 0 and len(json.loads(done.stdout)["before"]["paths"]) == 3
    few = advisor("diff", "before/1.json", "after/1.json", "--before", "before/2.json", "-f", "json", cwd=tmp_path)
    assert json.loads(few.stdout)["noise"] is None and len(json.loads(few.stdout)["before"]["paths"]) == 2


def test_sides_of_other_devices_are_refused_unless_asked_for(tmp_path):
    assert advisor("analyze", SLOW, "-o", "a.json", cwd=tmp_path).returncode == 0
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "b.json").write_text(text.replace("NVIDIA H200", "NVIDIA A100"))
    done = advisor("diff", "a.json", "b.json", cwd=tmp_path)
    assert done.returncode == 2 and b"NVIDIA A100 after" in done.stderr and b"--anyway" in done.stderr
    done = advisor("diff", "a.json", "b.json", "--anyway", cwd=tmp_path)
    assert done.returncode == 0 and b"NOT COMPARABLE: device" in done.stdout


@pytest.mark.parametrize("name", slowly(["out.html", "out.md", "out.json", "out.txt"], quick=1))
def test_a_comparison_goes_to_a_file_of_any_format_and_overwrites_its_own_only(tmp_path, name):
    for _ in range(2):
        assert advisor("diff", SLOW, FIXED, "-o", name, cwd=tmp_path).returncode == 0
    (tmp_path / name).write_text("my own notes")
    done = advisor("diff", SLOW, FIXED, "-o", name, cwd=tmp_path)
    assert done.returncode == 2 and (tmp_path / name).read_text() == "my own notes"


def budgets(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(f"[tool.advisor.budgets]\n{text}")


def test_check_exits_with_0_or_1_and_says_by_how_much(tmp_path):
    budgets(tmp_path, "idle_share = 0.9999\nfindings = { high = 9 }")
    done = advisor("check", SLOW, cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (0, b"2 of 2 budgets pass")
    budgets(tmp_path, "step_ms = 0.001\nfindings = { high = 0 }\nidle_share = 0.9999")
    done = advisor("check", SLOW, cwd=tmp_path)
    assert done.returncode == 1 and b"crossed      step_ms" in done.stdout and b"over" in done.stdout
    assert b"crossed      findings.high: 1 at least high, 0 allowed: launch-gap (high)" in done.stdout


def test_check_against_a_baseline(tmp_path):
    budgets(tmp_path, "regression_percent = 5")
    assert advisor("check", FIXED, "--baseline", SLOW, cwd=tmp_path).returncode == 0
    done = advisor("check", SLOW, "--baseline", FIXED, cwd=tmp_path)
    assert done.returncode == 1 and b"fewer than three captures does not show the noise" in done.stdout


def test_a_check_that_holds_nothing_is_no_success(tmp_path):
    budgets(tmp_path, "regression_percent = 5")
    done = advisor("check", SLOW, cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout and b"Give --baseline" in done.stderr
    budgets(tmp_path, "regression_percent = 5\nstep_ms = 1000")
    done = advisor("check", SLOW, cwd=tmp_path)
    assert done.returncode == 0 and b"not checked  regression_percent: no --baseline" in done.stdout and b"1 of 2 budgets pass, 1 not checked" in done.stderr


def test_check_without_budgets_is_an_error_not_a_success(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.advisor]\n")
    done = advisor("check", SLOW, cwd=tmp_path)
    assert done.returncode == 2 and b"sets no budgets" in done.stderr and b"step_ms" in done.stderr


def test_history_keeps_and_shows(tmp_path):
    for commit, trace in (("aaa", SLOW), ("bbb", FIXED)):
        done = advisor("history", "h", "--add", trace, "--commit", commit, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert b"aaa" in done.stdout and b"bbb" in done.stdout and len(list((tmp_path / "h").iterdir())) == 2
    assert advisor("history", "h", "-o", "trend.html", cwd=tmp_path).returncode == 0
    assert "<svg" in (tmp_path / "trend.html").read_text()
    assert advisor("history", "h", "--commit", "ccc", cwd=tmp_path).returncode == 2
    for name in "abcd":
        (tmp_path / "h" / f"{name}.txt").write_text("mine")
    assert b"which are left out: a.txt, b.txt, c.txt and 1 more" in advisor("history", "h", cwd=tmp_path).stderr
    (tmp_path / "two").mkdir()
    for name in ("x.json", "y.json"):
        (tmp_path / "two" / name).write_text("{}")
    assert b"two holds no history, only x.json, y.json" in advisor("history", "two", cwd=tmp_path).stderr
    assert b"two holds 2 captures, but a commit has a single report" in advisor("history", "h", "--add", "two", "--commit", "ddd", cwd=tmp_path).stderr


@pytest.mark.parametrize("command", [["diff", HEALTHY, "gone.json"], ["check", "gone.json"], ["history", "h", "--add", "gone.json"]])
def test_a_file_that_is_not_there(tmp_path, command):
    budgets(tmp_path, "step_ms = 1")
    done = advisor(*command, cwd=tmp_path)
    assert done.returncode == 3 and b"gone.json" in done.stderr


def test_a_commit_that_is_added_again_is_said_to_be(tmp_path):
    for times in (1, 2):
        done = advisor("history", "h", "--add", SLOW, "--commit", "aaa", cwd=tmp_path)
        assert done.returncode == 0 and (b"in place of" in done.stderr) == (times == 2) and b"over 1 commit\n" in done.stdout
    assert len(list((tmp_path / "h").iterdir())) == 1


def test_a_baseline_without_a_limit_is_an_error(tmp_path):
    budgets(tmp_path, "step_ms = 100")
    done = advisor("check", SLOW, "--baseline", FIXED, cwd=tmp_path)
    assert done.returncode == 2 and b"no budget says how much slower is too slow" in done.stderr and b"regression_percent" in done.stderr


def test_a_page_goes_to_a_file_in_every_command(tmp_path):
    assert advisor("analyze", SLOW, "-o", "a.json", cwd=tmp_path).returncode == 0
    assert advisor("history", "h", "--add", "a.json", "--commit", "aaa", cwd=tmp_path).returncode == 0
    for command in (["analyze", SLOW], ["report", "a.json"], ["diff", "a.json", FIXED], ["diff", "--across", "a.json", FIXED], ["history", "h"]):
        before = {path.name for path in tmp_path.glob("*.html")}
        done = advisor(*command, "-f", "html", "--force", cwd=tmp_path)
        assert done.returncode == 0 and not done.stdout and b"wrote " in done.stderr, command
        assert {path.name for path in tmp_path.glob("*.html")} - before or command[1] == "--across", "it has the name of the other comparison"


def test_two_programs_are_not_called_faster(tmp_path):
    done = advisor("diff", SLOW, ROOT / "samples" / "data-loading" / "slow.json.gz", cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout and b"these are two programs" in done.stderr
    assert b"3.63 GFLOP a step before and 816 GFLOP a step after" in done.stderr


def test_two_programs_on_one_side_are_no_repetitions(tmp_path):
    done = advisor("diff", SLOW, FIXED, "--before", ROOT / "samples" / "data-loading" / "slow.json.gz", cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout and b"program is 3.63 GFLOP to 816 GFLOP a step before" in done.stderr


def test_a_snapshot_of_memory_is_held_to_no_step(tmp_path):
    snapshot = ROOT / "samples" / "memory" / "fp32_logits.slow.pickle.gz"
    assert advisor("analyze", snapshot, "-o", "a.json", cwd=tmp_path).returncode == 0
    budgets(tmp_path, "regression_percent = 5\npeak_bytes = 1e12")
    done = advisor("check", "a.json", cwd=tmp_path)
    assert done.returncode == 0 and b"not checked  regression_percent: a snapshot of memory has no step" in done.stdout
    done = advisor("check", "a.json", "--baseline", "a.json", cwd=tmp_path)
    assert done.returncode == 2 and b"no step to compare" in done.stderr and b"peak_bytes" in done.stderr
