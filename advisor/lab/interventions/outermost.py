"""Changes the call of a model from outside: each module that the program calls first, and that no other module calls, gets a wrapper.

`torch.nn.Module` checks in each call whether it was compiled in place (`_compiled_call_impl`). A function in that attribute runs around the module's
own call, costs other modules nothing, and is not part of its state, copies and pickles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Wrap = Callable[[Any, Callable[..., Any]], "Callable[..., Any] | None"]
"""Returns the new function to call, given a module and its present function; None if nothing changes."""

_LOOKS: list[_Look] = []


class _Look:
    """Watches module calls until the first steps are over, and passes each outermost module with parameters to its subscribers."""

    def __init__(self) -> None:
        self._wraps: list[Wrap] = []
        self._seen: set[int] = set()
        self.held: list[Any] = []  # or another module could get the id of one that is gone
        self._depth = threading.local()
        self._was: Any = None
        self.compiled: set[int] = set()
        """Modules that the program has compiled in place."""

    def ask(self, wrap: Wrap) -> None:
        import torch

        self._wraps.append(wrap)
        if self._was is None:
            self._was = torch.nn.Module.__call__
            torch.nn.Module.__call__ = self._calling(self._was)  # type: ignore[method-assign]

    def stop_watching(self) -> None:
        import torch

        if self._was is not None:
            torch.nn.Module.__call__ = self._was  # type: ignore[method-assign]
            self._was = None

    def _calling(self, call: Any) -> Any:
        import torch

        inside = self._depth

        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or getattr(inside, "any", False):
                return call(module, *args, **kwargs)
            inside.any = True
            try:
                if id(module) not in self._seen:
                    self._found(module)
                return call(module, *args, **kwargs)
            finally:
                inside.any = False

        return called

    def _found(self, module: Any) -> None:
        self._seen.add(id(module))
        self.held.append(module)
        if next(module.parameters(), None) is None:  # a loss or an activation
            return
        if module._compiled_call_impl is not None:
            self.compiled.add(id(module))
        for wrap in self._wraps:
            before = module._compiled_call_impl or module._call_impl
            after = wrap(module, before)
            if after is not None:
                module._compiled_call_impl = after


def wrap_outermost(wrap: Wrap) -> None:
    """Ask for each outermost module, at its first call."""
    if not _LOOKS:
        _LOOKS.append(_Look())
    _LOOKS[0].ask(wrap)


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
