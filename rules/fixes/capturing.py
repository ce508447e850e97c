"""Capturing a step in a CUDA graph, and what has to go first."""

from __future__ import annotations

import msgspec

from advisor.report.finding import Code, Fix
from advisor.rules.fixes import for_program, known_fix, of_server
from advisor.rules.fixes.compiling import RISK
from advisor.views.patterns.optimizer import OptimizerStep, fused_form
from advisor.views.trace.program import Program

KEEP = "Keep values that the host reads (losses, checks, norms) on the GPU. Read them after the step or every N steps: a CUDA graph cannot contain a read."


DECIDE = "Make each `if` on a tensor a factor that is 0 or 1, or torch.where: every step then launches the same kernels."


MASK = "Process all rows instead of masked rows: torch.where or a 0/1 factor instead of x[mask], padding instead of nonzero(). A CUDA graph cannot contain data-dependent shapes. The saving does not include the cost of the extra rows."


SEND = "Copy host data into the captured tensors before the replay; create constants once, and random numbers, on the GPU."


EACH = "Capture an iteration with its state in tensors that it updates in place; replay it and read the result after each replay."


PARTS = "Capture each part with its state in tensors that it updates in place; keep host reads and changing work between the replays."


def capturing(program: Program, title: str | None, *first: str) -> Fix:
    """In the terms of the program; first: changes needed before capture. A server captures by itself and only needs the option."""
    if told := of_server(program):
        return told
    fix = for_program(program, "launch-gap", known_fix("pytorch", "capture"))
    return msgspec.structs.replace(fix, title=title or fix.title, steps=(*first, *fix.steps))


def compiling_first(update: OptimizerStep, *before_capture: str) -> Fix:
    """For a training step that calls its model once: the compiler captures forward and backward. before_capture: changes that only a capture of the whole step needs."""
    fused = fused_form(update)
    made = f"optimizer = torch.optim.{fused}(model.parameters(), lr=lr"
    return Fix(
        title="Let the compiler replay the step from CUDA graphs",
        steps=(
            'Compile the model with mode="reduce-overhead" before the first step, and keep the shapes of batches fixed: forward and backward then replay from CUDA graphs.',
            *((f"Pass fused=True to torch.optim.{fused}: the optimizer stays outside the graphs, and then takes few launches.",) if fused else ()),
            "Four measured programs became 3 to 6 times as fast. A program that calls its model in a loop gained nothing: capture its whole step by hand "
            "(`advisor explain graph-candidate --method`).",
            *before_capture,
        ),
        code=Code(
            before=f"{made})" if fused else "loss = criterion(model(x), y)",
            after='model = torch.compile(model, mode="reduce-overhead")\n'
            + (f"{made}, fused=True)  # keep your other arguments" if fused else "\nloss = criterion(model(x), y)"),
        ),
        url="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        risk=RISK,
        holds_for=("training", "torch"),
        intervention="compile-reduce-overhead",
    )
