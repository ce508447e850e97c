"""More samples, or more requests, in a step."""

from __future__ import annotations

from advisor.report.finding import Code, Fix
from advisor.report.numbers import duration


def larger_batch(together: int, step_us: float) -> Fix:
    return Fix(
        title="Train on more samples at once",
        steps=(
            f"Put more samples into a step, or into each micro-batch and take fewer of these. "
            f"A step with {together} times as many samples takes about as long as now ({duration(step_us)}): each sample costs less.",
        ),
        code=Code(
            before="loader = DataLoader(dataset, batch_size=n)  # gradients of m micro-batches added up",
            after="loader = DataLoader(dataset, batch_size=n * m)  # a single pass: the same gradient",
        ),
        url="https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html",
        risk="A larger batch changes training unless there are fewer micro-batches for it: adapt the learning rate. Activations grow with the batch.",
        intervention="larger-batch",
    )


def batch_requests(together: int, *steps: str) -> Fix:
    return Fix(
        title="Batch requests together",
        steps=steps,
        code=Code(
            before="for request in requests:\n    out = model(request.unsqueeze(0))",
            after=f"for group in batches_of(requests, {together}):\n    out = model(torch.stack(group))",
        ),
        url="https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html",
        risk="A request waits for others to arrive; memory for activations and caches grows with the batch.",
    )
