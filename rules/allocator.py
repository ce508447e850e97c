"""Device memory is allocated and freed inside the step."""

from __future__ import annotations

import re

import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.knowledge import cuda_api
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear
from advisor.report.numbers import duration
from advisor.report.wording.period import PER_STEP, THE_STEP
from advisor.rules import _phrases as phrases
from advisor.rules.fixes import allocating, for_program
from advisor.views.memory.attached_snapshot import MemoryBeside
from advisor.views.patterns import allocation_loops
from advisor.views.replay.edits import Edits, WithDispatch, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.replay import Replay
from advisor.views.time.device_time import Partition
from advisor.views.trace import table_filters
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program
from advisor.views.trace.steps import Steps

_EMPTIES = re.compile(r": empty_cache$|_cuda_emptyCache")


@rule("allocator", relies_on=("host",), min_saving_share=0.03)
def allocator(
    timeline: Timeline,
    steps: Steps,
    work: GpuWork,
    calls: HostCalls,
    replay: Replay,
    partition: Partition,
    witness: Witness,
    program: Program,
    beside: MemoryBeside | None,
    *,
    min_per_step: float = 2.0,
) -> Outcome:
    """Device memory is allocated and freed inside the step

    What
    `cudaMalloc`, `cudaFree` or `cudaHostAlloc` run in every step, although PyTorch's caching allocator could
    reuse memory. Usual causes are `torch.cuda.empty_cache()` in the loop, memory that is nearly full or
    fragmented, and host memory that is pinned for each batch.

    Why
    `cudaFree` waits until the whole GPU is idle. `cudaMalloc` takes 100 µs and more, and pinning memory takes
    milliseconds. The host launches nothing meanwhile.

    How to fix
    Remove `empty_cache()` from the loop, and pin buffers once:

        # before: inside the loop
        torch.cuda.empty_cache()
        batch = batch.pin_memory().cuda()

        # after: pinned by the dataloader's workers
        loader = DataLoader(dataset, pin_memory=True)

    If changing shapes fragment memory, set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, pad to a few
    sizes, or reduce the batch.

    When to ignore
    Another process needs the memory between steps.

    How it is measured
    The rule counts allocating and freeing calls on the launching threads. It reports `min_per_step` ({min_per_step}) or
    more per step. The replay removes the calls and the waits in them. The saving is at most the GPU's idle
    time. Savings below `min_saving_share` ({min_saving_share}) of the step are not reported.

    | Estimate | Assumption |
    |---|---|
    | `low` | half of the calls remain |
    | `high` | exposed copies and communication shrink too |

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management
    https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
    """
    chosen = np.flatnonzero(calls.with_role(cuda_api.ApiRole.ALLOCATION))
    if not steps.repeats:
        chosen = allocation_loops.looped(work, calls, chosen)
    per_step = len(chosen) / work.schedule.steps
    if per_step < min_per_step or not len(chosen):
        return Clear(
            why=f"{phrases.a_step(per_step, 'call', 'allocate or free', 'allocates or frees')} device memory (threshold {min_per_step:.0f})"
            if len(chosen)
            else "no call in the window allocates or frees device memory" + ("" if steps.repeats else " again and again")
        )
    emptying = table_filters.matches(timeline.python_calls, _EMPTIES)
    wrapped = WithDispatch(replay.uncovered_share(table_filters.spans_of(timeline.python_calls, emptying)))
    gone = combine(WithoutWaits(chosen), wrapped)
    names = calls.names(chosen)
    evidence = witness.of_calls(calls.rows[chosen], names)
    idle_us, alone_us = allocation_loops.lost_us(partition.main, steps)
    return Found(
        title=f"Memory is allocated and freed inside {THE_STEP}",
        summary=f"{phrases.a_step(per_step, 'call', 'hold')} the host to allocate or free memory, "
        f"{duration(calls.us_a_step(chosen))} {PER_STEP} as recorded, {phrases.led_by(evidence)}."
        + (f" The snapshot says why: {beside.why}." if beside and beside.why else ""),
        edits=Edits(WithoutWaits(chosen[::2]), gone, gone),
        removes="allocating and freeing, and the waits in it",
        at_most_us=idle_us + alone_us,
        likely_at_most_us=idle_us,
        quiet=f"{phrases.a_step(per_step, 'call', 'allocate or free', 'allocates or frees')} memory",
        evidence=evidence,
        confidence=0.85,
        fix=allocating.explained(for_program(program, "allocator", allocating.keep_memory(names, bool(emptying.any()))), beside),
    )
