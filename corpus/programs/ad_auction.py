"""DCN-v2 with four experts ranks 1500 ads, FP32: 26 columns copied one by one; places of the page are read in turn."""

from __future__ import annotations

from itertools import count as counter

import numpy as np
import torch
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written


class Cross(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x0: Tensor) -> Tensor:
        x = x0
        for layer in self.layers:
            x = x0 * layer(x) + x
        return x


class AdRanker(nn.Module):
    def __init__(self, sizes: list[int], width: int, numbers: int, experts: int, tasks: int, hidden: int, padded: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        self.history = nn.Embedding(sizes[0], width)
        self.full = (len(sizes) + 1) * width + numbers
        wide = -(-self.full // 64) * 64 if padded else self.full
        self.more = wide - self.full
        self.norm, self.cross = nn.BatchNorm1d(numbers), Cross(wide, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 4), nn.ReLU()) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(wide, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(hidden // 4, 64), nn.ReLU(), nn.Linear(64, 1)) for _ in range(tasks))

    def forward(self, ids: Tensor, numbers: Tensor, seen: Tensor) -> Tensor:
        parts = [table(ids[n]) for n, table in enumerate(self.tables)]
        mask = (seen > 0)[..., None].float()
        liked = (self.history(seen) * mask).sum(1) / mask.sum(1).clamp(min=1.0)
        parts.append(liked.repeat_interleave(len(numbers) // len(seen), 0))
        parts.append(self.norm(torch.log1p(numbers.clamp(min=0.0))))
        if self.more:
            parts.append(numbers.new_zeros(len(numbers), self.more))
        x = self.cross(torch.cat(parts, 1))
        answers = torch.stack([expert(x) for expert in self.experts], 1)
        out = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            weights = torch.softmax(gate(x), 1)
            out.append(torch.sigmoid(tower((weights[..., None] * answers).sum(1)))[:, 0])
        return torch.stack(out, 1)


def ad_auction(
    s: Setup,
    *,
    requests: int = 1,
    at_once: bool = False,
    graphed: bool = False,
    asked: bool = True,
    tf32: bool = False,
    padded: bool = False,
) -> Step:
    """Inference of DCN-v2 with four experts in FP32 on 1500 ads for one page; 26 columns are copied alone, six places are read in turn."""
    ads, fields, width, counts, past = s.size(1500, 12), s.size(26, 3), s.size(32, 4), s.size(13, 3), s.size(50, 4)
    experts, hidden, places, firms = s.size(4, 2), s.size(512, 8), s.size(6, 2), s.size(300, 5)
    rng = np.random.default_rng(3)
    sizes = [int(size) for size in rng.integers(20, s.size(200_000, 40), fields)]
    rows, turn = requests * ads, counter()
    traffic = []
    for _ in range(4):
        columns = {f"c{n}": rng.integers(0, size, rows) for n, size in enumerate(sizes)}
        traffic.append((columns, rng.gamma(1.0, 20.0, (rows, counts)).astype(np.float32), rng.integers(0, sizes[0], (requests, past))))
    with s.device:
        model = AdRanker(sizes, width, counts, experts, 3, hidden, padded).eval()
        held_ids, held_numbers = torch.zeros(fields, rows, dtype=torch.long), torch.zeros(rows, counts)
        held_seen, rates = torch.zeros(requests, past, dtype=torch.long), torch.zeros(rows, 3)
        bids, firm = torch.rand(requests, ads) * 4.0 + 0.1, torch.randint(firms, (requests, ads))
    staged = [s.pin(torch.zeros_like(place, device="cpu")) for place in (held_ids, held_numbers, held_seen)]

    def rated() -> None:
        rates.copy_(model(held_ids, held_numbers, held_seen))

    def brought(columns: dict[str, np.ndarray], numbers: np.ndarray, seen: np.ndarray) -> None:
        if at_once:
            np.stack([columns[f"c{n}"] for n in range(fields)], out=staged[0].numpy())
            staged[1].copy_(torch.from_numpy(numbers))
            staged[2].copy_(torch.from_numpy(seen))
            for place, host in zip((held_ids, held_numbers, held_seen), staged, strict=True):
                place.copy_(host, non_blocking=True)
            return
        for n in range(fields):
            held_ids[n] = torch.from_numpy(columns[f"c{n}"]).to(s.device)
        held_numbers.copy_(torch.from_numpy(numbers))
        held_seen.copy_(torch.from_numpy(seen))

    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    with torch.no_grad():
        work = capture(rated, s) if graphed else rated

    @torch.no_grad()
    def step() -> list[list[float]]:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        brought(*traffic[next(turn) % len(traffic)])
        work()
        click, sale, complaint = rates.view(requests, ads, 3).unbind(-1)
        value = bids * click * (1.0 + 3.0 * sale) - 0.5 * complaint
        sold, prices = [], []
        for _ in range(places):
            best, who = value.max(1)
            owner = firm.gather(1, who[:, None])
            value = value.masked_fill(firm == owner, -1.0)
            price = (value.amax(1) / best.clamp(min=1e-6)).clamp(0.0, 1.0) * bids.gather(1, who[:, None])[:, 0]
            sold.append(who.tolist() if asked else who)
            prices.append(price.tolist() if asked else price)
        if asked:
            return [*sold, *prices]
        return torch.stack([*(who.float() for who in sold), *prices]).tolist()

    return step


PROGRAM = written(
    "ad_auction",
    "DCN-v2 with four experts ranks 1500 ads, FP32: 26 columns copied one by one; places of the page are read in turn.",
    "one pinned copy; CUDA graph of the network; one read; TF32; 877 inputs padded to 896; eight pages at once",
    ad_auction,
    {
        "memcpy": {"at_once": True},
        "graph-candidate": {"graphed": True},
        "sync-stall": {"asked": False},
        "precision": {"tf32": True},
        "gemm-alignment": {"padded": True},
        "low-arithmetic-intensity": {"requests": 8},
    },
    shared={"low-arithmetic-intensity": 8},
)
