"""Changes the call of a model from outside: each module that the program calls first, and that no other module calls, gets a wrapper. It costs other
modules nothing, and is not part of the module's state, copies and pickles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..module_calls import watch, wrap

Wrap = Callable[[Any, Callable[..., Any]], "Callable[..., Any] | None"]
"""Returns the new function to call, given a module and its present function; None if nothing changes."""

_LOOKS: list[_Look] = []


class _Look:
    """Watches module calls until the first steps are over, and passes each outermost module with parameters to its subscribers."""

    def __init__(self) -> None:
        self.wraps: list[Wrap] = []
        self._seen: set[int] = set()
        self.held: list[Any] = []  # or another module could get the id of one that is gone
        self.compiled: set[int] = set()
        """Modules that the program has compiled in place."""
        self.stop_watching = watch(self._entered)

    def _entered(self, module: Any) -> None:
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        self.held.append(module)
        if next(module.parameters(), None) is None:  # a loss or an activation
            return
        if module._compiled_call_impl is not None:
            self.compiled.add(id(module))
        for one in self.wraps:
            wrap(module, partial(one, module))


def wrap_outermost(wrap: Wrap) -> None:
    """Ask for each outermost module, at its first call."""
    if not _LOOKS:
        _LOOKS.append(_Look())
    _LOOKS[0].wraps.append(wrap)


def compiled_by_the_program(module: Any) -> bool:
    """Whether the program had compiled an outermost module before it was called, or a module inside of it."""
    return any(id(module) in look.compiled for look in _LOOKS) or any(type(one).__name__ == "OptimizedModule" for one in module.modules())


def parameters() -> int:
    """Elements of the parameters of all outermost modules that were seen."""
    return sum(p.numel() for p in {id(p): p for look in _LOOKS for module in look.held for p in module.parameters()}.values())


def stop_watching() -> None:
    """The first steps are over: calls of modules are watched no longer."""
    for look in _LOOKS:
        look.stop_watching()
