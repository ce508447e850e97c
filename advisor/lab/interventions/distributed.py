"""Options of DistributedDataParallel."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .applied import Applied


def ddp(applied: Applied, **options: Any) -> None:
    """Options that the program has not chosen, as DDP is made."""
    from torch.nn.parallel import DistributedDataParallel

    init = DistributedDataParallel.__init__
    signature = inspect.signature(init)
    wanted = ", ".join(f"{key}={value}" for key, value in options.items())

    @functools.wraps(init)
    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            init(self, *args, **kwargs)
            return
        if all(given.get(key) == value for key, value in options.items()):
            applied.refuse(f"DDP has {wanted} already")
        else:
            given = {**given, **options}
            applied.note_line(f"DistributedDataParallel({wanted})")
        init(**given)

    DistributedDataParallel.__init__ = constructed  # type: ignore[method-assign]
