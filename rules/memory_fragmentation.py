"""Reserved memory lies in pieces that no request fits."""

from __future__ import annotations

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.errors import Unavailable
from advisor.recordings.snapshot import Action
from advisor.report.finding import Clear, Code, Evidence, Fix
from advisor.report.numbers import size
from advisor.rules._memory import LEAST_BYTES, saved
from advisor.views.memory.attribution import Attribution
from advisor.views.memory.health import HISTORY
from advisor.views.memory.replay import MemoryReplay


@rule("memory-fragmentation", relies_on=("memory",))
def memory_fragmentation(attribution: Attribution, replay: MemoryReplay, *, min_share: float = 0.2, least_bytes: int = 4 * LEAST_BYTES) -> Outcome:
    """Reserved memory is in pieces that no request fits

    What
    The allocator holds much more memory than the program uses. Request sizes change from step to step and fit
    into none of the free blocks, so each request gets a new segment.

    Why
    The GPU is full although memory is free. Each new segment is a `cudaMalloc`. Once the GPU is full, a failed
    request frees all cached segments and starts again, while the GPU waits.

    How to fix
    Let segments grow, or pad lengths to a few sizes:

        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py

    When to ignore
    Nothing else needs the memory, and reserved memory no longer grows.

    How it is measured
    The recorded requests are replayed in a simulation of the caching allocator: first as recorded, then with
    expandable segments. The difference is the saving. The first replay must reproduce the recorded peak within
    2 %. The rule reports `min_share` ({min_share}) of the reserved peak and `least_bytes` ({least_bytes}) or more. Healthy
    programs lose up to a sixth to rounding and caching.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-envvars
    """
    device = attribution.device
    if not len(device.events):
        raise Unavailable("without events only current memory is known: free memory may be the cache of an earlier peak", HISTORY)
    peak = device.peak_reserved
    idle = peak - device.peak_allocated
    if replay.settings.expandable:
        return Clear(why=f"segments are expandable already; {size(max(idle, 0))} are reserved beyond the allocated peak")
    if idle < max(min_share * peak, least_bytes, 1):
        return Clear(why=f"{size(max(idle, 0))} of {size(peak)} are reserved beyond the allocated peak")
    after = replay.expandable
    expected = peak - after.reserved
    if expected - device.idle_start < max(min_share * peak, least_bytes, 1) <= expected:
        raise Unavailable(f"{size(device.idle_start)} of {size(peak)} were free before the first event: that may be the cache of an earlier peak", HISTORY)
    expected -= device.idle_start
    if expected < max(min_share * peak, least_bytes, 1):
        return Clear(why=f"expandable segments would free {size(max(expected, 0))} of {size(peak)} reserved")
    left = max(after.reserved - after.allocated, 0)
    saving = saved(peak, expected - left, expected, peak - device.idle_start - after.allocated, "segments that no request fits", "reserved")
    at = int(np.argmax(device.reserved))
    got = int((device.events.action[: at + 1] == Action.SEGMENT_ALLOC).sum())
    return Found(
        summary=f"{size(peak)} are reserved for a peak of {size(device.peak_allocated)} allocated; "
        f"expandable segments would need {size(peak - expected)} for the same requests.",
        confidence=0.9 if replay.fidelity < 0.02 else 0.6,
        saving=saving,
        evidence=(
            Evidence(
                label="segments when most was reserved", count=got, device=device.device, dur_us=0.0, bytes=peak,
                start_us=float(device.events.time_us[at] - device.events.time_us[0]) if len(device.events) else 0.0,
            ),
        ),
        fix=Fix(
            title="Let segments grow, or let sizes repeat",
            steps=(
                "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (newer versions call it PYTORCH_ALLOC_CONF and read both) before the program starts. Each stream then has a growing segment that is reused.",
                "Or pad batches to a few lengths (powers of two, multiples of 512), so that blocks fit again.",
                "Or run the largest batch first: later batches fit into its cached memory.",
            ),
            code=Code(before="python train.py", after="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py"),
            url="https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-envvars",
            risk="Memory shared with other processes by CUDA IPC may need expandable segments off.",
        ),
    )  # fmt: skip
