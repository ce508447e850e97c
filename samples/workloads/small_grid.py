"""Programs whose kernels have fewer blocks than the device has multiprocessors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .base import Setup, Step, Workload


class Pooling(nn.Module):
    """Attention pooling of multiple-instance learning: a slide is the weighted mean of its patches."""

    def __init__(self, dim: int, heads: int, normalize: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.score, self.normalize = nn.Linear(dim, heads, bias=False), normalize

    def forward(self, patches: Tensor) -> Tensor:
        return self.normalize(self.score.weight @ patches.mT) @ patches


def weights_of(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1)


def _slides(s: Setup, normalize: Callable[[Tensor], Tensor]) -> Step:
    dim = s.size(64, 8)
    model = Pooling(dim, s.size(8, 2), normalize).to(s.device, torch.bfloat16).eval()
    patches = torch.randn(1, s.size(1 << 22, 512), dim, device=s.device, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(patches)

    return step


def slides_slow(s: Setup) -> Step:
    return _slides(s, weights_of)


def slides_fixed(s: Setup) -> Step:
    return _slides(s, s.compile(weights_of))


def _resampling(s: Setup, split: bool) -> Step:
    """Systematic resampling of particle filters: a running sum over the weights of each filter's particles."""
    filters, particles, parts = s.size(4, 2), s.size(1 << 21, 256), s.size(2048, 16)
    weights = torch.rand(filters, particles, device=s.device)
    points = (torch.arange(particles, device=s.device) + 0.5) / particles

    def running_sum(x: Tensor) -> Tensor:
        if not split:
            return x.cumsum(-1)
        blocks = x.unflatten(-1, (parts, -1)).cumsum(-1)
        before = blocks[..., -1].cumsum(-1) - blocks[..., -1]
        return (blocks + before[..., None]).flatten(-2)

    @torch.inference_mode()
    def step() -> Tensor:
        sums = running_sum(weights)
        return torch.searchsorted(sums, points * sums[:, -1:]).clamp_(max=particles - 1)

    return step


def resampling_slow(s: Setup) -> Step:
    return _resampling(s, split=False)


def resampling_fixed(s: Setup) -> Step:
    return _resampling(s, split=True)


def _streams(s: Setup, streams: int) -> Step:
    """Long softmaxes of several requests; on `streams` streams at once, or as one batch where there is but one."""
    rows, length = s.size(128, 8), s.size(1 << 20, 64)
    scores = torch.randn(rows, length, device=s.device, dtype=torch.bfloat16)
    out = torch.empty_like(scores)
    side = [torch.cuda.Stream() for _ in range(streams)] if s.cuda and streams > 1 else []

    @torch.inference_mode()
    def step() -> Tensor:
        if not side:
            return torch.softmax(scores, -1, out=out)
        current = torch.cuda.current_stream()
        for stream, given, taken in zip(side, scores.chunk(streams), out.chunk(streams), strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for _ in range(4):
                    torch.softmax(given, -1, out=taken)
        for stream in side:
            current.wait_stream(stream)
        return out

    def batched() -> Tensor:
        for _ in range(4):
            step()
        return out

    return step if side else batched


def streams_slow(s: Setup) -> Step:
    return _streams(s, 8)


def streams_fixed(s: Setup) -> Step:
    return _streams(s, 1)


WORKLOADS = (
    Workload(
        name="particle_resampling", rule="small-grid", main=True, make_slow=resampling_slow, make_fixed=resampling_fixed,
        what="Particle filters: a running sum over two million weights of each of four filters, one block a row.",
        fix="running sums of 2048 parts, then over the parts",
        gpu_bound=True, with_stack=True,
    ),
    Workload(
        name="attention_pooling", rule="small-grid", make_slow=slides_slow, make_fixed=slides_fixed,
        what="Attention pooling of a slide's four million patches: a softmax of eight rows runs on eight of 132 multiprocessors.",
        fix="torch.compile, which divides long rows",
        gpu_bound=True,
    ),
    Workload(
        name="parallel_streams", rule="small-grid", trap=True, make_slow=streams_slow, make_fixed=streams_fixed,
        what="Softmaxes of 16 long rows on each of eight streams: small grids that fill the device together.",
        fix="one batch of 128 rows: gains next to nothing",
        gpu_bound=True,
    ),
)  # fmt: skip
