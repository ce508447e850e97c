"""memcpy"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import Prefetcher, Setup, Step, Workload

BF16, FP16 = torch.bfloat16, torch.float16


def video_clips(s: Setup, *, ahead: bool = False) -> Step:
    dim = s.size(1536, 24)
    clips = [s.pin(torch.randn(s.size(64, 2), s.size(392, 4), dim)) for _ in range(2)]
    model = nn.Sequential(*(m for _ in range(s.size(6, 1)) for m in (nn.Linear(dim, dim), nn.GELU()))).to(s.device, BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    loader, turns = (Prefetcher([(clip,) for clip in clips], s) if ahead else None), count()

    def step() -> None:
        x = loader.next()[0] if loader else clips[next(turns) % 2].to(s.device, non_blocking=True)
        x = x.to(BF16)
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()

    return step


def _written(name: str, rule: str | None, what: str, fix: str, slow: Callable[..., Step] | None, fixed: Callable[..., Step] | None, **more: Any) -> Workload:
    return Workload(name=name, rule=rule, folder="written", what=what, fix=fix, make_slow=slow, make_fixed=fixed, **more)


PROGRAM = _written(
    "video_clips",
    "memcpy",
    "Pinned clips of 154 MB are copied on the stream that computes.",
    "copy the next clip on a stream of its own",
    video_clips,
    partial(video_clips, ahead=True),
    gpu_bound=True,
    top=("memcpy", "missed-overlap"),
    fixed_quiet=False,
)
