"""What to do about memory that is allocated in every step."""

from __future__ import annotations

import re

import msgspec

from advisor.knowledge import cuda_api
from advisor.report.finding import Advice, Code, Conditional, Fix
from advisor.views.memory.attached_snapshot import MemoryBeside

_PINS = re.compile(r"(HostAlloc|HostMalloc|MallocHost|HostRegister|MemAllocHost|MemHostAlloc)")


def explained(fix: Fix, beside: MemoryBeside | None) -> Fix:
    """The fix with what a snapshot says of the cause first."""
    return msgspec.structs.replace(fix, steps=(beside.advice, *fix.steps)) if beside and beside.advice else fix


def keep_memory(names: list[str], empties: bool) -> Fix:
    url = "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management"
    if sum(bool(_PINS.search(n)) for n in names) > len(names) / 2:
        return Fix(
            title="Pin host memory once, not in every step",
            steps=(Advice("Allocate pinned buffers before the loop and copy into them.", Conditional("loader", "DataLoader(pin_memory=True) keeps its own.")),),
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
            "Remove torch.cuda.empty_cache() from the loop: it frees memory that the next step allocates again.",
            f"If there is no such call, memory is full or fragmented: {room}",
        )
        if freed
        else (f"Steps allocate more and free nothing to the driver: freed blocks do not fit the next requests. If that goes on after the first steps, {room}",),
        code=Code(
            before="for batch in loader:\n    step(batch)\n    torch.cuda.empty_cache()",
            after="for batch in loader:\n    step(batch)",
        )
        if freed
        else None,
        url=url,
        risk="The process keeps its peak memory reserved; others on the same GPU see less free.",
        intervention="no-empty-cache" if freed else "expandable-segments",
    )
