"""Every command and every parameter of it, derived from the program: whatever is given, the answer is clear and nothing of it is obeyed."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.every_command import COMMANDS, MEASURING, QUICK, advisor, formats, line, parameters, raw_in, reads, sane
from tests.fuzz import examples
from tests.lab.absent import without
from tests.paths import MANY_SAMPLES, slow, slowly
from tests.sources.canaries import files

EVIL = "e'\x1b]0;x\x07\n::error::x\r\n ##[error]##vso[task.x]\x9b31m\u202e\u2066<script>```-->]]>&\u2028"
"""Drives terminals, begins lines and commands of logs, leaves blocks, turns the order of letters round; fit for a file's name."""

TEXTS = (EVIL, "-" + EVIL, "", "\udcff", "x" * 300, "/dev/null/x", "/no/such/folder/" + EVIL, "NaN", "1" * 5000)

NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1e309", "x", "\u0663")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a recording, a loop of links, a link to nowhere and a folder."""
    (tmp_path / "r.json").write_text(json.dumps(examples.training(3)))
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("no/such/file")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_h_is_help(command: str, place: Path) -> None:
    done = advisor(*command.split(), "-h", cwd=place)
    assert done.returncode == 0 and done.stdout.startswith(f"Usage: advisor {command}".encode().strip())


@slow
@pytest.mark.parametrize("command", COMMANDS)
def test_any_text_in_any_parameter(command: str, place: Path) -> None:
    recording = place / "r.json"
    odd = () if command in QUICK else (*TEXTS, str(recording), *(str(place / name) for name in ("loop", "nowhere", "folder", "r.json/x")))
    for number, name in enumerate(parameters(command, str, Path)):
        for value in (EVIL, *odd[1 + number % 3 :: 3]):  # a third by turns: over all parameters and commands, all
            sane(advisor(*line(command, place, recording, **{name: value}), cwd=place), (command, name, value[:40]))
    assert sorted(p.name for p in place.iterdir() if p.name.startswith(".")) == [], "no litter"


@pytest.mark.parametrize("command", slowly((command for command in COMMANDS if any(parameters(command, int, float))), quick=2))
def test_any_number_in_any_parameter(command: str, place: Path) -> None:
    for name in parameters(command, int, float):
        for value in NUMBERS if MANY_SAMPLES else NUMBERS[:4]:
            sane(advisor(*line(command, place, place / "r.json", **{name: value}), cwd=place), (command, name, value))


@pytest.mark.parametrize("command", COMMANDS)
def test_without_torch_a_command_does_its_work_or_says_what_to_install(command: str, place: Path) -> None:
    program = f"{sys.executable} -c pass"  # of a user's that imports no torch
    given = {"before": program, "after": program} if command == "verify" else {"targets": "time:time"}
    with without("torch", "jax"):
        done = advisor(*line(command, place, place / "r.json", **given), cwd=place)
    sane(done, command)
    told = done.stderr.decode()
    assert ("pip install '.[lab]'" in told and done.returncode == 2) == (command in MEASURING), told


def hostile(folder: Path) -> dict[str, Path]:
    """A recording of each format that every source reads, with `EVIL` in names that reports show, under a name as bad."""
    found = {}
    for source, suffix, places in files(folder):
        shown = {label.split(" at ")[0]: made for (label, program), made in places if program}
        for made in [*shown.values()][-1:]:
            path = folder / f"{'-' if len(found) % 2 else ''}{source}{len(found)}{EVIL.replace('/', '')}{suffix}"
            path.write_bytes(made(EVIL))
            found[f"{source}{suffix}{len(found)}"] = path
    trace = examples.training(3)
    for event in trace["traceEvents"]:
        event["name"] = EVIL + event["name"] if event.get("cat") in ("kernel", "user_annotation") else event["name"] + EVIL
    trace["deviceProperties"][0]["name"] += EVIL
    found["every name"] = folder / f"::{EVIL.replace('/', '')}.json"
    found["every name"].write_text(json.dumps(trace))
    return found


HOSTILE = hostile(Path(tempfile.mkdtemp(prefix="advisor-hostile-")))


@slow
@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_a_recording_drive_nothing_wherever_they_are_shown(name: str, tmp_path: Path) -> None:
    recording = HOSTILE[name]
    (tmp_path / "rank0.json").write_bytes(recording.read_bytes())
    (tmp_path / f"rank1{EVIL.replace('/', '')}.json").write_bytes(recording.read_bytes())
    (tmp_path / "b.toml").write_text("[budgets]\nstep_ms = 0.001\n")
    saved = tmp_path / "saved.json"
    sane(advisor("analyze", "-f", "json", "-o", saved, "--", recording, cwd=tmp_path), name)
    whole = name == "every name"
    for command in COMMANDS:
        if command in QUICK or not (whole or reads(command)):
            continue
        some = formats(command) or [""]
        for given in (recording, saved) if whole else (recording,):
            config = {"config": "b.toml"} if "config" in parameters(command, Path) else {}
            for form in some if whole else some[len(name) % len(some) :][:1]:  # over all sources, all
                chosen = {"format": form, "output": "-"} if form else {}
                done = advisor(*line(command, tmp_path, given, **config, **chosen), cwd=tmp_path)
                sane(done, (command, form, given.name[:8]))
                blocked = done.stdout.decode().count("<script>```") if form in ("html", "markdown", "junit") else 0
                assert not blocked, (command, form, "a name leaves its block or its element")
    if whole:
        sane(advisor("analyze", "-o", tmp_path / "job", "--", tmp_path, cwd=tmp_path), name)
    sane(advisor("explain", "--", "launch-gap", recording, cwd=tmp_path), name)
    sane(advisor("history", "--add", recording, "--commit=abc", "--", tmp_path / "kept", cwd=tmp_path), name)
    for path in (tmp_path / "job", tmp_path / "kept", saved):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path] if path.exists() else []:
            assert not raw_in(file.name, log=False) and not file.name.startswith("-"), ascii(file.name)
            if file.suffix in (".html", ".json", ".txt", ".md"):
                assert not raw_in(file.read_bytes().decode("utf-8", "surrogateescape"), log=False), ascii(file.name)
