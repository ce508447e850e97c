"""Host work besides launching: waits, the allocator's cache, garbage collection, threads."""

from __future__ import annotations

import functools
import gc
from typing import Any

from .applied import Applied


def no_empty_cache(applied: Applied) -> None:
    """torch.cuda.empty_cache does nothing."""
    import torch

    for place in (torch.cuda, torch.cuda.memory):
        _no_operation(applied, place, "empty_cache")


def no_synchronize(applied: Applied) -> None:
    """torch.cuda.synchronize and Stream.synchronize do nothing. The program's own timings are then wrong, but not its results, since reads of them wait."""
    import torch

    _no_operation(applied, torch.cuda, "synchronize")
    _no_operation(applied, torch.cuda.Stream, "synchronize")


def no_collection(applied: Applied) -> None:
    """gc.collect does nothing, and Python no longer searches for cycles; existing objects are never visited again."""
    _no_operation(applied, gc, "collect", 0)
    if gc.isenabled():
        gc.freeze()
        gc.disable()
        applied.count += 1
    enable = gc.enable
    gc.enable = lambda: None
    applied.finish.append(lambda: setattr(gc, "enable", enable))


def _no_operation(applied: Applied, place: Any, name: str, result: Any = None) -> None:
    was = getattr(place, name)

    @functools.wraps(was)
    def no_operation(*_: Any, **__: Any) -> Any:
        applied.note_line(f"no {name}")
        return result

    setattr(place, name, no_operation)


def threads(applied: Applied) -> None:
    """As many threads for the CPU's ops as the process has cores."""
    import torch

    if torch.get_num_threads() == applied.cores:
        applied.refuse(f"torch uses {applied.cores} threads already, as many as there are cores")
        return
    torch.set_num_threads(applied.cores)
    applied.note_line(f"torch.set_num_threads({applied.cores})")


def environment(applied: Applied, **variables: str) -> None:
    """Its environment was set before the program began: here it is only confirmed that a GPU's allocator is there to read it."""
    import torch

    def used() -> None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            applied.count += 1
        else:
            applied.refuse("the program allocated nothing on a GPU")

    applied.finish.append(used)
