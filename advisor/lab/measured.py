"""The code that is measured: what fails in it is its own, and no error of advisor's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from advisor.errors import AdvisorError, Terminated, UsageError

_MARK = "raised in measured code"


@contextmanager
def theirs() -> Iterator[None]:
    """Around calls of what is measured, outside of what is timed: marks what they raise, which passes on as it is."""
    try:
        yield
    except (AdvisorError, Terminated):
        raise
    except (Exception, SystemExit) as error:
        vars(error)[_MARK] = True
        raise


def is_theirs(error: BaseException) -> bool:
    """Whether an error was raised in what is measured."""
    return _MARK in vars(error)


def made(make: Callable[[Any], Callable[[], object]], size: object) -> Callable[[], object]:
    """The function that is timed at a size. Raises UsageError where none was made."""
    with theirs():
        fn = make(size)
    if not callable(fn):
        raise UsageError(f"what was made for {size} is no function: {type(fn).__name__}", "Return what is to be timed: a function without arguments.")
    return fn
