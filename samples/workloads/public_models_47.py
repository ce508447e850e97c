"""More vision models of timm and torchvision as they are: VOLO and Video Swin in the code that people write around them."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Prefetcher, Setup, Step
from .public_models import BF16, _timm, _vision
from .public_models_4 import _public


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


def _windowed_sdpa(self: Any, x: Tensor) -> Tensor:
    """ShiftedWindowAttention3d with the fused attention; position bias and mask go in as one mask."""
    from torchvision.models.video.swin_transformer import _compute_attention_mask_3d, _get_window_and_shift_size

    b, t, h, w, c = x.shape
    window, shift = _get_window_and_shift_size(self.shift_size.copy(), [t, h, w], self.window_size.copy())
    pad = [-size % side for size, side in zip((t, h, w), window, strict=True)]
    x = F.pad(x, (0, 0, 0, pad[2], 0, pad[1], 0, pad[0]))
    shifted = sum(shift) > 0
    if shifted:
        x = torch.roll(x, (-shift[0], -shift[1], -shift[2]), (1, 2, 3))
    padded = (t + pad[0], h + pad[1], w + pad[2])
    grid = [size // side for size, side in zip(padded, window, strict=True)]
    count, length, heads = math.prod(grid), math.prod(window), self.num_heads
    x = x.view(b, grid[0], window[0], grid[1], window[1], grid[2], window[2], c)
    x = x.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(b * count, length, c)
    qkv = self.qkv(x).view(b, count, length, 3, heads, c // heads).permute(3, 0, 1, 4, 2, 5)
    bias = self.get_relative_position_bias(window)
    if shifted:
        mask = _compute_attention_mask_3d(x, padded, tuple(window), tuple(shift))
        # One mask for all clips: the windows of a clip stand beside its heads.
        bias = (bias + mask.unsqueeze(1)).view(1, count * heads, length, length)
        q, k, v = qkv.reshape(3, b, count * heads, length, c // heads)
    else:
        q, k, v = qkv.flatten(1, 2)
    x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    x = x.reshape(b, count, heads, length, c // heads).transpose(2, 3).reshape(b * count, length, c)
    x = self.proj(x).view(b, *grid, *window, c).permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(b, *padded, c)
    if shifted:
        x = torch.roll(x, (shift[0], shift[1], shift[2]), (1, 2, 3))
    return x[:, :t, :h, :w, :].contiguous()


def bouldering_falls(
    s: Setup, *, bf16: bool = False, tf32: bool = False, sdpa: bool = False, compiled: bool = False, pinned: bool = False,
    channels_last: bool = False, quiet: bool = False,
) -> Step:  # fmt: skip
    """Video Swin (tiny) of torchvision in FP32 names what happens in four clips of a climbing hall. The clips come as bytes from the
    decoder, torchvision's own preset crops and normalises them on the GPU, and the five likeliest actions of each are read."""
    from torchvision.models.video import Swin3D_T_Weights

    clips, frames, side = s.size(4, 1), s.size(32, 4), s.size(224, 32)
    with s.device:
        model = _vision("swin3d_t").eval()
    if sdpa:
        for module in model.modules():
            if type(module).__name__ == "ShiftedWindowAttention3d":
                module.forward = _windowed_sdpa.__get__(module)
    if bf16:
        model = model.to(BF16)
    if channels_last:
        model = model.to(memory_format=torch.channels_last_3d)
    run = s.compile(model) if compiled else model
    preset = Swin3D_T_Weights.KINETICS400_V1.transforms(crop_size=(side, side), resize_size=(s.size(256, 36),))
    # What the preset does, without its check of the deviations, which waits for the GPU.
    mean, deviation = (torch.tensor(values, device=s.device).view(3, 1, 1) for values in (preset.mean, preset.std))
    decoded = torch.randint(256, (clips, frames, 3, s.size(256, 36), s.size(340, 48)), dtype=torch.uint8)
    top, left = (decoded.shape[-2] - side) // 2, (decoded.shape[-1] - side) // 2
    loader = Prefetcher([(s.pin(decoded),)], s) if pinned else None
    kept: list[Tensor] = []

    @torch.no_grad()
    def step() -> object:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        (raw,) = loader.next() if loader else (decoded.to(s.device),)
        if quiet:
            x = raw[..., top : top + side, left : left + side].float() / 255
            x = ((x - mean) / deviation).permute(0, 2, 1, 3, 4)
        else:
            x = preset(raw)
        if bf16:
            x = x.to(BF16)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last_3d)
        likely = run(x).float().softmax(-1).topk(5)
        torch.set_float32_matmul_precision("highest")
        if quiet:
            kept.append(likely.indices)
            if len(kept) < 16:
                return None
            everything = torch.stack(kept).tolist()
            kept.clear()
            return everything
        return [dict(zip(names, values, strict=True)) for names, values in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)]

    return step


WORKLOADS = (
    _public(
        "orchid_show", "VOLO-D1 of timm, training in FP32 with mixup on 24 pictures.", orchid_show, {},
        {
            "precision": {"autocast": True}, "unfused-attention": {"sdpa": True}, "unfused-elementwise": {"compiled": True},
            "optimizer-foreach": {"fused": True}, "memcpy": {"pinned": True}, "memory-layout": {"channels_last": True},
            "sync-stall": {"quiet": True},
        },
    ),
    _public(
        "bouldering_falls", "Video Swin of torchvision, FP32, four clips of 32 frames that come as bytes.", bouldering_falls, {},
        {
            "precision": {"bf16": True}, "precision/tf32": {"tf32": True}, "unfused-attention": {"sdpa": True},
            "unfused-elementwise": {"compiled": True}, "memcpy": {"pinned": True}, "memory-layout": {"channels_last": True},
            "sync-stall": {"quiet": True},
        },
    ),
)  # fmt: skip
