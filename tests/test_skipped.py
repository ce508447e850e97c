"""What one run skips is what the next one runs."""

import os
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT, slow

TESTS = {
    "test_whole.py": "import pytest\npytest.importorskip('no_such_package')\ndef test_a(): pass\n",
    "test_some.py": """
import os, pytest
@pytest.mark.skipif(os.environ.get("LACKING") == "yes", reason="lacking")
@pytest.mark.parametrize("n", [1, 2])
def test_skipped(n): pass
def test_run(): assert "PYTEST_ADDOPTS" not in os.environ
@pytest.mark.xfail
def test_that_fails(): assert False
""",
}


def run(folder: Path, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *arguments]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@slow
def test_what_one_run_skips_is_what_the_next_one_runs(tmp_path: Path) -> None:
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    noted = tmp_path / "kept" / "skipped.txt"
    run(tmp_path, PYTEST_ADDOPTS=f"-p tests.skipped --skipped-into {noted}", LACKING="yes")
    assert sorted(noted.read_text().split()) == ["test_some.py::test_skipped[1]", "test_some.py::test_skipped[2]", "test_whole.py"]
    (tmp_path / "test_whole.py").write_text(TESTS["test_whole.py"].replace("no_such_package", "json"))
    assert "3 passed" in run(tmp_path, "-p", "tests.skipped", f"--skipped-in={noted}")
