"""What starts us inside a program: found by every Python that the program starts, and seen by none."""

import ast
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from advisor.lab.guard import Guard
from advisor.lab.injection import environment
from tests.paths import ROOT

LAB = ROOT / "advisor" / "lab"
SEES = """
import os, sys
print(sys.argv[1:], sys.path, sorted(os.environ), os.environ.get("PYTHONPATH"))
try:
    import sitecustomize
    print(sitecustomize.__file__)
except ImportError as error:
    print(error)
"""
TORCH = """
import os
print("torch", os.environ.get("PYTHONPATH"))
"""
ENTRY = "def install(text): print('begun with', text, flush=True)\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sees.py").write_text(SEES)
    (tmp_path / "torch.py").write_text(TORCH)
    return tmp_path


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Environments in which what begins inside of a program, a copy of ours, prints so."""
    copied = tmp_path / "copy" / "lab"
    shutil.copytree(LAB / "at_start", copied / "at_start", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(LAB / "in_program.py", copied)
    (copied / "tried.py").write_text(ENTRY)
    monkeypatch.setattr("advisor.lab.injection._AT_START", copied / "at_start")
    return lambda base: environment("lab.tried", "a text, with blanks", base)


def ran(folder, code, variables):
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), "a", "b"], cwd=folder, env={**base, **variables}, capture_output=True, text=True, check=False
    )


def both(folder, code, begun, variables):
    """What a program prints alone, and what it prints with us and we print in it."""
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", textwrap.dedent(code), "a", "b"]
    alone, with_us = (
        subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        for env in ({**base, **variables}, begun({**base, **variables}))
    )
    assert (with_us.returncode, with_us.stderr) == (alone.returncode, alone.stderr)
    ours = [line for line in with_us.stdout.splitlines() if line.startswith("begun")]
    return alone.stdout.splitlines(), [line for line in with_us.stdout.splitlines() if line not in ours], ours


@pytest.mark.parametrize("variables", [{}, {"PYTHONPATH": ""}, {"PYTHONPATH": "here::there:"}], ids=str)
def test_a_program_sees_what_it_would_see_without_us(folder, begun, variables):
    (folder / "here").mkdir()
    (folder / "here" / "sitecustomize.py").write_text("print('theirs')")
    alone, with_us, ours = both(folder, "import sees, torch; print([str(finder).partition(' at 0x')[0] for finder in sees.sys.meta_path])", begun, variables)
    assert with_us == alone and ours == ["begun with a text, with blanks"]


def test_an_error_in_the_programs_own_start_is_told_as_without_us(folder, begun):
    (folder / "here").mkdir()
    (folder / "here" / "sitecustomize.py").write_text("1 / 0")
    alone, with_us, _ = both(folder, "print('runs')", begun, {"PYTHONPATH": "here"})
    assert with_us == alone


STARTS = """
    import multiprocessing, os, subprocess, sys
    command = [sys.executable, "-c", "import sees, torch"]
    os.environ["MINE"] = "1"
    subprocess.run(command)
    subprocess.run(command, env={**os.environ, "MORE": "1"})
    subprocess.run(command, env={"PYTHONPATH": "there"})
    subprocess.run(command, close_fds=False)
    os.system(" ".join(command[:2]) + " 'import torch'")
    os.spawnve(os.P_WAIT, sys.executable, command, {"A": "1"})
    os.environ["PYTHONPATH"] = "here"
    subprocess.run(command)
    os.waitpid(os.posix_spawn(sys.executable, command, os.environ), 0)
    sys.stdout.flush()
    os.execv(sys.executable, command)
"""


def test_what_a_program_starts_is_begun_too_and_sees_nothing_either(folder, begun):
    alone, with_us, ours = both(folder, STARTS, begun, {})
    assert with_us == alone and len(ours) == STARTS.count("command)") + STARTS.count("command,") + 1


def test_it_begins_at_the_import_and_not_where_somebody_only_asks_for_the_module(folder, begun):
    code = "import importlib.util; print(importlib.util.find_spec('torch').name, flush=True); print('now'); import torch; import torch"
    alone, with_us, ours = both(folder, code, begun, {})
    assert with_us == alone and len(ours) == 1


def test_a_module_that_fails_has_the_traceback_that_it_has_without_us(folder, begun):
    for error in ("1 / 0", "import no_such_module", "raise SystemExit(3)"):
        (folder / "torch.py").write_text(error)
        alone, with_us, ours = both(folder, "import torch", begun, {})
        assert with_us == alone and not ours


def test_an_error_of_ours_is_said_once_and_the_program_runs_on(folder):
    done = ran(folder, "import torch; print('runs')", environment("lab.no_such", "", {}))
    assert done.returncode == 0 and "runs" in done.stdout
    assert done.stderr.count("advisor: nothing is recorded here") == 1


PYTHONS = sorted(Path.home().glob(".pyenv/versions/[23].*/bin/python"))


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_any_python_may_be_started(folder, python):
    def run(env):
        return subprocess.run([python, "-c", "import sees"], cwd=folder, env=env, capture_output=True, text=True, check=False)

    for base in ({}, {"PYTHONPATH": "here"}):
        alone, with_us = run(base), run(environment("lab.no_such", "", base))
        assert (with_us.returncode, with_us.stdout, with_us.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def test_what_is_loaded_into_a_program_loads_nothing_that_torch_does_not():
    pytest.importorskip("torch")
    code = """
        import sys, types
        import torch
        before = set(sys.modules)
        package = types.ModuleType("_private")
        package.__path__ = [sys.argv[1]]
        sys.modules["_private"] = package
        import _private.lab.find_steps, _private.lab.trying.inside
        for module in sys.argv[2:]:
            __import__("_private.lab.interventions." + module)
        print(sorted(name for name in sys.modules if name not in before and not name.startswith("_private")))
    """
    modules = [path.stem for path in (LAB / "interventions").glob("[a-z]*.py") if path.stem != "catalogue"]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(LAB.parent), *modules], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "a module of Python's own that a file of the program's may have the name of"


def test_the_first_of_ours_loads_nothing_at_all():
    tree = ast.parse((LAB / "in_program.py").read_text())
    names = [node.names[0].name if isinstance(node, ast.Import) else node.module for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert names == ["os", "sys"]


def test_after_an_error_of_ours_nothing_more_is_called():
    told = []
    guard = Guard(told.append)
    assert guard(lambda: 3) == 3
    assert guard(json.loads, "no JSON") is None and isinstance(told[0], ValueError)
    assert guard(told.append, "more") is None and len(told) == 1


def test_an_error_that_a_handler_of_the_programs_raises_passes():
    def handler():  # not ours, nor torch's, nor Python's
        raise TimeoutError("over")

    told = []
    guard = Guard(told.append)
    with pytest.raises(TimeoutError):
        guard(handler)
    assert guard.broken and len(told) == 1
    with pytest.raises(KeyboardInterrupt):
        Guard(told.append)(_interrupted)


def _interrupted():
    raise KeyboardInterrupt
