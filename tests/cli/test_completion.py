"""Completion in the shells themselves: the script that is installed, and what Tab gives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from advisor.cli import COMMANDS, app
from tests.command import advisor
from tests.paths import ROOT, slowly

PRESSED = {
    # zsh finds the script by the command's name and loads it on the first Tab; `_arguments` shows what it is given.
    "zsh": "fpath=($PWD); compdef() { }; _arguments() { print -r -- $@ }; words=(advisor %s); CURRENT=$#words; autoload -Uz _advisor; _advisor",
    "bash": "source ./_advisor; COMP_WORDS=(advisor %s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _advisor_completion advisor; echo ${COMPREPLY[@]}",
    "fish": "source ./_advisor; complete -C 'advisor %s'",
}


@pytest.fixture(scope="module", params=sorted(PRESSED))
def tab(request, tmp_path_factory):
    """The first Tab of a new shell, behind these words."""
    shell, place = request.param, tmp_path_factory.mktemp(request.param)
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    command = place / "advisor"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m advisor "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(place)}
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"

    def run(*arguments: str) -> str:
        return subprocess.run(arguments, cwd=place, env=environment, capture_output=True, text=True, check=True).stdout

    Path(place, "_advisor").write_text(run("advisor", "--show-completion", shell))
    return lambda words: run(shell, "-c", PRESSED[shell] % words)


@pytest.mark.parametrize(("words", "offered"), slowly([("explain launch", "launch-gap"), ("analyze --fail-on me", "medium"), ("diff -f mark", "markdown")]))
def test_the_first_tab_completes(tab, words, offered):
    assert offered in tab(words)


@pytest.mark.parametrize(("shell", "separator"), [("bash", "\n"), ("zsh", '"'), ("fish", "\n")])
def test_rules_are_completed_for_shells_that_are_not_here(tmp_path, shell, separator):
    done = advisor(
        cwd=tmp_path, _ADVISOR_COMPLETE=f"complete_{shell}", COMP_WORDS="advisor explain launch", COMP_CWORD="2",
        _TYPER_COMPLETE_ARGS="advisor explain launch", _TYPER_COMPLETE_FISH_ACTION="get-args",
    )  # fmt: skip
    assert "launch-gap" in done.stdout.decode().split(separator)


def test_help_survives_the_way_through_a_shell():
    """zsh is given the help between quotes, and typer takes what stands in brackets for markup."""
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        said = [command.get_short_help_str(), *(option.help or "" for option in command.params if option.param_type_name == "option")]
        assert not [text for text in said if set("'[") & set(text)], name


def test_commands_are_listed_as_they_say_of_themselves():
    """`advisor --help` imports no command: it has the first lines in a table."""
    for name, (_, line) in COMMANDS.items():
        command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
        assert command.help.split("\n\n")[0].replace("\n", " ") == line, name


def test_help_and_version_import_no_command_and_no_numpy(tmp_path):
    for option in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-X", "importtime", "-m", "advisor", option], cwd=ROOT, capture_output=True, text=True, check=True)
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "typer" in imported and not imported & {"numpy", "msgspec", "pydantic", "advisor.cli.terminal", "advisor.cli.analyze"}


def test_simple_values_are_taken_as_typer_takes_them(tmp_path):
    """Without pydantic, also paths that exist; typer is left for what is wrong."""
    (tmp_path / "new.json").write_text("{}")
    line = ("analyze", ROOT / "samples" / "launch-gap" / "slow.json.gz", "-f", "json", "-o", tmp_path / "new.json", "--force", "--rule", "launch-gap")
    done = subprocess.run([sys.executable, "-X", "importtime", "-m", "advisor", *line], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "pydantic" not in done.stderr and '"launch-gap-1"' in (tmp_path / "new.json").read_text()
    for wrong in (("--workers", "0"), ("--max-gib", "many")):
        refused = advisor("analyze", "x.json", *wrong, cwd=tmp_path)
        assert refused.returncode == 2 and f"Invalid value for '{wrong[0]}'".encode() in refused.stderr
