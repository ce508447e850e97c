"""Capturing a step in a CUDA graph, and what has to go first."""

from __future__ import annotations

import msgspec

from advisor.report.finding import Advice, Conditional, Fix
from advisor.rules.fixes import for_program, known_fix, of_server
from advisor.views.trace.program import Program

KEEP = "Keep values that the host reads (losses, checks, norms) on the GPU. Read them after the step or every N steps: a CUDA graph cannot contain a read."


DECIDE = "Make each `if` on a tensor a factor that is 0 or 1, or torch.where: every step then launches the same kernels."


MASK = "Process all rows instead of masked rows: torch.where or a 0/1 factor instead of x[mask], padding instead of nonzero(). A CUDA graph cannot contain data-dependent shapes. The saving does not include the cost of the extra rows."


SEND = "Copy host data into the captured tensors before the replay; create constants once, and random numbers, on the GPU."


EACH = "Capture an iteration with its state in tensors that it updates in place; replay it and read the result after each replay."


FIRST = Advice(
    Conditional(
        "training",
        'If the model is called once per step, try torch.compile(model, mode="reduce-overhead") with a fused optimizer first. '
        "Four host-bound steps took 0.16 to 0.35 of their time with it. A step that calls its model in a loop gained nothing.",
    )
)


PARTS = "Capture each part with its state in tensors that it updates in place; keep host reads and changing work between the replays."


def capturing(program: Program, title: str | None, *first: str) -> Fix:
    """In the terms of the program; first: changes needed before capture. A server captures by itself and only needs the option."""
    if told := of_server(program):
        return told
    fix = for_program(program, "launch-gap", known_fix("pytorch", "capture"))
    return msgspec.structs.replace(fix, title=title or fix.title, steps=(*first, *fix.steps))
