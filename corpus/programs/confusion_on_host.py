"""host-bound"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from workloads.base import Setup, Step, written_pair

BF16 = torch.bfloat16


def confusion_on_host(s: Setup, *, where: str = "host", pinned: bool = False, autocast: bool = False) -> Step:
    classes, side, width = 21, s.size(256, 8), s.size(64, 4)
    rows = s.size(4, 1)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(s.size(6, 1)):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    model = nn.Sequential(*layers, nn.Conv2d(width, classes, 1)).to(s.device).eval()
    pictures, truth = torch.rand(rows, 3, side, side, device=s.device), torch.randint(classes, (rows, side, side))
    on_gpu, on_host = truth.to(s.device), truth.numpy()
    held = s.pin(torch.zeros(rows, classes, side, side))
    table = np.zeros((classes, classes), dtype=np.int64)

    @torch.no_grad()
    def step() -> float:
        nonlocal table
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = model(pictures).float()
        if where == "gpu":
            pairs = (on_gpu * classes + logits.argmax(1)).view(-1)
            table = table + torch.bincount(pairs, minlength=classes**2).cpu().numpy().reshape(classes, classes)
        else:
            if where == "argmax":
                guess = logits.argmax(1).to(torch.uint8).cpu().numpy()
            else:
                guess = (held.copy_(logits) if pinned else logits.cpu()).numpy().argmax(1)
            table = table + np.bincount((on_host * classes + guess).ravel(), minlength=classes**2).reshape(classes, classes)
        right = np.diag(table)
        return float(np.mean(right / np.maximum(table.sum(0) + table.sum(1) - right, 1)))

    return step


PROGRAM = written_pair(
    "confusion_on_host",
    "host-bound",
    "Evaluation of a segmentation: 22 MB of logits are fetched, argmax and the confusion table are numpy's.",
    "the table on the GPU",
    confusion_on_host,
    {"where": "gpu"},
    alone={"host-bound/argmax": {"where": "argmax"}, "memcpy": {"pinned": True}, "precision": {"autocast": True}},
    top=("host-bound", "memcpy"),
)
