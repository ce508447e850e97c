"""VOLO-D1 of timm, training in FP32 with mixup on 24 pictures."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, _public, _timm


class _Log:
    """timm's meters; values are read every so many steps, and stay on the GPU until then."""

    def __init__(self, count: int, batch: int, every: int) -> None:
        from timm.utils import AverageMeter

        self.meters = [AverageMeter() for _ in range(count)]
        self.batch, self.every = batch, every
        self.kept: list[tuple[Tensor, ...]] = []

    def add(self, *values: Tensor) -> float:
        self.kept.append(values)
        if len(self.kept) == self.every:
            for step in self.kept:
                for meter, value in zip(self.meters, step, strict=True):
                    meter.update(value.item(), self.batch)
            self.kept.clear()
        return float(self.meters[0].avg)


def orchid_show(
    s: Setup, *, autocast: bool = False, sdpa: bool = False, compiled: bool = False, fused: bool = False, pinned: bool = False,
    channels_last: bool = False, quiet: bool = False,
) -> Step:  # fmt: skip
    """VOLO-D1 of timm (its outlook attention unfolds the picture) is trained on orchids with mixup, in FP32, as timm's script has it:
    pictures from the loader's memory, clipped gradients, AdamW, and loss and accuracy read for the progress bar in each step."""
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.utils import accuracy

    species, batch, side = 120, s.size(24, 2), s.size(224, 64)
    model = _timm("volo_d1_224", num_classes=species, drop_path_rate=0.1, img_size=side).to(s.device).train()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = sdpa
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    run = s.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, **({"fused": True} if fused else {}))
    mixup = Mixup(mixup_alpha=0.8, label_smoothing=0.1, num_classes=species)
    criterion = SoftTargetCrossEntropy()
    images, labels = torch.rand(batch, 3, side, side), torch.randint(species, (batch,))
    loader = Prefetcher([(s.pin(images), s.pin(labels))], s) if pinned else None
    log = _Log(2, batch, every=50 if quiet else 1)

    def step() -> float:
        x, y = loader.next() if loader else (images.to(s.device), labels.to(s.device))
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        x, target = mixup(x, y)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16) if autocast else nullcontext():
            output = run(x)
            loss = criterion(output, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return log.add(loss.detach(), accuracy(output.detach(), y)[0])

    return step


PROGRAM = _public(
    "orchid_show",
    "VOLO-D1 of timm, training in FP32 with mixup on 24 pictures.",
    orchid_show,
    {},
    {
        "precision": {"autocast": True},
        "unfused-attention": {"sdpa": True},
        "unfused-elementwise": {"compiled": True},
        "optimizer-foreach": {"fused": True},
        "memcpy": {"pinned": True},
        "memory-layout": {"channels_last": True},
        "sync-stall": {"quiet": True},
    },
)
