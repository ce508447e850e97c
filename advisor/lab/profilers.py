"""The profilers of this process. torch takes one at a time, a second one in the same thread ends the program, and what one records it slows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakSet

Started: TypeAlias = Callable[[Any], None]
"""Told of a `torch.autograd.profiler.profile`, which every profiler of torch works with, before it warms up or records."""

_running: WeakSet[Any] = WeakSet()
_told: list[Started] = []


def watch(started: Started) -> None:
    """Call `started` when a profiler starts, until `unwatch`. torch tells nobody, so its methods are wrapped."""
    from torch.autograd.profiler import profile

    if not getattr(profile, "tells_advisor", False):
        profile._prepare_trace = _telling(profile._prepare_trace)  # type: ignore[method-assign]
        profile._start_trace = _telling(profile._start_trace)  # type: ignore[method-assign]
        profile.__exit__ = _forgetting(profile.__exit__)  # type: ignore[method-assign]
        profile.tells_advisor = True  # type: ignore[attr-defined]
    if started not in _told:
        _told.append(started)


def unwatch(started: Started) -> None:
    """Call `started` no longer."""
    if started in _told:
        _told.remove(started)


def running() -> bool:
    """Whether a profiler records in this thread, or one that was seen to start has not ended."""
    import torch

    return bool(torch.autograd._profiler_enabled()) or len(_running) > 0  # type: ignore[attr-defined]


def end_all() -> None:
    """End those that still run in this process, which is ended before its program ends them: torch does not survive one that is left on."""
    for one in tuple(_running):
        one.__exit__(None, None, None)


def _telling(method: Callable[[Any], None]) -> Callable[[Any], None]:
    def start(self: Any) -> None:
        for started in tuple(_told):
            started(self)
        method(self)
        _running.add(self)

    return start


def _forgetting(method: Callable[..., Any]) -> Callable[..., Any]:
    def end(self: Any, *error: Any) -> Any:
        _running.discard(self)
        return method(self, *error)

    return end
