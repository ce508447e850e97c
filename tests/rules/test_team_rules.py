"""The example of a team's own rules, installed as a team would and run by the command."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import command
from tests.paths import ROOT, slow

pytestmark = slow

EXAMPLE = ROOT / "docs" / "examples" / "team_rules"
RULE = "acme/use-our-kernel"
SOFTMAX = ROOT / "samples" / "unfused-attention" / "slow.json.gz"
OTHER = ROOT / "samples" / "memcpy" / "slow.json.gz"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A directory with the package in it, as `pip install` puts it there."""
    folder = tmp_path_factory.mktemp("team")
    shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", folder / "site"]
    subprocess.run([*pip, folder / "source"], check=True, capture_output=True)
    return folder / "site"


def advisor(*arguments, path=None, cwd=None):
    """In a process of its own where a package is to be found; here where none is."""
    if path is None:
        return command.advisor(*arguments, cwd=cwd or Path.cwd())
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run([sys.executable, "-m", "advisor", *map(str, arguments)], env=environment, cwd=cwd, capture_output=True, check=False)


def outcomes(done):
    report = json.loads(done.stdout)
    return [kind for kind in ("findings", "clear", "skipped", "failed") for item in report[kind] if item["rule"] == RULE]


def test_installed_it_is_listed_explained_and_run(installed):
    assert RULE.encode() in advisor("rules", path=installed).stdout and RULE.encode() not in advisor("rules").stdout
    assert b"keeps a row in registers" in advisor("explain", RULE, path=installed).stdout
    assert outcomes(advisor("analyze", SOFTMAX, "-f", "json", path=installed)) == ["findings"]
    assert outcomes(advisor("analyze", OTHER, "-f", "json", path=installed)) == ["clear"]


def test_as_a_file_it_runs_without_being_installed(tmp_path):
    path = EXAMPLE / "acme_rules" / "use_our_kernel.py"
    assert RULE.encode() in advisor("rules", "--rules", path).stdout and RULE.encode() in advisor("rules", "--markdown", "--rules", path).stdout
    (tmp_path / "own.toml").write_text(f"[tool.advisor]\nrules = ['{path}']\n")
    assert RULE.encode() in advisor("rules", "--config", tmp_path / "own.toml").stdout
    assert outcomes(advisor("analyze", SOFTMAX, "-f", "json", "--rules", path)) == ["findings"]
    assert b"acme/use-our-kernel fires" in advisor("explain", RULE, SOFTMAX, "--rules", path).stdout


def test_settings_reach_it(installed, tmp_path):
    (tmp_path / "pyproject.toml").write_text(f'[tool.advisor.options."{RULE}"]\nmin_saving_share = 0.99\n')
    assert outcomes(advisor("analyze", SOFTMAX, "-f", "json", path=installed, cwd=tmp_path)) == ["clear"]
    (tmp_path / "pyproject.toml").write_text(f'[tool.advisor]\nallow = {{ "{RULE}" = "rows are too long here" }}\n')
    report = json.loads(advisor("analyze", SOFTMAX, "-f", "json", path=installed, cwd=tmp_path).stdout)
    assert [f["allowed"] for f in report["findings"] if f["rule"] == RULE] == ["rows are too long here"]


def test_one_that_breaks_costs_the_others_nothing(tmp_path):
    source = (EXAMPLE / "acme_rules" / "use_our_kernel.py").read_text()
    (tmp_path / "broken.py").write_text(source.replace('    """\n    ', '    """\n    raise ValueError("oh no")\n    ', 1))
    done = advisor("analyze", SOFTMAX, "-f", "json", "--rules", tmp_path / "broken.py")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and [f["rule"] for f in report["failed"]] == [RULE] and "oh no" in report["failed"][0]["error"]
    assert "unfused-attention" in [f["rule"] for f in report["findings"]]


def test_the_example_s_own_tests_pass(installed):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", EXAMPLE, EXAMPLE / "tests"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
