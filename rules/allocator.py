"""Device memory is allocated and freed inside the step."""

from __future__ import annotations

import re

import numpy as np

from advisor.engine.rule import Judged, Outcome, rule
from advisor.intervals import union
from advisor.knowledge import cuda_api
from advisor.report.model import Clear, Code, Finding, Fix, Skipped, severity_of
from advisor.rules._evidence import a_step, folded, milliseconds
from advisor.rules._needs import NO_GPU_WORK, RECORD_BOTH
from advisor.timeline import Timeline
from advisor.views.replay.build import Replay
from advisor.views.replay.edits import Edits, WithDispatch, WithoutWaits, combine
from advisor.views.trace.launches import Launches
from advisor.views.trace.ops import Ops
from advisor.views.trace.source_lines import Sources
from advisor.views.trace.steps import Steps

_FREES = re.compile(r"(Free|Release|Unmap)")
_PINS = re.compile(r"(HostAlloc|HostMalloc|MallocHost|HostRegister|MemAllocHost|MemHostAlloc)")
_EMPTIES = re.compile(r": empty_cache$|_cuda_emptyCache")


@rule("allocator", relies_on=("host",))
def allocator(
    timeline: Timeline,
    steps: Steps,
    launches: Launches,
    ops: Ops,
    replay: Replay,
    sources: Sources,
    *,
    min_saving_share: float = 0.03,
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
    replayed without them and what they wait for (`low`: the calls' own time stays for every second one). Reported where
    there are at least `min_per_step` of them a step (2: a growing cache still settles with the odd one) and the step
    gains `min_saving_share` (0.03).

    How to fix it
    Remove `empty_cache()` from the loop. Where memory is fragmented by changing shapes, set
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, pad to a few sizes, or lower the batch. Pin buffers once.

    When to ignore it
    When another process needs the memory between steps.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management
    https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
    """
    if not len(timeline.gpu_ops):
        return NO_GPU_WORK
    if not len(timeline.api_calls):
        return Skipped(why="no runtime calls were recorded", record_with=RECORD_BOTH)
    schedule = replay.recorded
    calls = timeline.api_calls
    role = launches.roles[schedule.call_row] if schedule.call_row.min() >= 0 else np.full(len(schedule.call_row), -1)
    chosen = np.flatnonzero(role == list(cuda_api.ApiRole).index(cuda_api.ApiRole.ALLOCATION))
    per_step = len(chosen) / schedule.steps
    if per_step < min_per_step or not steps.repeats:
        return Clear(
            why=f"{per_step:.1f} calls a step allocate or free device memory; reported from {min_per_step:.0f}"
            + ("" if steps.repeats else " in a repeated step")
        )
    python = timeline.python_calls
    empties = np.array([bool(_EMPTIES.search(n)) for n in python["name"].cat.categories], bool)[
        python["name"].cat.codes.to_numpy()
    ]
    start = python["start_us"].to_numpy()[empties]
    wrapped = WithDispatch(replay.outside(union(start, start + python["dur_us"].to_numpy()[empties])))
    gone = combine(WithoutWaits(chosen), wrapped)
    edits = Edits(WithoutWaits(chosen[::2]), gone, gone)
    saving = replay.saving(edits, "allocating and freeing, and the waits in it")
    share = saving.expected_us / steps.step_us
    rows = schedule.call_row[chosen]
    names = [str(n) for n in calls["name"].iloc[rows]]
    if share < min_saving_share:
        return Clear(
            why=f"{per_step:.0f} calls a step allocate or free memory, which costs {share:.1%}; reported from {min_saving_share:.0%}"
        )
    evidence = folded(
        names,
        calls["start_us"].to_numpy()[rows],
        calls["dur_us"].to_numpy()[rows],
        source=lambda members: sources.most_common(rows[members[:50]]),
    )
    spent = float(calls["dur_us"].to_numpy()[rows].sum()) / schedule.steps
    finding = Finding(
        title="Memory is allocated and freed inside the step",
        summary=f"{a_step(per_step, 'call', 'hold')} the host to allocate or free memory, for {milliseconds(spent)} of "
        f"{milliseconds(steps.step_us)}, mostly {evidence[0].label}.",
        severity=severity_of(saving, steps.step_us),
        confidence=0.85 if replay.basis == "simulated" else 0.6,
        saving=saving,
        evidence=evidence,
        fix=_fix(names, bool(empties.any())),
    )
    return [Judged(finding, edits)]


def _fix(names: list[str], empties: bool) -> Fix:
    url = "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management"
    if sum(bool(_PINS.search(n)) for n in names) > len(names) / 2:
        return Fix(
            title="Pin host memory once, not in every step",
            steps=("Allocate pinned buffers before the loop and copy into them, or let DataLoader(pin_memory=True) keep them.",),
            code=Code(
                before='x = batch.pin_memory().to("cuda", non_blocking=True)',
                after='buffer = torch.empty_like(batch, pin_memory=True)  # once\n\nbuffer.copy_(batch)\nx = buffer.to("cuda", non_blocking=True)',
            ),
            url=url,
            risk="Pinned memory cannot be swapped out; a buffer must not be overwritten before its copy is done.",
        )
    steps = (
        "Remove torch.cuda.empty_cache() from the loop: it gives memory back that the next step asks for again.",
        "If there is no such call, memory is full or fragmented: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, "
        "pad inputs to a few sizes, or lower the batch.",
    )
    freed = empties or any(_FREES.search(n) for n in names)
    return Fix(
        title="Keep the memory that the next step needs",
        steps=steps if freed else steps[1:],
        code=Code(
            before="for batch in loader:\n    step(batch)\n    torch.cuda.empty_cache()",
            after="for batch in loader:\n    step(batch)",
        )
        if freed
        else None,
        url=url,
        risk="The process keeps its peak memory reserved; others on the same GPU see less free.",
    )
