"""Allocating and freeing in a loop, and what the device loses by it."""

from __future__ import annotations

import numpy as np

from advisor.intervals import Ints
from advisor.knowledge import cuda_api
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.time.device_time import DevicePartition, total
from advisor.views.trace.repeats import ONE_BY_ONE
from advisor.views.trace.steps import Steps


def lost_us(main: DevicePartition | None, steps: Steps) -> tuple[float, float]:
    """Time per step in which the device idles, or only communicates or copies: it could compute then if the host were not blocked."""
    if main is None:
        return 0.0, 0.0
    return float(total(main.idle).sum()) / steps.steps, float(total(main.communication).sum() + total(main.copy).sum()) / steps.steps


def looped(work: GpuWork, calls: HostCalls, chosen: Ints) -> Ints:
    """Of allocating and freeing calls, those between the first and the last launch of a kernel that is launched as often as memory
    is given back in between; none if no kernel is."""
    names = work.column("name").codes[work.kernel]
    launched = work.schedule.op_call[work.kernel]
    freeing = chosen[[bool(cuda_api.RETURNS.search(name)) for name in calls.names(chosen)]] if len(chosen) else chosen
    inside = np.zeros(len(chosen), bool)
    for name in np.unique(names):
        at = np.sort(launched[names == name])
        if len(at) < ONE_BY_ONE:
            continue
        # Freed between two launches of the kernel, and that in most of its rounds.
        rounds = np.unique(np.searchsorted(at, freeing))
        if np.count_nonzero((rounds > 0) & (rounds < len(at))) >= max(ONE_BY_ONE, (len(at) - 1) / 2):
            inside |= (chosen > at[0]) & (chosen < at[-1])
    return chosen[inside]
