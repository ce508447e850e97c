"""Capturing a step in a CUDA graph, and what has to go first."""

from __future__ import annotations

import msgspec

from advisor.report.finding import Fix
from advisor.rules.fixes import for_program, known_fix, of_server
from advisor.views.trace.program import Program

KEEP = "Keep on the GPU what is read inside the step (losses to print, checks, norms), and read it after the step or every N steps: no graph holds a read."


DECIDE = "Make each `if` on a tensor a factor that is 0 or 1, or torch.where: every step then launches the same kernels."


MASK = "Work on all rows where a mask picks some: torch.where or a factor of 0 or 1 instead of x[mask], padding instead of nonzero(): no graph holds a size that is asked for. What the further rows cost is not in the saving."


SEND = "Copy what the host sends inside the step into tensors that were captured, before the replay; make constants once, and draw random numbers, on the GPU."


EACH = "Capture one pass, its state in tensors that it updates in place, replay it, and read its result after each replay."


FIRST = (
    'If the model is called once per step, try torch.compile(model, mode="reduce-overhead") with a fused optimizer first. '
    "Four host-bound steps took 0.16 to 0.35 of their time with it. One that calls its model in a loop gained nothing."
)


PARTS = "Capture each part, its state in tensors that it updates in place; what the host reads, and what differs from step to step, stays between the replays."


def capturing(program: Program, title: str | None, *first: str) -> Fix:
    """In the terms of the program; first: what has to be done before anything can be captured. A server captures by itself: it is only told to."""
    if told := of_server(program):
        return told
    fix = for_program(program, "launch-gap", known_fix("pytorch", "capture"))
    return msgspec.structs.replace(fix, title=title or fix.title, steps=(*first, *fix.steps))
