"""unfused-elementwise"""

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


def distilled(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    student, teacher = student.float(), teacher.float()
    log_p, q = F.log_softmax(student / 2.0, -1), F.softmax(teacher / 2.0, -1)
    soft = (q * (torch.log(q + 1e-9) - log_p)).sum(-1).mean() * 4.0
    return 0.5 * soft + 0.5 * F.cross_entropy(student, labels)


def distil_words(s: Setup, *, compiled: bool = False, beside: bool = False, foreach: bool = False) -> Step:
    words, large, small, depth = s.size(32000, 40), s.size(2048, 16), s.size(1024, 16), s.size(6, 1)
    x = torch.randn(s.size(8192, 8), large, device=s.device, dtype=BF16)
    teacher = _mlp(large, *[large] * depth, words, act=nn.GELU).to(s.device, BF16).requires_grad_(False)
    student = _mlp(large, *[small] * depth, words, act=nn.GELU).to(s.device, BF16)
    labels = torch.randint(words, (len(x),), device=s.device)
    optimizer = torch.optim.SGD(student.parameters(), lr=1e-3, foreach=foreach)
    criterion = s.compile(distilled) if compiled else distilled
    side = torch.cuda.Stream() if s.cuda and beside else None

    def step() -> None:
        optimizer.zero_grad()
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            taught = teacher(x)
        learnt = student(x)
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            taught.record_stream(torch.cuda.current_stream())
        criterion(learnt, taught, labels).backward()
        optimizer.step()

    return step


PROGRAM = written_pair(
    "distil_words",
    "unfused-elementwise",
    "Distillation over 32,000 words in FP32 with both logits from bf16.",
    "torch.compile of the loss",
    distil_words,
    {"compiled": True},
    alone={"missed-overlap": {"beside": True}, "optimizer-foreach": {"foreach": True}},
    gpu_bound=True,
)
