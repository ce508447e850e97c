"""Batches: workers, pinned memory, copies without waits, and the time of a larger batch."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from .applied import Applied

MOST_WORKERS = 8
"""A dataloader that eight workers cannot feed rarely gains from more."""

Given = MutableMapping[str, Any]


def workers(applied: Applied) -> None:
    """Worker processes make the batches, pinned if there is a GPU. A run that compares numbers starts its workers again each epoch. Persistent
    workers skip a draw of the main process's random numbers, so later shuffles would differ."""

    def change(given: Given) -> str:
        if given.get("num_workers"):
            return f"the loader has {given['num_workers']} workers already"
        if why := _kept_here(given["dataset"]):
            return why
        given["num_workers"] = max(1, min(MOST_WORKERS, applied.cores - 1))
        given["persistent_workers"] = not applied.check
        if sys.platform == "linux" and given.get("multiprocessing_context") is None:
            given["multiprocessing_context"] = "fork"
        if _cuda():
            given["pin_memory"] = True
        applied.note_line(f"DataLoader(num_workers={given['num_workers']}, persistent_workers=True{', pin_memory=True' if _cuda() else ''})")
        return ""

    _constructing(applied, change)
    if _cuda():
        _unawaited(None)


def more_workers(applied: Applied) -> None:
    """Twice the workers, and twice the batches that each holds ready."""

    def change(given: Given) -> str:
        now = given.get("num_workers") or 0
        if not now:
            return "the loader has no workers"
        given["num_workers"] = max(now, min(2 * now, applied.cores))
        given["prefetch_factor"] = 2 * (given.get("prefetch_factor") or 2)
        given["persistent_workers"] = not applied.check
        applied.note_line(f"DataLoader(num_workers={given['num_workers']}, prefetch_factor={given['prefetch_factor']}, persistent_workers=True)")
        return ""

    _constructing(applied, change)


def pinned(applied: Applied) -> None:
    """Batches of dataloaders are pinned, and copies from pinned memory do not block."""

    def change(given: Given) -> str:
        if given.get("pin_memory"):
            return "the loader pins already"
        if why := _on_gpu(given["dataset"]):
            return why
        given["pin_memory"] = True
        applied.note_line("DataLoader(pin_memory=True)")
        return ""

    _constructing(applied, change)
    _unawaited(applied)


def unawaited(applied: Applied) -> None:
    """Copies from pinned memory are not waited for."""
    _unawaited(applied)


def larger_batch(applied: Applied) -> None:
    """Twice the batch: a what-if, since it is other training."""

    def change(given: Given) -> str:
        if not isinstance(given.get("batch_size", 1), int) or given.get("batch_sampler") is not None:
            return "the loader's sampler makes the batches"
        given["batch_size"] = 2 * given.get("batch_size", 1)
        applied.note_line(f"DataLoader(batch_size={given['batch_size']})")
        return ""

    _constructing(applied, change)


def _constructing(applied: Applied, change: Callable[[Given], str]) -> None:
    """Change the arguments of dataloaders; `change` returns the reason if it does not. A dataloader without a consumed batch does not count."""
    from torch.utils.data import DataLoader

    init = DataLoader.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:  # the program's own error
            init(self, *args, **kwargs)
            return
        changed = dict(given)
        if why := change(changed):
            applied.refuse(why)
            changed = dict(given)
        init(**changed)

    DataLoader.__init__ = constructed  # type: ignore[method-assign]


def _kept_here(dataset: Any) -> str:
    """Why a dataset cannot be read by workers, "" if it can."""
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset):
        return "the dataset is iterable: each worker would give all of its samples, unless it divides them itself"
    return _on_gpu(dataset)


def _on_gpu(dataset: Any) -> str:
    tensors = getattr(dataset, "tensors", ())
    return "the dataset lies on the GPU" if isinstance(tensors, (tuple, list)) and any(getattr(one, "is_cuda", False) for one in tensors) else ""


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _unawaited(applied: Applied | None) -> None:
    """`Tensor.to` and `.cuda` from pinned memory to a GPU do not wait. The source must not be overwritten before the copy is done. This cannot check that."""
    import torch

    def wrapped(copy: Any, goes: Callable[[tuple[Any, ...], dict[str, Any]], bool]) -> Any:
        @functools.wraps(copy)
        def copied(self: Any, *args: Any, **kwargs: Any) -> Any:
            if "non_blocking" not in kwargs and self.device.type == "cpu" and goes(args, kwargs) and self.is_pinned():
                kwargs["non_blocking"] = True
                if applied is not None:
                    applied.note_line("non_blocking=True")
            return copy(self, *args, **kwargs)

        return copied

    torch.Tensor.to = wrapped(torch.Tensor.to, _to_gpu)  # type: ignore[method-assign]
    torch.Tensor.cuda = wrapped(torch.Tensor.cuda, lambda args, kwargs: len(args) < 2)  # type: ignore[method-assign]


def _to_gpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    where = kwargs.get("device", args[0] if len(args) == 1 else None)  # more by position may say non_blocking themselves
    if isinstance(where, int):
        return True
    return str(where).startswith("cuda") if isinstance(where, str) or type(where).__name__ == "device" else bool(getattr(where, "is_cuda", False))
