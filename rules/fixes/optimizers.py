"""What to do about an optimizer that updates one parameter at a time."""

from __future__ import annotations

from advisor.report.finding import Advice, Code, Conditional, Fix
from advisor.views.patterns.optimizer import HAVE_FUSED, OptimizerStep


def update_together(update: OptimizerStep) -> Fix:
    url = "https://docs.pytorch.org/docs/stable/optim.html#algorithms"
    name = update.name or "AdamW"
    if name in HAVE_FUSED:
        was = ", foreach=False" if update.kind == "loop" else ""
        return Fix(
            title=f"Use the fused {name}",
            steps=(
                f"Pass fused=True to torch.optim.{name}, and remove foreach=False or differentiable=True if they are there.",
                "Parameters must be floating point tensors on the GPU. If fused is not possible, foreach=True is next best.",
            )
            if update.kind == "loop"
            else (f"Pass fused=True to torch.optim.{name}, in place of foreach=True if it is there.", "Parameters must be floating point tensors on the GPU."),
            code=Code(
                before=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr{was})",
                after=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr, fused=True)  # keep your other arguments",
            ),
            url=url,
            holds_for=("torch",),
            risk=Advice("Rounding differs in the last bits.", Conditional("training", "With GradScaler the fused step unscales by itself.")),
            intervention="fused-optimizer",
        )
    if name in HAVE_FOREACH:
        return Fix(
            title=f"Let {name} update all parameters at once",
            steps=(
                f"Pass foreach=True to torch.optim.{name}, and remove foreach=False or differentiable=True if they are there.",
                Advice("From PyTorch 2.0 it is the default on the GPU.", Conditional("training", "Sparse gradients are still updated separately.")),
                f"If {name} is another library's, take torch.optim's in its place, and look at its defaults.",
            ),
            code=Code(
                before=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr)",
                after=f"optimizer = torch.optim.{name}(model.parameters(), lr=lr, foreach=True)  # keep your other arguments",
            ),
            url=url,
            holds_for=("torch",),
            risk="foreach keeps temporaries as large as the parameters.",
            intervention="foreach-optimizer",
        )
    return Fix(
        title="Update all parameters at once",
        steps=(
            f"Let {name} call torch._foreach_* ops on lists of parameters, or compile its step function.",
            Advice(Conditional("training", "Or use an optimizer of torch.optim with fused=True, if it does the same update.")),
        ),
        code=Code(
            before="for p, buf in zip(params, buffers):\n    buf.mul_(beta).add_(p.grad)\n    p.add_(buf, alpha=-lr)",
            after="torch._foreach_mul_(buffers, beta)\ntorch._foreach_add_(buffers, [p.grad for p in params])\ntorch._foreach_add_(params, buffers, alpha=-lr)",
        ),
        url=url,
        holds_for=("torch",),
        risk="foreach keeps temporaries as large as the parameters.",
    )


HAVE_FOREACH = frozenset({"Adadelta", "Adafactor", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"})
"""Those of torch.optim that take foreach=True and have no fused form on the GPU in every release of the last two years."""
