"""Standard output and error of every command. Text of a trace cannot steer a terminal, or give commands to a CI log. A closed or full
stream has its own exit code, which is never that of a finding. Characters that an encoding lacks are replaced."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import re
import sys
import unicodedata
from typing import Any

from advisor.errors import OutputError

_COMMAND = re.compile(r"^([^\S\n]*):(?=:)|##(?=[\w.-]*\[)", re.MULTILINE)
"""Commands for CI runners: GitHub's lines that begin with ::, after spaces or not. And anywhere in a line: ##[…], Azure's ##vso[…], TeamCity's
##teamcity[…]."""


def no_command(text: str) -> str:
    """The text with the first letter of each such command written as its escape, which in JSON means the same."""
    return _COMMAND.sub(lambda match: "#\\u0023" if match[1] is None else f"{match[1]}\\u003a", text)


def visible(text: str, lines: bool = False) -> str:
    """A text that may quote a trace: secrets masked, nothing in it unseen; one line, unless `lines` are wanted."""
    from advisor.knowledge.secrets import masked, shown  # neither is imported before it is needed: --help costs nothing
    from advisor.reports._clean import visible as made

    return made(text if shown() else masked(text), lines=lines)


def say(text: str) -> None:
    """A line to standard error: a path or a name in it may hold line breaks, which would begin another."""
    print(visible(text), file=sys.stderr)


_TWINS = {
    **dict(zip("·–−’•µ×→▓▒░", "---'*ux>%*.", strict=True)),
    **dict(zip("▁▂▃▄▅▆▇█▉▊▋▌▍▎▏", "_.-=+*%####:::.", strict=True)),
}
"""The replacement of a character that an encoding lacks: a single character, so that bars keep their length."""


def _twin(error: UnicodeError) -> tuple[str, int]:
    """A handler of `codecs`: twins, letters without their accents, and "?" for what has none."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    made = (_TWINS.get(char) or unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode() or "?" for char in error.object[error.start : error.end])
    return "".join(made), error.end


codecs.register_error("advisor.twins", _twin)

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")


def declared(text: str) -> str:
    """A text for standard output. JSON, HTML and XML are UTF-8 wherever they are read: on a stream of another encoding JSON has its escapes,
    and a page turns the stream to UTF-8, as it says of itself. Prose has the stream's encoding."""
    if codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name == "utf-8":
        return text
    if text.startswith(("{", "[")):
        return _BEYOND_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)
    if text.startswith(("<!doctype", "<?xml")):
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    return text


class _Stream:
    """A stream that writes to another stream, to which it passes all other methods."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="advisor.twins")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Output(_Stream):
    """Standard output. Its reader may go away (head, less), which is no error and ends us as it ends others; its disk may be full."""

    def write(self, text: str) -> int:
        with self._told():
            self._stream.write(no_command(text))
        return len(text)

    def flush(self) -> None:
        with self._told():
            self._stream.flush()

    @contextlib.contextmanager
    def _told(self) -> Any:
        try:
            yield
        except BrokenPipeError:
            self._let_go()
            raise SystemExit(141) from None
        except OSError as error:
            self._let_go()
            raise OutputError(f"standard output cannot be written: {error.strerror or error}", "Give a file with -o.") from None

    def _let_go(self) -> None:
        """What is left unwritten goes nowhere, or Python would try again, and fail again, as it ends."""
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


class Messages(_Stream):
    """Standard error of any writer: click, a warning of Python's, a path. (Progress bars, which steer the cursor, write to
    `sys.__stderr__`.) If it accepts nothing, messages are lost and the exit code stays."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(no_command(visible(text, lines=True)))
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._stream = open(os.devnull, "w")  # noqa: SIM115  as long as this


class _Closed(io.TextIOBase):
    """The replacement of a stream that was closed before the start (>&-)."""

    def write(self, text: str) -> int:
        raise OSError("it is closed")


def install() -> None:
    """Let all that is printed from here on pass through these."""
    sys.stdout = Output(sys.stdout or _Closed())
    sys.stderr = Messages(sys.stderr or _Closed())
