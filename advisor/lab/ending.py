"""Ends the recorded program after its last step."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def end_program() -> NoReturn:
    """Raises SystemExit. An event loop of this thread would print a traceback of the task that it ends, as of an error of the program."""
    if asyncio := sys.modules.get("asyncio"):  # a module that the program has not imported must not be loaded here
        with suppress(RuntimeError, AttributeError):
            _leave_out_the_end(asyncio.get_running_loop())
    raise SystemExit(0)


def _leave_out_the_end(loop: AbstractEventLoop) -> None:
    told = loop.get_exception_handler() or type(loop).default_exception_handler

    def tell(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), SystemExit):
            told(loop, context)

    loop.set_exception_handler(tell)
