"""What an agent may give a tool: arguments that it takes, and paths below the root."""

from __future__ import annotations

import inspect
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_type_hints

from advisor.errors import TraceError, UsageError, unknown_name
from advisor.report.numbers import cut

SHOWN = 40
"""Characters of a wrong argument that are repeated."""

LONGEST = 4096
"""Characters of a text: no path is longer, on Linux as on macOS."""

PATHS = ("trace", "before", "after", "baseline")
"""Arguments that are paths of what is there, whatever tool takes them."""


_SURROGATE = re.compile("[\ud800-\udfff]")


def located(root: Path, trace: str) -> Path:
    """Resolves a path below the root. Raises UsageError outside of it, TraceError if no file or directory is there."""
    shown, hint = cut(trace, 4 * SHOWN), "Give the path of a trace below the root."
    try:
        path = (root.resolve() / trace).resolve()
        if not path.is_relative_to(root.resolve()):
            raise UsageError(f"{shown} is outside the folder that this server may read", hint)
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise TraceError(f"there is no {shown}", hint) from None
    except (OSError, ValueError, RuntimeError) as error:  # too long, a character that no name has, links in a ring, no permission
        why = (isinstance(error, OSError) and error.strerror) or ("its links go in a ring" if isinstance(error, RuntimeError) else "no file has such a name")
        raise TraceError(f"{cut(repr(trace), 4 * SHOWN)} cannot be read: {why}", hint) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise TraceError(f"{shown} is neither a file nor a directory", hint)
    return path


def check_paths(root: Path, given: Mapping[str, object]) -> None:
    """Raises what `located` does for each argument that is a path, which costs no look into a file."""
    for name in PATHS:
        if isinstance(trace := given.get(name), str):
            located(root, trace)


def target(root: Path, path: str) -> Path:
    """The place for a new file. Raises UsageError if it is not below the root."""
    try:
        found = (root.resolve() / path).resolve()
    except (OSError, ValueError, RuntimeError):
        raise UsageError(f"{cut(repr(path), 4 * SHOWN)} is no path", "Give a path below the root.") from None
    if found == root.resolve() or not found.is_relative_to(root.resolve()):
        raise UsageError(f"{cut(path, 4 * SHOWN)} does not lie below the root", "Give a path below it: nothing else is written.")
    return found


_OPTION = re.compile(r"(?:-{1,2}[\w-]+|[A-Za-z_]\w*)=")


def check_command(root: Path, words: Sequence[str]) -> None:
    """Raises UsageError for a program, file or directory argument outside of the root. Commands without a path are looked up as usual. Files that the program
    then reads are not checked: this is no sandbox.
    """
    home = root.resolve()
    program = next((at for at, word in enumerate(words) if at and not _OPTION.match(word)), 0) if words[0] == "env" else 0
    for at, word in enumerate(words):
        if at == program:  # of an environment below the root it is a link to the system's Python
            outside = "/" in word and not Path(os.path.normpath(home / word)).is_relative_to(home)
        else:
            value = word[found.end() :] if (found := _OPTION.match(word)) else word
            outside = _leads_out(home, value)
        if outside:
            raise UsageError(
                f"{cut(word, 4 * SHOWN)} is outside the folder that this server may use",
                "Name programs by their name alone or below the root, and files below the root. Put other paths into a program below the root.",
            )


def _leads_out(home: Path, word: str) -> bool:
    """Whether it is a path out of the root: as it is written, or by a link."""
    if not (os.path.isabs(word) or ".." in Path(word).parts or os.path.lexists(home / word)):
        return False
    try:
        return not (home / word).resolve().is_relative_to(home)
    except (OSError, ValueError, RuntimeError):
        return True


def check_arguments(tool: Callable[..., object], given: Mapping[str, object]) -> None:
    """Raises UsageError for unknown, missing or wrong arguments of a tool: an ignored argument would answer another question."""
    takes, types = inspect.signature(tool).parameters, get_type_hints(tool)
    for name, value in given.items():
        if name not in takes:
            raise unknown_name("argument", name, takes, where=f"{tool.__name__}: ")
        if types[name] is str and not isinstance(value, str):
            raise UsageError(f"{tool.__name__}: {name} = {_shown(value)} is no text", "Give it as a string.")
        if types[name] is str and isinstance(value, str) and len(value) > LONGEST:
            raise UsageError(f"{tool.__name__}: {name} has {len(value):,} characters, more than {LONGEST:,}", "Give a shorter text.")
        if isinstance(value, str) and _SURROGATE.search(value):
            raise UsageError(f"{tool.__name__}: {name} = {cut(ascii(value), SHOWN)} is no Unicode text", "Give whole characters.")
        if types[name] is int and not _is_count(value):
            raise UsageError(f"{tool.__name__}: {name} = {_shown(value)} is no count", "Give a whole number from 0 on.")
    missing = [name for name, parameter in takes.items() if parameter.default is parameter.empty and name not in given]
    if missing:
        raise UsageError(f"{tool.__name__} needs {' and '.join(missing)}", f"It takes {', '.join(takes)}.")


def _shown(value: object) -> str:
    try:
        return cut(repr(value), SHOWN)
    except (ValueError, RecursionError):  # Python writes no number of thousands of digits
        return "what was given"


def _is_count(value: object) -> bool:
    """Whether it is a whole number from 0 on, of nine digits at most, in any way that JSON and its clients write one."""
    if isinstance(value, str):
        return re.fullmatch("[0-9]{1,9}", value) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9 and value == int(value)
