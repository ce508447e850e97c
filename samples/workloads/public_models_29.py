"""Public models of grids, friendships and galleries, by an author who has not read the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step
from .public_models import BF16, COMPILED, GRAPHS, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import SDPA
from .public_models_4 import _public

# Graphs.


class _Flows(nn.Module):
    """Gated convolutions over buses, whose gates see what each line is; a head tells the flow of each line."""

    def __init__(self, bus: int, line: int, width: int, layers: int) -> None:
        from torch_geometric.nn import ResGatedGraphConv

        super().__init__()
        self.enter = nn.Linear(bus, width)
        self.convs = nn.ModuleList(ResGatedGraphConv(width, width, edge_dim=line) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(2 * width + line, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor, edge_index: Tensor, lines: Tensor) -> Tensor:
        x = self.enter(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.silu(norm(conv(x, edge_index, lines)))
        return self.head(torch.cat([x[edge_index[0]], x[edge_index[1]], lines], -1)).squeeze(-1)  # type: ignore[no-any-return]


def grid_overloads(s: Setup, *, masked: bool = False, ahead: bool = False, kept: bool = False, **how: Any) -> Step:
    """A gated graph network learns how loads of a continent's buses become flows of its lines; lines out of service do not count."""
    way, buses, bus, line = How(**how), s.size(24_000, 60), s.size(12, 6), s.size(8, 4)
    drawn = np.random.default_rng(0)
    ends = drawn.integers(0, buses, buses * 5)
    others = (ends + 1 + (drawn.pareto(1.0, len(ends)) * 4).astype(np.int64).clip(0, buses - 2)) % buses
    pairs = np.stack([ends, others])
    edge_index = torch.from_numpy(np.concatenate([pairs, pairs[::-1]], 1)).to(s.device)
    links = edge_index.shape[1]
    lines = torch.randn(links, line, device=s.device)
    hours = [
        (torch.from_numpy(drawn.standard_normal((buses, bus), dtype=np.float32)), torch.from_numpy(drawn.standard_normal(links, dtype=np.float32)),
         torch.from_numpy(drawn.random(links) < 0.97)) for _ in range(6)
    ]  # fmt: skip
    prefetched = Prefetcher([tuple(s.pin(part) for part in hour) for hour in hours], s) if ahead else None
    model = _placed(s, way, _Flows(bus, line, s.size(128, 16), s.size(4, 2))).train()
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=1e-4)
    turn, log, sums = 0, [0.0, 0.0], torch.zeros(2, device=s.device)

    def step() -> None:
        nonlocal turn
        _precision(way)
        x, flows, serving = prefetched.next() if prefetched else (part.to(s.device) for part in hours[turn % len(hours)])
        turn += 1
        optimizer.zero_grad()
        with _casting(s, way):
            told = run(x, edge_index, lines)
        told = told.float()
        if masked:
            weight = serving.float()
            count = weight.sum()
            loss = (F.huber_loss(told, flows, reduction="none") * weight).sum() / count
            right = (((told.detach() > 1.0) == (flows > 1.0)) & serving).sum() / count
        else:
            loss = F.huber_loss(told[serving], flows[serving])
            right = ((told.detach()[serving] > 1.0) == (flows[serving] > 1.0)).float().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if kept:
            sums.add_(torch.stack([loss.detach(), right]))
        else:
            log[0] += loss.item()
            log[1] += right.item()

    return step


class _Guild(nn.Module):
    """Efficient graph convolutions by three aggregators, normed, with residuals."""

    def __init__(self, features: int, width: int, heads: int, bases: int, layers: int) -> None:
        from torch_geometric.nn import EGConv

        super().__init__()
        self.enter = nn.Linear(features, width)
        self.convs = nn.ModuleList(
            EGConv(width, width, aggregators=["sum", "mean", "max"], num_heads=heads, num_bases=bases, add_self_loops=False) for _ in range(layers)
        )  # fmt: skip
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enter(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.dropout(F.relu(norm(conv(x, edge_index))), 0.2, self.training)
        return self.head(x)  # type: ignore[no-any-return]


def guild_friends(s: Setup, *, masked: bool = False, **how: Any) -> Step:
    """EGConv learns who will leave a game from all its friendships at once; loss, precision and recall of known players are read."""
    way, players, features = How(**{"zero": True, "optimizer": "loop", **how}), s.size(60_000, 100), s.size(48, 8)
    drawn = np.random.default_rng(0)
    pairs = np.stack([drawn.integers(0, players, players * 5), (drawn.random(players * 5) ** 1.2 * players).astype(np.int64)])
    loops = np.arange(players)[None].repeat(2, 0)
    edge_index = torch.from_numpy(np.concatenate([pairs, pairs[::-1], loops], 1)).to(s.device)
    x = torch.randn(players, features, device=s.device)
    leaves = (torch.rand(players, device=s.device) < 0.2).long()
    known = torch.rand(players, device=s.device) < 0.7
    asked = torch.where(known, leaves, -100)
    weight = torch.tensor([0.6, 2.5], device=s.device)
    model = _placed(s, way, _Guild(features, s.size(128, 16), s.size(8, 4), 4, s.size(4, 2))).train()
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=1e-3)
    sums, log = torch.zeros(3, device=s.device), []  # type: tuple[Tensor, list[dict[str, float]]]

    def step() -> None:
        _precision(way)
        optimizer.zero_grad(set_to_none=not way.zero)
        with _casting(s, way):
            out = run(x, edge_index)
        out = out.float()
        loss = F.cross_entropy(out, asked, weight) if masked else F.cross_entropy(out[known], leaves[known], weight)
        loss.backward()
        optimizer.step()
        if masked:
            warned, left = (out.detach().argmax(1) == 1) & known, (leaves == 1) & known
            hits = (warned & left).sum()
            sums.add_(torch.stack([loss.detach(), hits / warned.sum().clamp(min=1), hits / left.sum().clamp(min=1)]))
            return
        warned, left = out.detach()[known].argmax(1) == 1, leaves[known] == 1
        hits = int((warned & left).sum())
        log.append({"loss": loss.item(), "precision": hits / max(int(warned.sum()), 1), "recall": hits / max(int(left.sum()), 1)})

    return step


