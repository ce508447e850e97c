"""The ranks of a job, from within a rank: its number, and how all ranks stop at the same step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from ..knowledge.patience import GRACE_S, HEARD_S

_STOP, _GO_ON = "stop", "go on"
_ARRIVED, _VERDICT, _HEARD = "advisor/arrived", "advisor/verdict", "advisor/heard"


def rank_and_world() -> tuple[int, int]:
    """This process's rank and how many there are: of torch's process group, else as launchers number them; (0, 1) if it is alone."""
    if _has_group():
        import torch.distributed as dist

        return dist.get_rank(), dist.get_world_size()
    try:
        rank, world = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
    except ValueError:
        return 0, 1
    return (rank, world) if world > 1 else (0, 1)


def all_stop(willing: bool) -> bool:
    """Whether every rank stops after this step: a rank that continued alone would wait for the others forever.

    Each rank says once whether it is willing. They agree through the store that formed the process group, so no collective of
    the program is affected. The first verdict counts for all: "stop" from the last rank to arrive, "go on" from a rank that is
    not willing or has waited for too long. Without a process group, a process decides for itself."""
    if not _has_group():
        return willing
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()

    def verdict(proposed: str) -> bool:
        return bool(store.compare_set(_VERDICT, "", proposed) == _STOP.encode())

    def seconds_until(come: Callable[[], bool], wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and not come():
            time.sleep(0.02)

    if not willing:
        return verdict(_GO_ON)
    world = dist.get_world_size()
    if store.add(_ARRIVED, 1) >= world:
        stop = verdict(_STOP)
    else:
        seconds_until(lambda: store.check([_VERDICT]), GRACE_S)
        stop = verdict(_GO_ON)
    heard = store.add(_HEARD, 1)
    if stop and heard < world and dist.get_rank() == 0:  # where the store mostly lives, which ends with its process
        seconds_until(lambda: store.add(_HEARD, 0) >= world, HEARD_S)
    return stop


def _has_group() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()
