"""Device memory is allocated and freed inside the step."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from advisor.engine.rule import Found, Outcome, rule
from advisor.intervals import Ints
from advisor.knowledge import cuda_api
from advisor.recordings.timeline import Timeline
from advisor.report.finding import Clear, Code, Fix
from advisor.report.numbers import duration
from advisor.rules._phrases import a_step, led_by
from advisor.rules.fixes import for_program
from advisor.views.memory.attached_snapshot import MemoryBeside
from advisor.views.replay.edits import Edits, WithDispatch, WithoutWaits, combine
from advisor.views.replay.gpu_work import GpuWork
from advisor.views.replay.host_calls import HostCalls
from advisor.views.replay.replay import Replay
from advisor.views.time.device_time import DevicePartition, Partition, total
from advisor.views.trace.evidence import Witness
from advisor.views.trace.program import Program
from advisor.views.trace.repeats import ONE_BY_ONE
from advisor.views.trace.steps import Steps
from advisor.views.trace.table_filters import matches, spans_of

_PINS = re.compile(r"(HostAlloc|HostMalloc|MallocHost|HostRegister|MemAllocHost|MemHostAlloc)")
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

    What it is
    `cudaMalloc`, `cudaFree` or `cudaHostAlloc` run in every step, although PyTorch's caching allocator exists to reuse
    memory without them: `torch.cuda.empty_cache()` in the loop, memory so full or so fragmented that the allocator
    gives blocks back and asks again, or host memory that is pinned anew for each batch.

    Why it costs time
    `cudaFree` waits until the whole device is idle, `cudaMalloc` takes some 100 µs and more, and pinning host memory
    takes milliseconds. Nothing is launched meanwhile.

    How it is measured
    Allocating and freeing calls of the runtime and driver on the threads that launch, inside the window. The step is
    replayed without them and what they wait for (`low`: the calls' own time stays for every second one), which gains no more than the device idles
    (`high`: nor communicates or copies alone). Reported where
    there are at least `min_per_step` of them a step ({min_per_step}: a growing cache still settles with the odd one) and the step
    gains `min_saving_share` ({min_saving_share}). In a recording without steps only calls between launches of one and the same
    kernel count, and only where memory is given back there again and again: a cache that fills frees nothing. A memory
    snapshot of the same program, given with `--memory`, says why the allocator
    asks: a cache that is emptied, requests that failed, a buffer that is copied to grow, or sizes that do not come again.

    How to fix it
    Remove `empty_cache()` from the loop. Where memory is fragmented by changing shapes, set
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, pad to a few sizes, or lower the batch. Pin buffers once.

    When to ignore it
    When another process needs the memory between steps.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management
    https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
    """
    chosen = np.flatnonzero(calls.of(cuda_api.ApiRole.ALLOCATION))
    if not steps.repeats:
        chosen = _looped(work, calls, chosen)
    per_step = len(chosen) / work.schedule.steps
    if per_step < min_per_step or not len(chosen):
        return Clear(
            why=f"{a_step(per_step, 'call', 'allocate or free', 'allocates or frees')} device memory; reported from {min_per_step:.0f}"
            if len(chosen)
            else "no call in the window allocates or frees device memory" + ("" if steps.repeats else " again and again")
        )
    emptying = matches(timeline.python_calls, _EMPTIES)
    wrapped = WithDispatch(replay.outside(spans_of(timeline.python_calls, emptying)))
    gone = combine(WithoutWaits(chosen), wrapped)
    names = calls.names(chosen)
    evidence = witness.of_calls(calls.rows[chosen], names)
    idle_us, alone_us = _lost_us(partition.main, steps)
    return Found(
        title="Memory is allocated and freed inside the step",
        summary=f"{a_step(per_step, 'call', 'hold')} the host to allocate or free memory, "
        f"{duration(calls.us_a_step(chosen))} a step as recorded, {led_by(evidence)}."
        + (f" The snapshot says why: {beside.why}." if beside and beside.why else ""),
        edits=Edits(WithoutWaits(chosen[::2]), gone, gone),
        removes="allocating and freeing, and the waits in it",
        at_most_us=idle_us + alone_us,
        likely_at_most_us=idle_us,
        quiet=f"{a_step(per_step, 'call', 'allocate or free', 'allocates or frees')} memory",
        evidence=evidence,
        confidence=0.85,
        fix=_explained(for_program(program, "allocator", _fix(names, bool(emptying.any()))), beside),
    )


def _lost_us(main: DevicePartition | None, steps: Steps) -> tuple[float, float]:
    """For how long the device idles a step, and for how long it communicates or copies alone: what it might do beside computing, were the host not held."""
    if main is None:
        return 0.0, 0.0
    return float(total(main.idle).sum()) / steps.steps, float(total(main.communication).sum() + total(main.copy).sum()) / steps.steps


def _looped(work: GpuWork, calls: HostCalls, chosen: Ints) -> Ints:
    """Of allocating and freeing calls, those between the first and the last launch of a kernel that is launched as often as memory
    is given back in between; none where no kernel is."""
    names = work.column("name")[work.kernel].astype(str)
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


def _explained(fix: Fix, beside: MemoryBeside | None) -> Fix:
    """The fix with what a snapshot says of the cause first."""
    return msgspec.structs.replace(fix, steps=(beside.advice, *fix.steps)) if beside and beside.advice else fix


def _fix(names: list[str], empties: bool) -> Fix:
    url = "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management"
    if sum(bool(_PINS.search(n)) for n in names) > len(names) / 2:
        return Fix(
            title="Pin host memory once, not in every step",
            steps=("Allocate pinned buffers before the loop and copy into them. DataLoader(pin_memory=True) keeps its own.",),
            code=Code(
                before='x = batch.pin_memory().to("cuda", non_blocking=True)',
                after="buffer, copied = torch.empty_like(batch, pin_memory=True), torch.cuda.Event()  # once\n\n"
                'copied.synchronize()  # the copy before has left the buffer\nbuffer.copy_(batch)\nx = buffer.to("cuda", non_blocking=True)\ncopied.record()',
            ),
            url=url,
            risk="Pinned memory cannot be swapped out; a buffer must not be overwritten before its copy is done.",
        )
    room = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, pad inputs to a few sizes, or lower the batch."
    freed = empties or any(cuda_api.RETURNS.search(n) for n in names)
    return Fix(
        title="Keep the memory that the next step needs",
        steps=(
            "Remove torch.cuda.empty_cache() from the loop: it gives memory back that the next step asks for again.",
            f"If there is no such call, memory is full or fragmented: {room}",
        )
        if freed
        else (f"Steps ask for more and give nothing back: what they free does not fit what they need next. Where that goes on after the first steps, {room}",),
        code=Code(
            before="for batch in loader:\n    step(batch)\n    torch.cuda.empty_cache()",
            after="for batch in loader:\n    step(batch)",
        )
        if freed
        else None,
        url=url,
        risk="The process keeps its peak memory reserved; others on the same GPU see less free.",
    )
