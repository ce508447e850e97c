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