# Pictures.




def gallery_tags(s: Setup, *, batch: int = 4, raw: bool = False, at_once: bool = False, attention: str = "eager", **how: Any) -> Step:
    """EVA-02 tags four uploads a call: the host makes floats of each, and each one's tags above a threshold are picked and fetched."""
    import timm

    way, tags, many, side = How(**how), s.size(1200, 20), s.size(batch, max(batch // 4, 1)), s.size(224, 56)
    model: Any = timm.create_model("eva02_tiny_patch14_224", pretrained=False, num_classes=tags, img_size=side, depth=s.size(10, 2))
    nn.init.normal_(model.head.weight, std=0.03)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = attention == SDPA
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    drawn = np.random.default_rng(0)
    uploads = [drawn.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(64)]
    names = [f"tag{at}" for at in range(tags)]
    mean, std = torch.tensor([0.481, 0.458, 0.408]).view(3, 1, 1), torch.tensor([0.269, 0.261, 0.276]).view(3, 1, 1)
    mean_there, std_there = mean.to(s.device), std.to(s.device)
    turn = 0

    def prepared(photos: list[np.ndarray[Any, Any]]) -> Tensor:
        if raw:
            x = torch.from_numpy(np.stack(photos)).to(s.device).permute(0, 3, 1, 2)
            return ((x.float() / 255 - mean_there) / std_there).contiguous()
        floats = [(torch.from_numpy(photo).permute(2, 0, 1).contiguous().float() / 255 - mean) / std for photo in photos]
        return torch.stack(floats).to(s.device)

    @torch.no_grad()
    def step() -> list[list[tuple[str, float]]]:
        nonlocal turn
        _precision(way)
        x = prepared([uploads[(turn + at) % len(uploads)] for at in range(many)])
        turn += many
        with _casting(s, way):
            out = run(x)
        chances = out.float().sigmoid()
        answers: list[list[tuple[str, float]]] = []
        if at_once:
            for row in chances.cpu().numpy():
                found = np.flatnonzero(row > 0.7)
                best = found[np.argsort(-row[found])][:12]
                answers.append([(names[at], float(row[at])) for at in best])
            return answers
        for chance in chances:
            picked = torch.nonzero(chance > 0.7).flatten()
            order = chance[picked].argsort(descending=True)[:12]
            best = picked[order]
            answers.append([(names[at], value) for at, value in zip(best.tolist(), chance[best].tolist(), strict=True)])
        return answers

    return step


WORKLOADS = (
    _public(
        "grid_overloads", "ResGatedGraphConv of torch_geometric on 240,000 lines, training in FP32; masks pick lines, two numbers are read.",
        grid_overloads, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "precision": {"tf32": True}, "precision/bf16": {"autocast": BF16},
         "memcpy": {"ahead": True}, "sync-stall": {"masked": True, "kept": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "guild_friends", "EGConv of torch_geometric by sum, mean and max over 660,000 edges, training in FP32; AdamW by a loop, three numbers read.",
        guild_friends, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "precision": {"tf32": True}, "precision/bf16": {"autocast": BF16},
         "sync-stall": {"masked": True}, "optimizer-foreach": {"optimizer": "fused"}, "grad-zeroing": {"zero": False}},
    ),
    _public(
        "gallery_tags", "EVA-02 of timm, FP32, on four uploads a call: the host makes floats of each, tags are picked and fetched one by one.",
        gallery_tags, {},
        {"launch-gap": {"compiled": GRAPHS}, "host-bound": {"raw": True}, "low-arithmetic-intensity": {"batch": 32},
         "unfused-attention": {"attention": SDPA}, "sync-stall": {"at_once": True}, "precision": {"tf32": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
