"""A 3D U-Net on eight windows of a scan, TF32, NCDHW; instance norms written out; empty_cache after each block; pageable."""

from __future__ import annotations

from itertools import count as counter
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written

BF16 = torch.bfloat16


class VoxelNorm(nn.Module):
    """An instance norm, written out unless `library`."""

    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.instance_norm(x, weight=self.weight, bias=self.bias, eps=1e-5)
        mean = x.mean((2, 3, 4), keepdim=True)
        var = (x - mean).square().mean((2, 3, 4), keepdim=True)
        x = (x - mean) * torch.rsqrt(var + 1e-5)
        return x * self.weight.view(1, -1, 1, 1, 1) + self.bias.view(1, -1, 1, 1, 1)


class Stratum(nn.Module):
    def __init__(self, inner: int, width: int, stride: int, library: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Conv3d(inner, width, 3, stride, 1, bias=False), nn.Conv3d(width, width, 3, 1, 1, bias=False)
        self.past = nn.Conv3d(inner, width, 1, stride, bias=False)
        self.norms = nn.ModuleList(VoxelNorm(width, library) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.leaky_relu(self.norms[0](self.one(x)), 0.01)
        return F.leaky_relu(self.norms[1](self.two(y)) + self.past(x), 0.01)


class Preparator(nn.Module):
    def __init__(self, width: int, depth: int, kinds: int, library: bool) -> None:
        super().__init__()
        widths = [width * 2**n for n in range(depth)]
        self.down = nn.ModuleList(Stratum(inner, outer, 2 if n else 1, library) for n, (inner, outer) in enumerate(zip([1, *widths], widths, strict=False)))
        self.rise = nn.ModuleList(nn.ConvTranspose3d(2 * w, w, 2, 2) for w in widths[:-1])
        self.up = nn.ModuleList(Stratum(2 * w, w, 1, library) for w in widths[:-1])
        self.kinds = nn.Conv3d(width, kinds, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for stratum in self.down:
            x = stratum(x)
            seen.append(x)
        for n in reversed(range(len(self.up))):
            x = self.up[n](torch.cat([self.rise[n](x), seen[n]], 1))
        return self.kinds(x)


def bell_window(side: int, device: torch.device) -> Tensor:
    """What counts most is the middle of a window."""
    line = torch.exp(-0.5 * ((torch.arange(side, device=device) - (side - 1) / 2) / (side / 8)) ** 2).clamp(min=1e-3)
    return line[:, None, None] * line[:, None] * line


def fossil_block(
    s: Setup, *, last: bool = False, autocast: bool = False, library: bool = False, compiled: bool = False, kept: bool = False,
    pinned: bool = False,
) -> Step:  # fmt: skip
    """A block of 128 x 128 x 128 voxels a step, in eight windows of 80 that overlap, two at a time, in TF32; memory is given back."""
    side, window, together, kinds = s.size(128, 12), s.size(80, 8), 2, 4
    with s.device:
        net = Preparator(s.size(32, 2), s.size(4, 2), kinds, library).eval()
    if last:
        net = net.to(memory_format=torch.channels_last_3d)
    model, weight = s.compile(net, dynamic=False) if compiled else net, bell_window(window, s.device)
    blocks = [torch.rand(side, side, side) for _ in range(4)]
    queue = Prefetcher([(s.pin(block),) for block in blocks], s) if pinned else None
    corners = list(product((0, side - window), repeat=3))
    turn, found = counter(), s.pin(torch.zeros(side, side, side, dtype=torch.int64))

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        block = queue.next()[0] if queue else blocks[next(turn) % len(blocks)].to(s.device)
        block = (block - block.mean()) / block.std()
        total, weights = torch.zeros(kinds, side, side, side, device=s.device), torch.zeros(side, side, side, device=s.device)
        for first in range(0, len(corners), together):
            cuts = [tuple(slice(c, c + window) for c in corner) for corner in corners[first : first + together]]
            x = torch.stack([block[cut] for cut in cuts])[:, None]
            if last:
                x = x.contiguous(memory_format=torch.channels_last_3d)
            with torch.autocast(s.device.type, BF16, enabled=autocast):
                says = model(x)
            for cut, share in zip(cuts, torch.softmax(says.float(), 1), strict=True):
                total[(slice(None), *cut)] += share * weight
                weights[cut] += weight
        kind = (total / weights).argmax(0)
        if pinned:
            found.copy_(kind, non_blocking=True)
            s.synchronize()
        answer = found if pinned else kind.cpu()
        if not kept:
            torch.cuda.empty_cache()
        return answer

    return step


PROGRAM = written(
    "fossil_block",
    "A 3D U-Net on eight windows of a scan, TF32, NCDHW; instance norms written out; empty_cache after each block; pageable.",
    "channels_last_3d; bf16 autocast; F.instance_norm; torch.compile; no empty_cache; pinned blocks and answers",
    fossil_block,
    {
        "memory-layout": {"last": True},
        "precision/bf16": {"autocast": True},
        "unfused-norm": {"library": True},
        "unfused-elementwise": {"compiled": True},
        "allocator": {"kept": True},
        "memcpy": {"pinned": True},
    },
    gpu_bound=True,
)
