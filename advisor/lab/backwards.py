"""Finds the steps of a program that trains without torch's optimizers: its calls of `backward`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Backwards:
    """Watches `torch.autograd.backward`, and calls `ended` after each call that comes after the first `least`."""

    def __init__(self, ended: Callable[[], None], least: int) -> None:
        import torch

        self._calls = 0
        self._stopped = False
        self._plain = plain = torch.autograd.backward

        @functools.wraps(plain)
        def backward(*args: Any, **kwargs: Any) -> None:
            plain(*args, **kwargs)
            self._calls += 1
            if not self._stopped and self._calls > least:
                ended()

        self._own = torch.autograd.backward = backward

    def stop(self) -> None:
        """Watch no longer."""
        import torch

        self._stopped = True
        if torch.autograd.backward is self._own:
            torch.autograd.backward = self._plain
