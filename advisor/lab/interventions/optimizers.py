"""Optimizers that update all parameters at once, and gradients that are dropped instead of zeroed."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .applied import Applied

_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_FOREACH = (*_FUSED, "Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")


def fused(applied: Applied) -> None:
    """fused=True if the program has not chosen it, for each optimizer of torch.optim that has it."""
    _with_option(applied, "fused", _FUSED, ("foreach", "differentiable"))


def foreach(applied: Applied) -> None:
    """foreach=True if the program has turned it off, or torch has not chosen it."""
    _with_option(applied, "foreach", _FOREACH, ("differentiable",))


def _with_option(applied: Applied, option: str, names: tuple[str, ...], against: tuple[str, ...]) -> None:
    import torch

    for name in names:
        made = getattr(torch.optim, name, None)
        if made is not None and option in inspect.signature(made.__init__).parameters:
            made.__init__ = _constructing(made.__init__, applied, option, against)


def _constructing(init: Any, applied: Applied, option: str, against: tuple[str, ...]) -> Any:
    import torch

    signature = inspect.signature(init)

    @functools.wraps(init)
    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        named = type(self).__name__
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:  # the program's own error
            init(self, *args, **kwargs)
            return
        if given.get(option):
            applied.refuse(f"{named} is {option} already")
            init(self, *args, **kwargs)
            return
        if isinstance(given["params"], torch.Tensor):  # an error that torch says better
            init(self, *args, **kwargs)
            return
        groups = [_copied(group) for group in given["params"]]
        asked = {**{key: value for key, value in given.items() if key not in ("self", "params", "kwargs", *against)}, option: True}
        try:
            init(self, [_copied(group) for group in groups], **asked)
        except (RuntimeError, ValueError, TypeError) as error:
            applied.refuse(f"{named} cannot be {option} here: {str(error).splitlines()[0][:120]}")
            init(self, groups, **{key: value for key, value in given.items() if key not in ("self", "params")})
            return
        applied.note_line(f"{named}({option}=True)")

    return constructed


def _copied(group: Any) -> Any:
    """An optimizer writes its defaults into the groups that it is given."""
    if not isinstance(group, dict):
        return group
    params = group["params"]
    return {**group, "params": params if hasattr(params, "shape") else list(params)}


def drop_gradients(applied: Applied) -> None:
    """zero_grad drops gradients, even if the program asks for zeros."""
    import torch

    def dropping(zero_grad: Any, default: bool) -> Any:
        @functools.wraps(zero_grad)
        def zeroed(self: Any, set_to_none: bool = default) -> None:
            if not set_to_none:
                applied.note_line("zero_grad(set_to_none=True)")
            zero_grad(self, set_to_none=True)

        return zeroed

    torch.optim.Optimizer.zero_grad = dropping(torch.optim.Optimizer.zero_grad, True)  # type: ignore[method-assign]
    torch.nn.Module.zero_grad = dropping(torch.nn.Module.zero_grad, True)  # type: ignore[method-assign]
