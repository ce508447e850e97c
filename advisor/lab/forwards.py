"""Finds the module with calls that are the steps of an inference program."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .module_calls import watch

if TYPE_CHECKING:
    from torch.nn import Module

FORWARDS = 10
"""Calls of outermost modules without gradients after which a program without an optimizer is taken for inference. Calls of `backward` after which it
is taken for one that updates its parameters itself: an optimizer is made sooner."""


class OutermostForwards:
    """Watches the calls of modules that no other module calls, and names the module with the most time."""

    def __init__(self, found: Callable[[Module], None]) -> None:
        self._found = found
        self._seconds: dict[int, float] = {}
        self._calls = 0
        self.stop = watch(self._entered)
        """Watch no longer."""

    def _entered(self, module: Module) -> Callable[[], None] | None:
        import torch

        if torch.is_grad_enabled():
            return None
        start = time.perf_counter()

        def left() -> None:
            self._seconds[id(module)] = self._seconds.get(id(module), 0.0) + time.perf_counter() - start
            self._calls += 1
            if self._calls >= FORWARDS and id(module) == max(self._seconds, key=self._seconds.__getitem__):
                self.stop()
                self._found(module)

        return left
