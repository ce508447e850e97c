"""Axial attention on sixteen radar tiles, bf16 weights: attention, norms written out, softmax and GELU in FP32; pageable."""

from __future__ import annotations

from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written

BF16 = torch.bfloat16


class ChannelNorm(nn.Module):
    """A layer norm, written out unless `library`."""

    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.library = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), library

    def forward(self, x: Tensor) -> Tensor:
        if self.library:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)
        mean = x.mean(-1, keepdim=True)
        var = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias


class AxisAttention(nn.Module):
    """Attention along the third axis of (pictures, lines, places, width), with a learned bias for each distance."""

    def __init__(self, width: int, heads: int, places: int, sdpa: bool, casts: bool) -> None:
        super().__init__()
        self.heads, self.sdpa, self.casts = heads, sdpa, casts
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(0.02 * torch.randn(heads, 2 * places - 1))
        place = torch.arange(places)
        self.register_buffer("apart", place[:, None] - place[None] + places - 1)

    def forward(self, x: Tensor) -> Tensor:
        pictures, lines, places, width = x.shape
        qkv = self.qkv(x).view(pictures * lines, places, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[:, self.apart]
        if self.sdpa:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(len(q), -1, -1, -1))
        else:
            scores = torch.einsum("bnid,bnjd->bnij", q * q.shape[-1] ** -0.5, k) + bias
            weights = torch.softmax(scores.float(), -1).to(v.dtype) if self.casts else torch.softmax(scores, -1)
            seen = torch.einsum("bnij,bnjd->bnid", weights, v)
        return self.out(seen.transpose(1, 2).reshape(x.shape))


class AxialBlock(nn.Module):
    def __init__(self, width: int, heads: int, places: int, library: bool, sdpa: bool, casts: bool) -> None:
        super().__init__()
        self.casts = casts
        self.norms = nn.ModuleList(ChannelNorm(width, library) for _ in range(3))
        self.columns = AxisAttention(width, heads, places, sdpa, casts)
        self.rows = AxisAttention(width, heads, places, sdpa, casts)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.columns(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.rows(self.norms[1](x))
        y = self.up(self.norms[2](x))
        y = F.gelu(y.float()).to(y.dtype) if self.casts else F.gelu(y)
        return x + self.down(y)


class IceNet(nn.Module):
    def __init__(self, width: int, heads: int, places: int, blocks: int, kinds: int, last: bool, **how: bool) -> None:
        super().__init__()
        self.layout = torch.channels_last if last else torch.contiguous_format
        half, quarter = width // 2, width // 4
        self.stem = nn.Sequential(
            nn.Conv2d(3, quarter, 7, 2, 3, bias=False), nn.BatchNorm2d(quarter), nn.ReLU(),
            nn.Conv2d(quarter, half, 3, 1, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
            nn.Conv2d(half, width, 3, 2, 1),
        )  # fmt: skip
        self.blocks = nn.Sequential(*(AxialBlock(width, heads, places, **how) for _ in range(blocks)))
        self.wide = nn.Sequential(nn.Conv2d(width, half, 3, 1, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU())
        self.wider = nn.Sequential(nn.Conv2d(half, quarter, 3, 1, 1, bias=False), nn.BatchNorm2d(quarter), nn.ReLU())
        self.kinds = nn.Conv2d(quarter, kinds, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.contiguous(memory_format=self.layout)).permute(0, 2, 3, 1).contiguous()
        x = self.blocks(x).permute(0, 3, 1, 2).contiguous(memory_format=self.layout)
        x = F.interpolate(self.wide(x), scale_factor=2.0, mode="bilinear", align_corners=False)
        x = F.interpolate(self.wider(x), scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.kinds(x)


def ice_charts(
    s: Setup, *, sdpa: bool = False, library: bool = False, casts: bool = True, compiled: bool = False, last: bool = False,
    pinned: bool = False,
) -> Step:  # fmt: skip
    """Sixteen tiles of a scene a step, weights in bf16; the chart is handed out as a NumPy array."""
    count, side, kinds = s.size(16, 2), s.size(256, 16), 7
    with s.device:
        net = IceNet(
            s.size(512, 16), s.size(8, 2), side // 4, s.size(6, 1), kinds, last, library=library, sdpa=sdpa, casts=casts
        ).eval().to(BF16)  # fmt: skip
    if last:
        net = net.to(memory_format=torch.channels_last)
    model = s.compile(net, dynamic=False) if compiled else net
    tiles = [torch.randn(count, 3, side, side) for _ in range(4)]
    queue = Prefetcher([(s.pin(tile),) for tile in tiles], s) if pinned else None
    turn, chart = counter(), s.pin(torch.zeros(count, side, side, dtype=torch.int64))

    @torch.no_grad()
    def step() -> np.ndarray:
        torch.set_float32_matmul_precision("high")
        tile = queue.next()[0] if queue else tiles[next(turn) % len(tiles)].to(s.device)
        kind = model(tile.to(BF16)).argmax(1)
        if not pinned:
            return kind.cpu().numpy()
        chart.copy_(kind, non_blocking=True)
        s.synchronize()
        return chart.numpy()

    return step


PROGRAM = written(
    "ice_charts",
    "Axial attention on sixteen radar tiles, bf16 weights: attention, norms written out, softmax and GELU in FP32; pageable.",
    "scaled_dot_product_attention; F.layer_norm; no casts; torch.compile; channels_last; pinned tiles and charts",
    ice_charts,
    {
        "unfused-attention": {"sdpa": True},
        "unfused-norm": {"library": True},
        "dtype-casts": {"casts": False},
        "unfused-elementwise": {"compiled": True},
        "memory-layout": {"last": True},
        "memcpy": {"pinned": True},
    },
    gpu_bound=True,
)
