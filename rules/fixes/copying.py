"""What to do about what is copied between host and device."""

from __future__ import annotations

from typing import NamedTuple

from advisor.knowledge.host_waits import HostWait
from advisor.report.finding import Advice, Code, Conditional, Fix
from advisor.rules.fixes.waits import as_code

_FETCHED = Code(
    before="for x in batches:\n    save(model(x).cpu())",
    after="""buffers = [torch.empty(shape, pin_memory=True) for _ in range(2)]
side, before = torch.cuda.Stream(), None
for n, x in enumerate(batches):
    out, buffer, copied = model(x), buffers[n % 2], torch.cuda.Event()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        buffer.copy_(out, non_blocking=True)
        copied.record()
    out.record_stream(side)
    if before:  # the last step's: there by now
        before[1].synchronize()
        save(before[0])
    before = buffer, copied
before[1].synchronize()
save(before[0])""",
)
"""Results that come to the host while the next step computes."""


_PACKED = Code(
    before='ids = {name: column.to("cuda") for name, column in columns.items()}',
    after="sizes = [column.numel() for column in columns.values()]\nhost = torch.empty(sum(sizes), dtype=torch.long, pin_memory=True)  # once, as what follows\n"
    "copied = torch.cuda.Event()\n\ncopied.synchronize()  # the copy before has left the buffer\n"
    'torch.cat([column.flatten() for column in columns.values()], out=host)  # of one type\nparts = host.to("cuda", non_blocking=True).split(sizes)\ncopied.record()\n'
    "ids = {name: part.view(column.shape) for (name, column), part in zip(columns.items(), parts)}",
)
"""Small tensors that are sent together."""


class Copied(NamedTuple):
    """Copies of a step between host and device, in shares. Of the copies: pageable; small, below the size from which bytes count; created, H2D copies of data
    that the op before made on the host. returning: of the bytes, those that come to the host and go back in the same step. fetched: D2H share of their
    time. many: whether launching small copies dominates. loader: whether a dataloader makes the batches. call: the main call, if no explicit copy.
    """

    pageable: float = 0.0
    small: float = 0.0
    created: float = 0.0
    returning: float = 0.0
    fetched: float = 0.0
    many: bool = False
    loader: bool = False
    call: HostWait | None = None


def copying(copied: Copied) -> Fix:
    """What to do about it."""
    url = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"
    if copied.created >= 0.5:
        return Fix(
            title="Build the tensors on the GPU",
            steps=(
                *((copied.call.instead,) if copied.call else ()),
                "Create each tensor with device=..., so that nothing is copied.",
                "Hoist constants out of the loop: masks, position ids, index tables.",
                "Data that must come from the host: write all of a step's into a single pinned buffer, and copy that once with non_blocking=True.",
            ),
            code=Code(
                before='mask = torch.zeros(n, n).to("cuda")\nids = torch.tensor(values).cuda()',
                after='mask = torch.zeros(n, n, device="cuda")\nids = torch.tensor(values, pin_memory=True).to("cuda", non_blocking=True)',
            ),
            url=url,
            risk="Random numbers drawn on the GPU differ from those drawn on the host for the same seed.",
        )
    if copied.call and not copied.call.general:
        return Fix(
            title="Keep the values that each call sends on the GPU",
            steps=(copied.call.instead,),
            code=as_code(copied.call.code) if copied.call.code else None,
            url=copied.call.url or url,
            risk="A tensor that is made once is shared by all who use it: nothing may change it in place.",
        )
    risk = "Pinned memory cannot be swapped out: pin buffers, not data sets. A pinned buffer must not be overwritten before its copy is done."
    packing = ("Pack small tensors into a single buffer and copy it once.",) * (copied.many or copied.small >= 0.5)
    if copied.returning >= 0.5:
        return Fix(
            title="Keep data on the GPU instead of copying it back",
            steps=(
                "As many bytes go back to the GPU in the same step as come to the host. If they are the same data and memory allows, keep them on the GPU.",
                "Otherwise recompute them (torch.utils.checkpoint), or copy both ways on a side stream with non_blocking=True, through pinned buffers that are made once.",
                *packing,
            ),
            code=Code(before='kept = skip.cpu()\nx = up(x, kept.to("cuda"))', after="x = up(x, skip)  # never left the GPU"),
            url=url,
            holds_for=("torch",),
            risk="Kept tensors use GPU memory until they are read.",
        )
    if copied.fetched > 0.5:
        return Fix(
            title="Fetch results during the next step",
            steps=(
                "Copy results into pinned buffers that are made once, with non_blocking=True on a side stream. Read them a step later, after the copy's event.",
                "Leave values on the GPU if only the next step reads them. Reduce values there if they are only summed, counted or compared.",
                *packing,
            ),
            code=_FETCHED,
            url=url,
            holds_for=("torch",),
            risk=risk + " Results are there a step later than before.",
        )
    steps: list[str] = [copied.call.instead] if copied.call else []
    if copied.pageable > 0:
        steps.append(
            "Pin the memory that is copied: let the dataloader's workers make the batches and pin them, DataLoader(num_workers=..., pin_memory=True)."
            if copied.loader
            else Advice(
                "Pin the memory that is copied: tensor.pin_memory() once for buffers that are reused.",
                Conditional("loader", "DataLoader(pin_memory=True) does so for batches."),
            )
        )
        steps.append("Copy with non_blocking=True, so that the host goes on while the data moves.")
    steps.append("Copy the next batch on a side stream while the current batch computes.")
    steps = [*packing, *steps] if copied.many else [*steps, *packing]
    after = (
        "side, batches = torch.cuda.Stream(), iter(loader)\n\n"
        "def fetch(batch):\n"
        "    with torch.cuda.stream(side):\n"
        '        return batch.to("cuda", non_blocking=True)  # batch is pinned\n\n'
        "ahead = fetch(next(batches))\n"
        "while ahead is not None:\n    torch.cuda.current_stream().wait_stream(side)\n"
        "    x, batch = ahead, next(batches, None)\n"
        "    ahead = None if batch is None else fetch(batch)\n"
        "    x.record_stream(torch.cuda.current_stream())\n"
        "    step(x)"
    )
    return Fix(
        title="Send small tensors in a single copy"
        if copied.many
        else "Pin the host memory and copy ahead"
        if copied.pageable > 0
        else "Copy ahead on a stream of its own",
        steps=tuple(steps),
        code=_PACKED if copied.many else Code(before='for batch in loader:\n    x = batch.to("cuda")\n    step(x)', after=after),
        url=url,
        risk=risk,
        intervention="pinned-copies" if copied.loader and copied.pageable > 0 and not copied.many else None,
    )
