"""FP16 training whose gradient scaler reads a value from the GPU in each step."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .base import Make, Setup, Step, Workload
from .models import VisionTransformer


def _mixed(fused: bool) -> Make:
    def make(s: Setup) -> Step:
        classes, side = s.size(1000, 10), s.size(224, 32)
        model = VisionTransformer(s.size(384, 32), s.size(6, 2), s.size(4, 1), classes).to(s.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
        scaler = torch.amp.GradScaler(s.device.type)
        images = torch.rand(s.size(96, 2), 3, side, side, device=s.device)
        labels = torch.randint(classes, (len(images),), device=s.device)
        dtype = torch.float16 if s.cuda else torch.bfloat16

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast(s.device.type, dtype):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    return make


WORKLOADS = (
    Workload(
        name="fp16_scaler", rule="amp-scaler-sync", main=True, make_slow=_mixed(False), make_fixed=_mixed(True),
        what="Vision-transformer training in FP16 with GradScaler and a foreach optimizer.",
        fix="fused=True: the optimizer unscales on the GPU",
        top=("amp-scaler-sync", "sync-stall", "launch-gap", "graph-candidate", "optimizer-foreach", "dtype-casts"),
    ),
)  # fmt: skip
