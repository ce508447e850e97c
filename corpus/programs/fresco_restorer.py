"""A U-Net restores a 1024 x 1024 photograph, bf16 in NCHW, eight groups a norm; attention over 16,384 spots written out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as counter
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


def norm_and_gate(x: Tensor, groups: int, gain: Tensor, shift: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, groups, gain, shift, 1e-5))


def split_norm_and_gate(x: Tensor, groups: int, gain: Tensor, shift: Tensor, parts: int = 64) -> Tensor:
    """The same; each group's sums are made in parts, so that the whole GPU has something to add."""
    size = x[0].numel() // groups
    part = x.reshape(len(x), groups, parts, size // parts)
    mean = part.sum(-1, dtype=torch.float32).sum(-1) / size
    square = torch.linalg.vector_norm(part, dim=-1, dtype=torch.float32).square().sum(-1) / size
    scale = torch.rsqrt((square - mean.square()).clamp(min=0.0) + 1e-5)
    width = x.shape[1] // groups
    scale, mean = scale.repeat_interleave(width, 1, output_size=x.shape[1]), mean.repeat_interleave(width, 1, output_size=x.shape[1])
    factor = scale * gain.float()
    offset = shift.float() - mean * factor
    return F.silu(torch.addcmul(offset[..., None, None].to(x.dtype), x, factor[..., None, None].to(x.dtype)))


class Plaster(nn.Module):
    """Two convolutions past which the picture goes as well."""

    def __init__(self, width: int, groups: int, norm: Callable[..., Tensor]) -> None:
        super().__init__()
        self.groups, self.norm = groups, norm
        self.one, self.two = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.gains, self.shifts = nn.Parameter(torch.ones(2, width)), nn.Parameter(torch.zeros(2, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(self.norm(x, self.groups, self.gains[0], self.shifts[0]))
        return x + self.two(self.norm(y, self.groups, self.gains[1], self.shifts[1]))


class Whole(nn.Module):
    """Every spot of the wall looks at every other one."""

    def __init__(self, width: int, heads: int, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x.flatten(2).transpose(1, 2))
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            odds = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k).softmax(-1)
            y = torch.einsum("bhij,bhjd->bhid", odds, v)
        return x + self.out(y.transpose(1, 2).flatten(2)).transpose(1, 2).unflatten(2, x.shape[2:])


class Restorer(nn.Module):
    def __init__(self, widths: tuple[int, ...], groups: int, heads: int, sdpa: bool, norm: Callable[..., Tensor]) -> None:
        super().__init__()

        def blocks(width: int) -> nn.Sequential:
            return nn.Sequential(Plaster(width, groups, norm), Plaster(width, groups, norm))

        self.first, self.last = nn.Conv2d(3, widths[0], 3, 1, 1), nn.Conv2d(widths[0], 3, 3, 1, 1)
        self.down, self.up = nn.ModuleList(map(blocks, widths)), nn.ModuleList(map(blocks, reversed(widths[:-1])))
        pairs = list(pairwise(widths))
        self.shrink = nn.ModuleList(nn.Conv2d(inner, outer, 2, 2) for inner, outer in pairs)
        self.grow = nn.ModuleList(nn.Conv2d(outer, inner, 1) for inner, outer in reversed(pairs))
        self.whole = Whole(widths[-1], heads, sdpa)

    def forward(self, photo: Tensor) -> Tensor:
        x, kept = self.first(photo), list[Tensor]()
        for level, down in enumerate(self.down):
            x = down(self.shrink[level - 1](x) if level else x)
            kept.append(x)
        x = self.whole(kept.pop())
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(F.interpolate(grow(x), scale_factor=2.0, mode="nearest") + kept.pop())
        return photo + self.last(x)


def fresco_restorer(s: Setup, *, sdpa: bool = False, spread: bool = False, last: bool = False, compiled: bool = False) -> Step:
    """Photographs lie on the GPU as bytes; weights are in bf16."""
    side, widths = s.size(1024, 64), (64, 128, 256, 256) if not s.tiny else (8, 8, 16, 16)
    norm = split_norm_and_gate if spread else s.compile(norm_and_gate, dynamic=False) if compiled else norm_and_gate
    with s.device:
        model = Restorer(widths, s.size(8, 4), s.size(4, 2), sdpa, norm).to(BF16).eval()
        photos = torch.randint(256, (8, 1, 3, side, side), dtype=torch.uint8)
    if last:
        model = model.to(memory_format=torch.channels_last)
    turn = counter()

    @torch.no_grad()
    def step() -> Tensor:
        x = photos[next(turn) % len(photos)].to(BF16) / 127.5 - 1.0
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        return ((model(x).float() + 1.0) * 127.5).clamp(0.0, 255.0).to(torch.uint8)

    return step


PROGRAM = written(
    "fresco_restorer",
    "A U-Net restores a 1024 x 1024 photograph, bf16 in NCHW, eight groups a norm; attention over 16,384 spots written out.",
    "F.scaled_dot_product_attention; group norms in parts; channels_last; torch.compile of norm and gate",
    fresco_restorer,
    {
        "unfused-attention": {"sdpa": True},
        "small-grid": {"spread": True},
        "memory-layout": {"last": True},
        "unfused-elementwise": {"compiled": True},
    },
    gpu_bound=True,
)
