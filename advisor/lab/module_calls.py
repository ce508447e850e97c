"""Calls of modules that no other module calls, seen from around them.

If a module is compiled in place (`module.compile()`), torch.compile traces its hooks, and would compile our code with it. So nothing here is a hook.
`Module.__call__` and a module's `_compiled_call_impl` run around compiled code. The latter belongs to no state, copy or pickle of the module."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module

Entered = Callable[["Module"], "Callable[[], None] | None"]
"""Called with a module before its call. Returns what to call after it."""

_WATCHING: list[Entered] = []
_inside = threading.local()


def watch(entered: Entered) -> Callable[[], None]:
    """Call `entered` before each call of an outermost module. Returns what ends that. Once nobody watches, calls are torch's own."""
    import torch

    if not _WATCHING:
        _replace(torch.nn.Module.__call__)
    _WATCHING.append(entered)

    def stop() -> None:
        if entered in _WATCHING:
            _WATCHING.remove(entered)
            if not _WATCHING and hasattr(torch.nn.Module.__call__, "watches"):
                torch.nn.Module.__call__ = torch.nn.Module.__call__.watches  # type: ignore[method-assign]

    return stop


def _replace(call: Any) -> None:
    import torch

    def called(module: Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or getattr(_inside, "any", False):
            return call(module, *args, **kwargs)
        _inside.any, left = True, []
        try:
            left += [then for entered in [*_WATCHING] if (then := entered(module))]
            return call(module, *args, **kwargs)
        finally:
            _inside.any = False
            for then in left:
                then()

    called.watches = call  # type: ignore[attr-defined]
    torch.nn.Module.__call__ = called  # type: ignore[method-assign]


def wrap(module: Module, around: Callable[[Callable[..., Any]], Callable[..., Any] | None]) -> Callable[[], None]:
    """Replace the module's own call by what `around` makes of it, unless that is None. Returns what undoes that."""
    own = vars(module)  # a module that torch.compile returned hands attributes on to the one that it compiled
    before = own.get("_compiled_call_impl")
    own["_compiled_call_impl"] = around(before or module._call_impl) or before

    def undo() -> None:
        own["_compiled_call_impl"] = before

    return undo
