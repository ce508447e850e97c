"""The profilers of this process. Torch allows a single profiler at a time: a second profiler in the same thread ends the program, and both slow each other."""

from __future__ import annotations

from collections.abc import Callable, MutableSet
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakSet

Started: TypeAlias = Callable[[Any], None]
"""Receives each `torch.autograd.profiler.profile`, which every profiler of torch uses, before it warms up or records."""


@dataclass
class _Seen:
    """State of a process. It is an attribute of torch's own class, because this module may be loaded twice: as the program imports it, and in the
    private package of `advisor record`."""

    running: MutableSet[Any] = field(default_factory=WeakSet)
    told: list[Started] = field(default_factory=list)
    recordings: MutableSet[Any] = field(default_factory=WeakSet)
    """Recordings that are not over."""


def seen() -> _Seen:
    """State of this process. From the first call on, its profilers are watched. Torch has no callback, so their methods are wrapped."""
    from torch.autograd.profiler import profile

    known: _Seen | None = vars(profile).get("seen_by_advisor")
    if known is None:
        known = profile.seen_by_advisor = _Seen()  # type: ignore[attr-defined]
        profile._prepare_trace = _telling(profile._prepare_trace, known)  # type: ignore[method-assign]
        profile._start_trace = _telling(profile._start_trace, known)  # type: ignore[method-assign]
        profile.__exit__ = _forgetting(profile.__exit__, known)  # type: ignore[method-assign]
    return known


def watch(started: Started) -> None:
    """Call `started` when a profiler starts, until `unwatch`."""
    told = seen().told
    if started not in told:
        told.append(started)


def unwatch(started: Started) -> None:
    """Call `started` no longer."""
    told = seen().told
    if started in told:
        told.remove(started)


def running() -> bool:
    """Whether a profiler records in this thread, or a started profiler has not ended."""
    import torch

    return bool(torch.autograd._profiler_enabled()) or len(seen().running) > 0  # type: ignore[attr-defined]


def end_all() -> None:
    """End all running profilers of this process before it ends: torch does not survive a running profiler."""
    for one in tuple(seen().running):
        one.__exit__(None, None, None)


def forget() -> None:
    """In a process that forked from a recording process: the parent's profilers do not run here."""
    known = seen()
    known.running.clear()
    known.told.clear()
    known.recordings.clear()


def _telling(method: Callable[[Any], None], known: _Seen) -> Callable[[Any], None]:
    def start(self: Any) -> None:
        for started in tuple(known.told):
            started(self)
        method(self)
        known.running.add(self)

    return start


def _forgetting(method: Callable[..., Any], known: _Seen) -> Callable[..., Any]:
    def end(self: Any, *error: Any) -> Any:
        known.running.discard(self)
        return method(self, *error)

    return end
