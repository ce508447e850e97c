"""The collector of cycles, stopped while much is made of which little is garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection of cycles inside. It takes a tenth of an analysis or of imports and half of unpickling, and finds nothing there."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """The same for objects that stay until the process ends, such as modules: later collections skip them too. For commands, not for the library."""
    with uncollected():
        yield
        gc.freeze()
