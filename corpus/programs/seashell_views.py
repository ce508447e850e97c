"""SimCLR in training on 512 shells seen twice, fp16 autocast with a GradScaler, NCHW: masks come from the host, boolean masks pick, three reads."""

from __future__ import annotations

from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written

BF16, HALF = torch.bfloat16, torch.float16


class BasicBlock(nn.Module):
    def __init__(self, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride != 1 or inner != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNetSimCLR(nn.Module):
    def __init__(self, width: int, blocks: int, out: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        for n, (inner, wide) in enumerate(((width, width), (width, 2 * width), (2 * width, 4 * width))):
            layers.append(BasicBlock(inner, wide, 2 if n else 1))
            layers += [BasicBlock(wide, wide, 1) for _ in range(blocks - 1)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, out))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def accuracy(logits: Tensor, target: Tensor, topk: tuple[int, int]) -> list[Tensor]:
    _, pred = logits.topk(max(topk), 1, True, True)
    correct = pred.t().eq(target.view(1, -1))
    return [correct[:k].reshape(-1).float().sum() / len(target) for k in topk]


def seashell_views(
    s: Setup,
    *,
    compiled: bool = False,
    shaped: bool = False,
    ahead: bool = False,
    known: bool = False,
    fused: bool = False,
    channels_last: bool = False,
    dropped: bool = False,
) -> Step:
    """SimCLR in training on 512 shells seen twice, fp16 autocast with a GradScaler, NCHW: masks come from the host, boolean masks pick, three reads."""
    shells, side, temperature = s.size(512, 4), s.size(32, 8), 0.07
    many, dtype = 2 * shells, HALF if s.cuda else BF16
    rng = np.random.default_rng(342)
    shelf = [tuple(torch.from_numpy(rng.standard_normal((shells, 3, side, side), np.float32)) for _ in range(2)) for _ in range(4)]
    loader = Prefetcher([tuple(s.pin(view) for view in views) for views in shelf], s) if ahead else None
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with s.device:
        model = ResNetSimCLR(s.size(64, 8), s.size(2, 1), s.size(128, 8)).train().to(memory_format=layout)
        noted = torch.zeros(3)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, weight_decay=1e-4, fused=fused or None)
    scaler = torch.amp.GradScaler(s.device.type, enabled=s.cuda)
    log, turn = [0.0] * 3, counter()

    def constants(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        labels = torch.cat([torch.arange(shells, device=device) for _ in range(2)], dim=0)
        same = (labels[None] == labels[:, None]).float()
        return same, torch.eye(many, dtype=torch.bool, device=device), torch.zeros(many, dtype=torch.long, device=device)

    held = constants(s.device) if known else None

    def info_nce(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and how often the other view is the nearest or among the nearest five."""
        labels, mask, target = held or (part.to(s.device) for part in constants(torch.device("cpu")))
        features = F.normalize(features, dim=1)
        similarity = (features @ features.T).float()
        if shaped:
            logits = similarity.masked_fill(mask, -torch.inf) / temperature
            right = (similarity * labels.masked_fill(mask, 0.0)).sum(1) / temperature
            nearer = (logits > right[:, None]).sum(1)
            return (logits.logsumexp(1) - right).mean(), (nearer < 1).float().mean(), (nearer < 5).float().mean()
        labels = labels[~mask].view(many, -1)
        similarity = similarity[~mask].view(many, -1)
        positives = similarity[labels.bool()].view(many, -1)
        negatives = similarity[~labels.bool()].view(many, -1)
        logits = torch.cat([positives, negatives], dim=1) / temperature
        top1, top5 = accuracy(logits, target, (1, 5))
        return F.cross_entropy(logits, target), top1, top5

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        if loader is not None:
            images = torch.cat(loader.next(), dim=0)
        else:
            images = torch.cat(shelf[next(turn) % len(shelf)], dim=0).to(s.device)
        images = images.contiguous(memory_format=layout)
        with torch.autocast(s.device.type, dtype):
            loss, top1, top5 = info_nce(network(images))
        optimizer.zero_grad(set_to_none=dropped)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if shaped:
            noted.add_(torch.stack([loss.detach(), top1, top5]))
        else:
            for n, value in enumerate((loss, top1, top5)):
                log[n] += value.item()
        return loss.detach()

    return step


PROGRAM = written(
    "seashell_views",
    "SimCLR in training on 512 shells seen twice, fp16 autocast with a GradScaler, NCHW: masks come from the host, boolean masks pick, three reads.",
    "torch.compile of the network; fixed masks and no reads; pinned views copied ahead; masks from the GPU; fused Adam; channels_last; gradients dropped",
    seashell_views,
    {
        "unfused-elementwise": {"compiled": True},
        "sync-stall": {"shaped": True},
        "memcpy": {"ahead": True},
        "memcpy/constants": {"known": True},
        "amp-scaler-sync": {"fused": True},
        "memory-layout": {"channels_last": True},
        "grad-zeroing": {"dropped": True},
    },
)
