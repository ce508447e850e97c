"""torch.compile as a fix: of what is trained, of what is not, and of what is compiled already."""

from __future__ import annotations

from advisor.report.finding import Code, Fix
from advisor.views.patterns.graph_capture import Capturable
from advisor.views.patterns.optimizer import OptimizerStep, fused_form
from advisor.views.trace.program import Program

WORTH_COMPILING = 0.03
"""A step that compiling shortens by less, as the calls of what is compiled cost more than its few launches, is left to be captured if it can be."""

_OF_PASSES = (
    "The host waits after every iteration of a loop. Batch whatever does not depend on the previous iteration (a single call for all experts, queries or samples).",
    "Keep values that the loop reads on the GPU, so that several iterations fit into a graph; each remaining read ends a graph.",
)
_SENT = (
    "The host sends values to the GPU between launches and waits each time. Create constants once on the GPU, and send the rest in a single copy before the step.",
)
_KEPT = Code(
    before='def forward(self, x):\n    scale = torch.tensor([w, h], device="cuda")  # sent in each call',
    after='def __init__(self):\n    self.register_buffer("scale", torch.tensor([w, h]))  # sent once, with the model\n\ndef forward(self, x):\n    scale = self.scale',
)
_PASSES = Code(
    before="while not converged(x):  # waits in each pass\n    x = one_pass(x)",
    after="@torch.compile  # or captured as a CUDA graph\ndef passes(x, n=8):\n    for _ in range(n):\n        x = torch.where(converged(x), x, one_pass(x))"
    "  # stays once it is there\n    return x\n\nwhile not converged(x):\n    x = passes(x)",
)
_TOGETHER = Code(
    before="for x in items:  # waits in each pass\n    found.append(model(x).tolist())",
    after="found = model(torch.stack(items)).tolist()  # a single wait for all",
)
_RESIZED = ("Shapes change between steps: dynamic=True compiles once for all of them. CUDA graphs need a graph per shape, so pad inputs to a few sizes.",)
RISK = (
    "The first calls take seconds to minutes to compile; shapes that change recompile. CUDA graphs need static shapes and "
    "keep their memory. Fused kernels round differently in the last bits."
)
_BREAKS = "TORCH_LOGS=graph_breaks lists the graph breaks."


def compiling(program: Program, update: OptimizerStep, capturable: Capturable) -> Fix:
    """In the terms of the framework. update: the optimizer that runs, if any does."""
    optimizes, fused = update.kind != "none" or update.name != "", fused_form(update)
    url = "https://docs.pytorch.org/docs/stable/generated/torch.compile.html"
    if program.compiled:
        return Fix(
            title="Replay the compiled code from CUDA graphs",
            steps=(
                'Compile with mode="reduce-overhead": the trace shows compiled code that still launches each kernel separately.',
                f"Look for graph breaks: {_BREAKS}",
            ),
            code=Code(before="model = torch.compile(model)", after='model = torch.compile(model, mode="reduce-overhead")'),
            url=url,
            risk=RISK,
        )
    if program.functional:
        title = "Compile the function that is mapped"
        steps: tuple[str, ...] = (
            "Compile the function that calls torch.func: vmap, grad and jacrev are traced through, so that values and gradients become a single graph.",
            'With mode="reduce-overhead" and fixed shapes, a single graph launch replaces all of these.',
        )
        code = Code(
            before="slope = vmap(grad(energy))\nmoved = slope(state)",
            after='slope = torch.compile(vmap(grad(energy)), mode="reduce-overhead")\nmoved = slope(state)',
        )
    elif program.handed_back:
        title = "Compile the differentiated function"
        steps = (
            f"Compile the function that torch.autograd.grad differentiates: forward and backward then launch fewer, larger kernels. {_BREAKS}",
            "Or compile torch.func.grad of it together with the update. Value, gradient and update are then a single function, which also takes second-order gradients "
            "(create_graph=True does not compile).",
        )
        code = Code(
            before="(slope,) = torch.autograd.grad(energy(x), x)\nx = x - rate * slope",
            after="@torch.compile\ndef moved(x):\n    return x - rate * torch.func.grad(energy)(x)\n\nx = moved(x)",
        )
    elif program.training:
        title = "Compile the training step"
        steps = (
            f"Compile the model, so that forward and backward launch fewer, larger kernels. {_BREAKS}",
            *((f"Use the fused {fused}: a launch takes 30 parameters and more.",) if fused else ()),
            'Time it: guards and wrappers can cost the CPU as much as this saves. If shapes are fixed, mode="reduce-overhead" or capturing the whole step in a '
            "torch.cuda.CUDAGraph gains more (see the CUDA graph candidate, `advisor explain graph-candidate`). "
            "Keep reads, prints and pageable copies outside the graph, use capturable=True for Adam, and make a changing learning rate a tensor. "
            "Compiling alone gains little if a library makes most launches.",
        )
        code = Code(
            before="loss = criterion(model(x), y)\nloss.backward()" + "\noptimizer.step()" * optimizes,
            after=("model = torch.compile(model, dynamic=True)\n" if capturable.resized else "model = torch.compile(model)\n")
            + f"optimizer = torch.optim.{fused}(model.parameters(), lr=lr, fused=True)  # keep your other arguments\n" * bool(fused)
            + "\nloss = criterion(model(x), y)\nloss.backward()"
            + "\noptimizer.step()" * optimizes,
        )
    else:
        title = "Compile the model" if capturable.resized else "Compile the model into CUDA graphs"
        steps = (
            f"Compile it, so that fewer, larger kernels are launched. {_BREAKS}"
            if capturable.resized
            else f'Compile with mode="reduce-overhead" and keep input shapes fixed, so that a single graph launch replaces all of these. {_BREAKS}',
            "If the step loops over a small network without host reads, compile the function with the loop: otherwise each "
            "iteration launches a graph. In-place writes to arguments prevent CUDA graphs: return the result instead.",
            "Run under torch.inference_mode(), if it does not yet: autograd bookkeeping adds CPU overhead to every op.",
            "If requests can wait for each other, batch them.",
        )
        code = Code(
            before="out = model(x)",
            after="model = torch.compile(model, "
            + ("dynamic=True" if capturable.resized else 'mode="reduce-overhead"')
            + ")\n\nwith torch.inference_mode():\n    out = model(x)",
        )
    if capturable.in_passes and capturable.mostly == "sent":
        title, steps, code = "Move host-to-device copies out of the step, then compile", (*_SENT, *steps), _KEPT
    elif capturable.in_passes:
        title, steps = "Synchronise less often, then compile the loop", (*_OF_PASSES, *steps)
        code = code if program.training else _PASSES if capturable.mostly == "values" else _TOGETHER
    from_outside = None
    if not (capturable.in_passes or program.functional or program.handed_back):
        from_outside = "compile-dynamic" if capturable.resized else "compile" if program.training else "compile-reduce-overhead"
    return Fix(title=title, steps=(*steps, *_RESIZED * capturable.resized), code=code, url=url, risk=RISK, intervention=from_outside)
