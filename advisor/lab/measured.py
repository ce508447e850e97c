"""The code that is measured: what fails in it is its own, and no error of advisor's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from advisor.errors import AdvisorError, Terminated, UsageError

_MARK = "raised in measured code"


@contextmanager
def theirs() -> Iterator[None]:
    """Wraps calls of measured code, outside of the timed part: marks exceptions of that code, and re-raises them."""
    try:
        yield
    except (AdvisorError, Terminated):
        raise
    except (Exception, SystemExit) as error:
        vars(error)[_MARK] = True
        raise


def is_theirs(error: BaseException) -> bool:
    """Whether measured code raised this error."""
    return _MARK in vars(error)


def ran(result: object) -> None:
    """Raises UsageError if a call only made a generator or coroutine: its work begins when it is consumed."""
    if isinstance(result, (Generator, AsyncGenerator, Coroutine)):
        if isinstance(result, (Generator, Coroutine)):
            result.close()  # else Python warns that nobody awaited it
        what = "coroutine" if isinstance(result, Coroutine) else "generator"
        raise UsageError(f"the call returns a {what} and has not run", "Give a function that does the work itself: list(f()) or asyncio.run(f()) in it.")


def made(make: Callable[[Any], Callable[[], object]], size: object) -> Callable[[], object]:
    """The function that is timed at a size. Raises UsageError if none was made."""
    with theirs():
        fn = make(size)
    if not callable(fn):
        raise UsageError(f"the result for {size} is no function: {type(fn).__name__}", "Return a function without parameters, to be timed.")
    return fn
