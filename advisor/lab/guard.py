"""The guard between a program and advisor's code inside it: an error of advisor ends the recording, and never the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import AdvisorError

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep


class Guard:
    """Calls advisor's code. After the first error it calls nothing more, and passes that error to `failed`."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self.broken = False
        self._failed = failed

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """The result of the work; None if it fails, or an earlier call has failed. An error of the program passes through, and stops advisor too."""
        if self.broken:
            return None
        try:
            return work(*arguments)
        except BaseException as error:
            self.broken = True
            with suppress(Exception):  # it may not even be possible to tell
                self._failed(error)
            if not isinstance(error, Exception) or is_the_programs(error.__traceback__):
                raise
            return None


def is_the_programs(trace: TracebackType | None) -> bool:
    """Whether an error was raised in code that is neither ours nor torch's nor Python's own.

    While our code runs, no other of this thread's does, but for handlers of signals: an alarm that ends a program by raising has to.
    """
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    begun_by = (os.path.dirname(torch) + os.sep, "<frozen ") if torch else ("<frozen ",)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        python = file.startswith(_PYTHON) and "-packages" + os.sep not in file
        if not python and not os.path.realpath(file).startswith(_OURS) and not file.startswith(begun_by):
            return True
        trace = trace.tb_next
    return False


def said_of(error: BaseException) -> str:
    """The text of an error, with its kind if that adds information."""
    if isinstance(error, OSError) and error.strerror:
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror}"
    return error.message if isinstance(error, AdvisorError) else f"{type(error).__name__}: {error}"
