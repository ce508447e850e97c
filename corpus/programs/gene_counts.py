"""gemm-alignment"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


def gene_counts(s: Setup, *, multiple: int = 1, fused: bool = False, compiled: bool = False) -> Step:
    genes, cells, width = s.size(20_001, 21), s.size(4096, 4), s.size(1024, 8)
    padded = -(-genes // multiple) * multiple
    model = _mlp(padded, width, s.size(128, 4), width, padded, act=nn.GELU).to(s.device, BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    counts = torch.poisson(torch.rand(cells, genes, device=s.device)).to(BF16)
    inputs = F.pad(torch.log1p(counts), (0, padded - genes))

    def poisson(log_rate: Tensor, counts: Tensor) -> Tensor:
        return F.poisson_nll_loss(log_rate.float(), counts)

    criterion = s.compile(poisson) if compiled else poisson

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(inputs)[:, :genes], counts).backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "gene_counts",
    "gemm-alignment",
    "An autoencoder in bf16 of 4096 cells with 20,001 genes each and a Poisson loss.",
    "20,032 genes",
    gene_counts,
    {"multiple": 64},
    alone={"optimizer-foreach": {"fused": True}, "unfused-elementwise": {"compiled": True}},
    gpu_bound=True,
)
