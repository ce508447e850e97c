"""Every command of the command line with what anybody may give it: derived from the program, so that a command more is tried too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import typer

from advisor.cli import app
from tests.command import Done, advisor
from tests.fuzz.laws import RAW

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
_TYPES = {(info.name or info.callback.__name__): get_type_hints(info.callback) for info in app.registered_commands if info.callback}

SMALL = {"seq_lengths": "8", "impl": "naive", "d_model": "8", "num_heads": "1", "batch": "1", "runs": "1", "timed": "1", "warmup": "1"}
"""What makes a command that measures done in a moment."""

QUICK = ("attention",)
"""Commands that are given these."""

MEASURING = ("attention", "bench")
"""Commands that measure in their own process, by torch."""


def type_of(command: str, parameter: Any) -> type:
    """str, Path, int, float or bool: of one of several values too."""
    found = _TYPES[command][parameter.name]
    while get_origin(found) in (Union, UnionType, list):
        found = next(inner for inner in get_args(found) if inner is not NoneType)
    return found  # type: ignore[no-any-return]


READ = ("trace", "saved", "before", "after", "directory", "summaries")
"""Parameters that are recordings, where they are arguments."""


def reads(command: str) -> bool:
    return any(p.name in READ and p.param_type_name == "argument" for p in COMMANDS[command].params)


def required(place: Path, recording: Path) -> dict[str, str]:
    """What each parameter that must be given is given: recordings wherever one is read. A new name is said here."""
    return {
        **dict.fromkeys(READ, str(recording)),
        "output": str(place / "given"), "rule": "launch-gap", "targets": "no_such_module:f", "command": "/no/such/program",
    }  # fmt: skip


def line(name: str, place: Path, recording: Path, /, **given: str) -> list[str]:
    """A command's arguments: those that it needs, those that are `given` by their parameter's name, arguments after `--`."""
    known, options, arguments = required(place, recording), [], []
    small = SMALL if name in QUICK else {}
    for parameter in COMMANDS[name].params:
        value = given.get(parameter.name, small.get(parameter.name))
        if value is None:
            if not parameter.required:
                continue
            value = known[parameter.name]
        if parameter.param_type_name == "argument":
            arguments.append(value)
        else:
            options += [parameter.opts[0]] if getattr(parameter, "is_flag", False) else [f"{parameter.opts[0]}={value}"]
    return [name, *options, "--", *arguments]


def parameters(command: str, *types: type) -> Iterator[str]:
    """Names of the parameters of these types."""
    return (p.name for p in COMMANDS[command].params if p.name != "help" and type_of(command, p) in types)


def formats(command: str) -> list[str]:
    """Those that the command's own help names."""
    found = next((p for p in COMMANDS[command].params if p.name == "format"), None)
    return re.findall(r"[a-z]+(?=,|\.| or )|(?<= or )[a-z]+", found.help) if found else []


_COMMAND = re.compile(r"^\s*::\S|##[\w.-]*\[", re.MULTILINE)


def raw_in(text: str, log: bool) -> str:
    """What may not stand there: a control character, or in a log what a runner obeys; with what is around it."""
    found = RAW.search(text) or (_COMMAND.search(text) if log else None)
    return ascii(text[max(found.start() - 60, 0) : found.end() + 40]) if found else ""


def sane(done: Done, said: object) -> None:
    """An exit code that is one, no traceback, no warning, nothing raw."""
    out, err = done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode("utf-8", "surrogateescape")
    assert done.returncode in (0, 1, 2, 3, 4, 5), (said, done.returncode, err[-1500:])
    assert "Traceback" not in out + err and "Warning:" not in err, (said, err[-1500:])
    for name, text in (("stdout", out), ("stderr", err)):
        assert not raw_in(text, log=True), (said, name, raw_in(text, log=True))


__all__ = ["COMMANDS", "advisor", "formats", "line", "parameters", "raw_in", "reads", "sane"]
