"""The wheel and the sdist, built and installed apart from the checkout: every command that the README, docs/ and the skill show runs from there.

By default in this Python with this environment's libraries; `ADVISOR_WHEELS=all` installs the wheel with its dependencies into a bare
environment of every Python from 3.10 that is here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.documented import EXIT, commands, pages, prepare, runs
from tests.paths import ROOT, slow

pytest.importorskip("build", reason="the package `build` is not installed")
ALL = os.environ.get("ADVISOR_WHEELS") == "all"
RUN = """
import contextlib, io, json, sys, traceback
import advisor
from advisor.cli import main

said = [advisor.__file__]
for arguments in json.load(sys.stdin):
    sys.argv, out, err = ["advisor", *arguments], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    said.append((code, out.getvalue(), err.getvalue()))
json.dump(said, sys.stdout)
"""
"""Runs commands one after another, without an interpreter's start for each."""


def pythons() -> list[str]:
    """This Python, or all that are here, one a version."""
    if not ALL:
        return [sys.executable]
    found: dict[str, str] = {}
    for path in [*Path("/usr/bin").glob("python3.1?"), *Path.home().glob(".pyenv/versions/3.1?.*/bin/python"), Path(sys.executable)]:
        told = subprocess.run([path, "-c", "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True, check=False)
        if told.returncode == 0 and tuple(map(int, told.stdout.split("."))) >= (3, 10):
            found.setdefault(told.stdout.strip(), str(path))
    return list(found.values())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


def test_both_hold_what_a_user_needs_and_nothing_of_the_tests(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "advisor/py.typed",
        "advisor/rules/launch_gap.py",
        "advisor/rules/fixes/cuda.toml",
        "advisor/reports/templates/timeline.js",
        "advisor/knowledge/devices.toml",
        "advisor/skills/advisor/SKILL.md",
        "advisor/skills/advisor/references/reading.md",
    } <= names
    assert not [name for name in names if name.startswith(("tests/", "samples/", "rules/", "reports/", "skills/", "native/"))]
    assert not shutil.which("cc") or "trace_advisor_native.abi3.so" in names
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "rules/launch_gap.py",
        "rules/fixes/cuda.toml",
        "reports/templates/report.css",
        "skills/advisor/SKILL.md",
        "native/replay.h",
    } <= held


def _asks(arguments: tuple[str, ...]) -> tuple[str, ...]:
    return (arguments[0], *sorted({word for word in arguments if word.startswith("-")}))


@slow
@pytest.mark.parametrize("python", pythons())
def test_every_command_runs_from_the_wheel(built: Path, tmp_path: Path, python: str) -> None:
    env = tmp_path / "env"
    if ALL:
        subprocess.run([python, "-m", "venv", "--without-pip", str(env)], check=True)
    else:
        venv.create(env)
        # This environment's libraries, without the checkout that it has installed.
        site = next(path for path in (env / "lib").glob("python*/site-packages"))
        here = [path for path in sys.path if path.endswith("site-packages")]
        site.joinpath("libraries.pth").write_text("\n".join(here))
    (wheel,) = built.glob("*.whl")
    extra = [] if ALL else ["--no-deps", "--no-index", "--ignore-installed"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # Not from the checkout: building leaves an egg-info there, for which pip would take the project as installed already.
    install = [sys.executable, "-m", "pip", "--python", str(env / "bin" / "python"), "install", "-q", "--no-compile", *extra, str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    prepare(place := tmp_path / "place")
    environment |= {"HOME": str(place), "SHELL": "/bin/bash", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    started = subprocess.run([env / "bin" / "advisor", "--version"], capture_output=True, text=True, check=True, cwd=place, env=environment)
    assert started.stdout.startswith("advisor ")

    def ran(*asked: list[str]) -> list[tuple[int, str, str]]:
        done = subprocess.run(
            [env / "bin" / "python", "-c", RUN], input=json.dumps(asked), capture_output=True, text=True, check=False, cwd=place, env=environment
        )
        assert done.returncode == 0, done.stderr
        where, *said = json.loads(done.stdout)
        assert Path(where).is_relative_to(env), "the checkout was imported"
        return [tuple(one) for one in said]

    shown = {tuple(arguments): page.name for page in pages() for arguments in commands(page)}
    # Of commands with the same options one is run; all others are held against what the command's help says of them.
    whole = [[*arguments] for arguments in {_asks(arguments): arguments for arguments in shown if runs([*arguments])}.values()]
    for arguments, (code, _, error) in zip(whole, ran(*whole), strict=True):
        assert code == next((EXIT[word] for word in arguments if word in EXIT), 0), (shown[tuple(arguments)], arguments, error)
    others = [arguments for arguments in shown if [*arguments] not in whole]
    for arguments, (code, help_, _) in zip(others, ran(*([*filter(str.isalpha, arguments[:1]), "--help"] for arguments in others)), strict=True):
        options = {word for word in arguments[: (*arguments, "--").index("--")] if word.startswith("--")}
        assert code == 0 and options <= set(re.findall(r"--[a-z-]+", help_)), (shown[arguments], arguments)
