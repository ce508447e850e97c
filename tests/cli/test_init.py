"""`advisor init`: its files are asked for, valid, and written over nobody's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.command import advisor
from tests.paths import ROOT

ACTION = f"owner/advisor@{'0a' * 20}"
FILES = {"advisor.toml", ".mcp.json", ".github/workflows/performance.yml"}


def written(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def test_all_is_written_once_and_kept(tmp_path: Path) -> None:
    assert advisor("init", "--yes", "--action", ACTION, cwd=tmp_path).returncode == 0
    assert written(tmp_path) == FILES
    workflow = (tmp_path / ".github/workflows/performance.yml").read_text()
    assert f"uses: {ACTION}" in workflow and "permissions: {}" in workflow and "pull_request_target" not in workflow
    assert json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"]["advisor"]["args"] == ["mcp", "--root", "."]
    for name in FILES:
        (tmp_path / name).write_text("mine")
    again = advisor("init", "--yes", "--action", ACTION, cwd=tmp_path)
    assert again.returncode == 0 and again.stderr.count(b"stays as it is") == 3
    assert all((tmp_path / name).read_text() == "mine" for name in FILES)


@pytest.mark.parametrize(("said", "expected"), [(b"n\nn\n", set()), (b"n\ny\n", {".mcp.json"}), (b"", set())])
def test_each_file_is_asked_for(tmp_path: Path, said: bytes, expected: set[str]) -> None:
    done = advisor("init", cwd=tmp_path, stdin=said)
    assert written(tmp_path) == expected and done.returncode == (0 if said else 2)


def test_an_interrupt_ends_it_as_an_interrupt(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "advisor", "init"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores interrupts, and so would its children
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=tmp_path, **pipes, preexec_fn=heard) as asking:
        assert asking.stdout is not None
        said = b""
        while b"[y/N]" not in said:
            said += (piece := os.read(asking.stdout.fileno(), 4096))
            assert piece, said
        asking.send_signal(signal.SIGINT)
        assert asking.wait() == 130 and written(tmp_path) == set()


def test_a_link_is_not_followed_and_an_action_needs_a_commit(tmp_path: Path) -> None:
    (tmp_path / "advisor.toml").symlink_to(tmp_path / "elsewhere")
    assert advisor("init", "--yes", cwd=tmp_path).returncode == 0 and not (tmp_path / "elsewhere").exists()
    for action in ("owner/advisor@v1", "owner/advisor", "x y/z@" + "0" * 40):
        refused = advisor("init", "--yes", "--action", action, cwd=tmp_path)
        assert refused.returncode == 2 and b"names no commit" in refused.stderr


def test_the_budgets_hold_a_trace(tmp_path: Path) -> None:
    advisor("init", "--yes", cwd=tmp_path)
    shutil.copy(ROOT / "samples" / "launch-gap" / "slow.json.gz", tmp_path / "trace.json.gz")
    done = advisor("check", "trace.json.gz", "--config", "advisor.toml", cwd=tmp_path)
    assert done.returncode == 1 and b"crossed" in done.stdout and b"not checked" in done.stdout
