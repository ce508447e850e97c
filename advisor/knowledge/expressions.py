"""Regular expressions that are compiled at their first use: modules define hundreds, and an analysis uses a third of them."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class Expression:
    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self.pattern, self.flags), name)
        setattr(self, name, value)  # the next look-up finds it without this function
        return value


def expression(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """`re.compile` on first use, for constants of modules."""
    return cast("re.Pattern[AnyStr]", Expression(pattern, flags))


_BEGINNING = re.compile(rb"(?:\\s\*|(?:\\[^\w]|[^\\.^$*+?{}\[\]|()])(?![*+?{]))*")
_EITHER = re.compile(rb"(?:\\.|[^\\(\[|])*\|")


def beginning(pattern: bytes) -> bytes:
    """The common beginning of all matches, without blanks; empty if it is not plain. For a text with another beginning the pattern need not be compiled."""
    found = None if _EITHER.match(pattern) else _BEGINNING.match(pattern)
    return re.sub(rb"\\(\W)", rb"\1", b"".join(found[0].replace(rb"\s*", b"").split())) if found else b""
