"""Finds the module with calls that are the steps of an inference program."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module

FORWARDS = 10
"""Calls of outermost modules without gradients after which a program without an optimizer is taken for inference. Calls of `backward` after which it
is taken for one that updates its parameters itself: an optimizer is made sooner."""


class OutermostForwards:
    """Watches the calls of modules that no other module calls, and names the module with the most time.

    A hook on all modules would cost each of them, and torch.compile would compile for it. So the hook exists only while no module runs."""

    def __init__(self, found: Callable[[Module], None]) -> None:
        self._found = found
        self._seconds: dict[int, float] = {}
        self._calls = 0
        self._stopped = False
        self._arm()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped = True
        self._entry.remove()

    def _arm(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._entry = register_module_forward_pre_hook(self._entered)

    def _entered(self, module: Module, args: Any) -> None:
        import torch

        self._entry.remove()
        start, counts = time.perf_counter(), not torch.is_grad_enabled()

        def left(*_: Any) -> None:
            handle.remove()
            if self._stopped:
                return
            if counts:
                self._seconds[id(module)] = self._seconds.get(id(module), 0.0) + time.perf_counter() - start
                self._calls += 1
                if self._calls >= FORWARDS and id(module) == max(self._seconds, key=self._seconds.__getitem__):
                    self.stop()
                    self._found(module)
                    return
            self._arm()

        handle = module.register_forward_hook(left, always_call=True)
