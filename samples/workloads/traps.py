"""Programs with an obvious fix that gains nothing, because something else is the bound."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Make, Prefetcher, Setup, Step, Workload, capture
from .models import Block


def _wide_training(s: Setup, *, zero: bool = False, read_loss: bool = False) -> Step:
    """Two wide transformer blocks in bf16: the GPU is busy for tens of ms, the host for a few."""
    dim = s.size(2048, 32)
    with s.device:
        model = nn.Sequential(*(Block(dim, s.size(16, 2), causal=True) for _ in range(s.size(2, 1)))).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(s.size(16, 2), s.size(1024, 8), dim, device=s.device, dtype=torch.bfloat16)

    def step() -> float:
        optimizer.zero_grad(set_to_none=not zero)
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        return loss.item() if read_loss else 0.0

    return step


def read_loss_slow(s: Setup) -> Step:
    return _wide_training(s, read_loss=True)


def zeroed_slow(s: Setup) -> Step:
    return _wide_training(s, zero=True)


def wide_fixed(s: Setup) -> Step:
    return _wide_training(s)


def _products(s: Setup, graph: bool) -> Step:
    """A chain of large products that are launched long before the GPU gets to them."""
    n = s.size(8192, 32)
    weights = [torch.randn(n, n, device=s.device, dtype=torch.bfloat16) / n**0.5 for _ in range(4)]
    x = torch.randn(n, n, device=s.device, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step() -> None:
        y = x
        for w in weights:
            y = y @ w

    return capture(step, s) if graph else step


def products_slow(s: Setup) -> Step:
    return _products(s, graph=False)


def products_fixed(s: Setup) -> Step:
    return _products(s, graph=True)


def _gated(compiled: bool) -> Make:
    """A wide MLP whose pointwise part is small beside its products."""

    def make(s: Setup) -> Step:
        dim = s.size(8192, 32)
        up, down = (nn.Linear(a, b, bias=False, device=s.device, dtype=torch.bfloat16) for a, b in ((dim, dim), (dim, dim)))
        x = torch.randn(s.size(4096, 8), dim, device=s.device, dtype=torch.bfloat16)

        def block(x: Tensor) -> Tensor:
            return down(F.silu(up(x)))

        chosen = s.compile(block) if compiled else block

        @torch.inference_mode()
        def step() -> None:
            y = x
            for _ in range(4):
                y = chosen(y)

        return step

    return make


def _labels(ahead: bool) -> Make:
    """Labels of some kB come from pageable memory in each step, or ahead from pinned memory."""

    def make(s: Setup) -> Step:
        dim = s.size(8192, 32)
        model = nn.Sequential(*(nn.Linear(dim, dim, bias=False, device=s.device, dtype=torch.bfloat16) for _ in range(4)))
        x = torch.randn(s.size(8192, 8), dim, device=s.device, dtype=torch.bfloat16)
        labels = torch.randint(dim, (len(x),))
        loader = Prefetcher([(s.pin(labels),)], s) if ahead else None

        @torch.inference_mode()
        def step() -> Tensor:
            here = loader.next()[0] if loader else labels.to(s.device)
            return F.cross_entropy(model(x), here)

        return step

    return make


WORKLOADS = (
    Workload(
        name="loss_behind_gpu", rule="sync-stall", trap=True, make_slow=read_loss_slow, make_fixed=wide_fixed,
        what="loss.item() after each step of a training that the GPU bounds.",
        fix="none worth making: the host catches up before the GPU runs dry",
        gpu_bound=True,
    ),
    Workload(
        name="zeroing_behind_gpu", rule="grad-zeroing", trap=True, make_slow=zeroed_slow, make_fixed=wide_fixed,
        what="zero_grad(set_to_none=False) over 24 parameters in a step that the GPU bounds.",
        fix="none worth making",
        gpu_bound=True,
    ),
    Workload(
        name="products_behind_gpu", rule="graph-candidate", trap=True, make_slow=products_slow, make_fixed=products_fixed,
        what="Four large matrix products, launched one by one or as a CUDA graph.",
        fix="none worth making: the GPU is never waited for",
        gpu_bound=True,
    ),
    Workload(
        name="silu_between_gemms", rule="unfused-elementwise", trap=True, make_slow=_gated(False), make_fixed=_gated(True),
        what="One pointwise kernel between two large products.",
        fix="none worth making: a single pointwise kernel has nothing to be fused with",
        gpu_bound=True,
    ),
    Workload(
        name="labels_behind_gpu", rule="memcpy", trap=True, make_slow=_labels(False), make_fixed=_labels(True),
        what="Labels of 64 kB are copied from pageable memory in each step of large products.",
        fix="none worth making: the copy is a thousandth of the step",
        gpu_bound=True,
    ),
)  # fmt: skip
