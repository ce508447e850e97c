"""torch.compile of the outermost modules, in place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from .applied import Applied
from .outermost import compiled_by_the_program, wrap_outermost


def compile_model(applied: Applied, mode: str | None = None, dynamic: bool | None = None) -> None:
    """Each outermost module's call is compiled. A run that compares numbers draws dropout's random numbers as eager code does."""
    import torch

    def wrap(module: Any, call: Callable[..., Any]) -> Callable[..., Any] | None:
        if compiled_by_the_program(module):
            applied.refuse("the program has compiled it already")
            return None
        if applied.check:
            import torch._inductor.config as config

            config.fallback_random = True
        applied.note_module(module)
        compiled = torch.compile(module.forward, mode=mode, dynamic=dynamic)
        begin = torch.compiler.cudagraph_mark_step_begin if mode == "reduce-overhead" else lambda: None
        own = vars(module).get("forward")

        def called(*args: Any, **kwargs: Any) -> Any:
            # Only while it runs, so that whoever copies or saves the module finds it as it was; its hooks run around what is compiled.
            begin()
            vars(module)["forward"] = compiled
            try:
                return call(*args, **kwargs)
            finally:
                vars(module).pop("forward", None)
                if own is not None:
                    vars(module)["forward"] = own

        return called

    wrap_outermost(wrap)
    applied.finish.append(partial(_only_where_graphs_were_made, applied))


def _only_where_graphs_were_made(applied: Applied) -> None:
    """Nothing was compiled if the compiler made no graph."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    if applied.count and not counters.get("stats", {}).get("unique_graphs"):
        applied.count = 0
        applied.refuse("the compiler made no graph of it")
