"""What can go wrong for a user, each kind with its exit code and a hint that says what to do."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.knowledge.how_to_record import Missing

EXIT_CODES = {
    "0": "analysed",
    "1": "a finding reached `--fail-on`; or a budget was crossed, or its value is unknown",
    "2": "bad arguments or settings; contradictions with the trace; captures that cannot be compared; a timed program that fails; "
    "an output that would overwrite another file",
    "3": "the trace cannot be read, or holds nothing to analyse; a program to be recorded took too few steps",
    "4": "a rule is malformed, or failed under `--strict`",
    "5": "an output could not be written; an existing file is unchanged",
    "70": "an internal error of `advisor`",
    "130, 141, 143": "interrupted; the reader of its output went away; terminated",
}
"""What each exit code of the command means. Everything but 1, 70 and signals is raised as one of the errors below."""

LONGEST_MESSAGE = 1000
"""Characters. A message may quote a file, and a file may hold anything."""


class AdvisorError(Exception):
    """An error to show as it stands: what happened and why (`message`, clipped), and what to do (`hint`)."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message if len(message) <= LONGEST_MESSAGE else f"{message[: LONGEST_MESSAGE - 1]}…"
        self.hint = hint
        super().__init__(self.message)


class UsageError(AdvisorError):
    """Bad arguments or settings, or an output that would overwrite somebody's file."""


def unknown_name(what: str, name: str, known: Iterable[str], *, where: str = "", listed_by: str = "") -> UsageError:
    """The error for a name that does not exist: the nearest that does, then all, or `listed_by`, the command that lists them."""
    names = sorted(known)
    near = get_close_matches(name[:80], names, n=2, cutoff=0.6)
    every = f"All are listed by: {listed_by}" if listed_by else f"There are: {', '.join(names)}." if names else "There is none."
    return UsageError(f"{where}there is no {what} {name!r}", f"Did you mean {' or '.join(near)}? {every}" if near else every)


def require(module: str, *, extra: str) -> None:
    """Import what an extra of advisor brings. Raises UsageError, with what to install, if it is missing or broken."""
    try:
        importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: a shared library of it that does not load
        package = module.split(".")[0]
        raise UsageError(
            f"this needs {package}, which cannot be imported: {error}", f"Install it with advisor: pip install '.[{extra}]' in its checkout."
        ) from None


class TraceError(AdvisorError):
    """The trace cannot be read, or holds nothing to analyse."""

    exit_code = 3


class Terminated(SystemExit):
    """A signal ends the command, whatever it is about: of code that is measured too."""


STOPS = (KeyboardInterrupt, Terminated)
"""What ends the command whoever's code runs; all else that a team's own code raises is that code's failure, `sys.exit` too."""


class RuleError(AdvisorError):
    """A rule is malformed, or failed under `--strict`."""

    exit_code = 4


class OutputError(AdvisorError):
    """An output could not be written: no permission, no space. What was there before is as it was."""

    exit_code = 5


class Unavailable(AdvisorError):
    """A recording lacks what a view or a rule needs: what is missing (`message`), and how to record it (`hint`).

    The engine then reports the rule as skipped. missing: what the hint records, if another tool does so for other programs.
    """

    exit_code = 3

    def __init__(self, message: str, hint: str = "", missing: Missing = "") -> None:
        super().__init__(message, hint)
        self.missing: Missing = missing
