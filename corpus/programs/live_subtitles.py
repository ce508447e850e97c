"""A Conformer of 14 layers with memories hears 64 frames of one caller a call, bf16 autocast over FP32 weights, attention written out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class Hearing(nn.Module):
    """A layer of a Conformer that remembers the keys, values and sounds of the pieces before."""

    def __init__(self, width: int, heads: int, now: int, past: int, taps: int, library: bool) -> None:
        super().__init__()
        self.heads, self.now, self.past, self.taps, self.library = heads, now, past, taps, library
        self.feed = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(2))
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, now, past + now))
        self.before, self.wide = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.taste = nn.Conv1d(width, width, taps, groups=width)
        self.after, self.narrow, self.last = nn.LayerNorm(width), nn.Linear(width, width), nn.LayerNorm(width)

    def memory(self, callers: int, like: Tensor) -> tuple[Tensor, Tensor]:
        width = self.out.in_features
        return like.new_zeros(2, callers, self.heads, self.past, width // self.heads), like.new_zeros(callers, width, self.taps - 1)

    def attend(self, x: Tensor, kept: Tensor) -> Tensor:
        q, *new = self.qkv(self.norm(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        whole = torch.cat([kept, torch.stack(new)], 3)
        kept.copy_(whole[:, :, :, self.now :])
        k, v = whole
        if self.library:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias.to(q.dtype)[None])
        else:
            scores = torch.einsum("nhtd,nhsd->nhts", q, k) / math.sqrt(q.shape[-1]) + self.bias
            seen = torch.einsum("nhts,nhsd->nhtd", torch.softmax(scores, -1), v)
        return self.out(seen.transpose(1, 2).flatten(2))

    def taste_of(self, x: Tensor, kept: Tensor) -> Tensor:
        sound = torch.cat([kept, F.glu(self.wide(self.before(x)), -1).transpose(1, 2)], 2)
        kept.copy_(sound[:, :, self.now :])
        return self.narrow(F.silu(self.after(self.taste(sound).transpose(1, 2))))

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor]) -> Tensor:
        x = x + 0.5 * self.feed[0](x)
        x = x + self.attend(x, memory[0])
        x = x + self.taste_of(x, memory[1])
        return self.last(x + 0.5 * self.feed[1](x))


class Subtitles(nn.Module):
    def __init__(self, layers: int, width: int, bands: int, pieces: int, layer: Callable[[], Hearing]) -> None:
        super().__init__()
        self.start, self.head = nn.Linear(4 * bands, width), nn.Linear(width, pieces)
        self.layers = nn.ModuleList(layer() for _ in range(layers))

    def forward(self, bands: Tensor, memories: list[tuple[Tensor, Tensor]]) -> Tensor:
        x = self.start(bands.view(len(bands), -1, 4 * bands.shape[-1]))
        for layer, memory in zip(self.layers, memories, strict=True):
            x = layer(x, memory)
        return self.head(x).argmax(-1)


def live_subtitles(s: Setup, *, graphed: bool = False, narrow: bool = False, sdpa: bool = False, callers: int = 1) -> Step:
    """Sixteen moments of four frames a call; repeated pieces and silence are left out of what is shown."""
    width, heads, now, past, bands = s.size(512, 16), s.size(8, 2), s.size(16, 3), s.size(64, 6), s.size(80, 4)
    layer = partial(Hearing, width, heads, now, past, s.size(15, 3), sdpa)
    model = Subtitles(s.size(14, 2), width, bands, s.size(1024, 12), layer).to(s.device).eval()
    if narrow:
        model = model.to(BF16)
    like = torch.zeros((), device=s.device, dtype=BF16)
    with torch.no_grad():
        memories = [each.memory(callers, like) for each in model.layers]  # type: ignore[operator]
    sounds = [torch.randn(callers, 4 * now, bands) for _ in range(4)]
    heard = torch.zeros(callers, 4 * now, bands, device=s.device, dtype=BF16 if narrow else torch.float32)
    best = torch.zeros(callers, now, device=s.device, dtype=torch.int64)
    turn = [0]

    @torch.no_grad()
    def listen() -> None:
        with torch.autocast(s.device.type, BF16, enabled=not narrow):
            best.copy_(model(heard, memories))

    hear: Step = capture(listen, s) if graphed else listen

    def step() -> list[list[int]]:
        turn[0] += 1
        heard.copy_(sounds[turn[0] % 4])
        hear()
        return [[piece for piece, _ in itertools.groupby(line) if piece] for line in best.tolist()]

    return step


PROGRAM = written(
    "live_subtitles",
    "A Conformer of 14 layers with memories hears 64 frames of one caller a call, bf16 autocast over FP32 weights, attention written out.",
    "the call as a CUDA graph; weights in bf16; F.scaled_dot_product_attention; eight callers together",
    live_subtitles,
    {
        "graph-candidate": {"graphed": True},
        "dtype-casts": {"narrow": True},
        "unfused-attention": {"sdpa": True},
        "low-arithmetic-intensity": {"callers": 8},
    },
    shared={"low-arithmetic-intensity": 8.0},
)
