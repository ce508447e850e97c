"""The mean time of a call, plainly: no flush, no statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from advisor.errors import UsageError, require
from advisor.lab.bench import host_times, waited_for
from advisor.lab.clock import device_in_use, synchronize


def benchmark_function(fn: Callable[..., object], args: Sequence[Any], warmup: int, iterations: int) -> float:
    """Mean seconds of `iterations` calls of `fn(*args)`, waited for each, after `warmup` calls (compilation included)."""
    if iterations < 1:
        raise UsageError(f"{iterations} calls have no mean", "Give 1 iteration or more.")
    require("torch", extra="lab")
    call = waited_for(fn, args, "cpu")
    for _ in range(warmup):
        call()
    # The device is known once the function has run.
    call = waited_for(fn, args, device_in_use())
    if not warmup:
        synchronize(device_in_use())
    return float(np.mean(host_times(call, iterations)))


def benchmark_fn(fn: Callable[..., object], args: Sequence[Any], num_warmup: int = 5, num_runs: int = 100) -> float:
    """The same for JAX: every array of the result, whatever its tree, is waited for (`jax.block_until_ready`)."""
    if num_runs < 1:
        raise UsageError(f"{num_runs} calls have no mean", "Give 1 run or more.")
    call = waited_for(fn, args, "jax")
    for _ in range(num_warmup):
        call()
    return float(np.mean(host_times(call, num_runs)))
