"""Files that commands write: nobody's is lost, none is left half written."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.cli.streams import declared, say
from advisor.errors import OutputError, UsageError
from advisor.files import begins_as_ours, write_whole

if TYPE_CHECKING:
    from advisor.engine.analysis import Analysis
    from advisor.report.model import Report

_UNFIT = re.compile(r"[^\w .=+@()\[\],~%-]+")


def check_target(path: Path, force: bool, source: str, option: str = "-o") -> None:
    """Refuse to overwrite the input, a file that is not ours in a directory of inputs, or without `force` what advisor did not write, before any work is done."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}", "Make it, or give another path.")
    if path.is_dir():
        raise UsageError(f"{path} is a directory", "Give the path of a file.")
    if path.exists() and os.path.exists(source) and os.path.samefile(path, source):
        raise UsageError(f"{path} is the input", f"Give another path with {option}.")
    if not path.is_file() or path.stat().st_size == 0:
        return
    among = os.path.isdir(source) and os.path.samefile(path.parent, source)
    if force and not among:
        return
    if not begins_as_ours(path):
        other = "" if among else ", or --force"
        raise UsageError(f"{path} is there already and was not written by advisor", f"Give another path with {option}{other}.")


def file_name(text: str) -> str:
    """What an input's name lends to a file's: letters, digits and what else stands in file names as people write them."""
    return _UNFIT.sub("-", text).lstrip("-.")[:120]


def make_directory(directory: Path) -> None:
    """Raises OutputError where it cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{directory} cannot be made: {error.strerror}", "Give another directory with -o.") from None


def write(rendered: str, target: Path | None, quiet: bool = False) -> None:
    """To standard output, or to a file: whole or not at all. Raises OutputError where it cannot be written."""
    if target is None:
        sys.stdout.write(declared(rendered if rendered.endswith("\n") else rendered + "\n"))
        sys.stdout.flush()
        return
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            with target.open("w", encoding="utf-8") as file:  # a pipe, a terminal, /dev/null: there is nothing to replace
                file.write(rendered)
        else:
            write_whole(target, rendered.encode())
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror or error}", "Give another path with -o.") from None
    if not quiet:
        say(f"wrote {target}")


def write_report(shown: Analysis | Report, name: str, target: Path | None, quiet: bool = False) -> None:
    """In a format, to standard output or a file. Text is as wide as the terminal that it goes to, and coloured there."""
    from advisor.reports import formats

    if name == "text" and target is None and sys.stdout.isatty():
        width = os.get_terminal_size().columns
        write(formats()["text"].render(shown, width=width, color="NO_COLOR" not in os.environ), None)
    else:
        write(formats()[name].render(shown), target, quiet)


def check_brief(targets: Iterable[tuple[str, Path | None]]) -> None:
    """Raises UsageError where a report in short is asked for in another format than JSON."""
    if other := next((name for name, _ in targets if name != "json"), None):
        raise UsageError(f"--brief is a form of JSON, and {other} would be written", "Give -f json, or -o a file named *.json.")


def write_brief(shown: Analysis | Report, target: Path | None, quiet: bool = False) -> None:
    """A report in short, to standard output or a file."""
    from advisor.engine.analysis import report_in
    from advisor.report.brief import brief

    write(brief(report_in(shown)).decode(), target, quiet)
