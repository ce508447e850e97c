"""A VQ-VAE of 4096 codes in training on 64 photographs, TF32 in NCHW; they are pageable, loss and lost codes are read."""

from __future__ import annotations

from itertools import count as counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written

BF16 = torch.bfloat16


class Thread(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.look, self.mix = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(F.relu(self.look(F.relu(x))))


class Loom(nn.Module):
    """An encoder to a quarter of the side, and the decoder back."""

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        wide = 2 * width
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, wide, 4, 2, 1), nn.ReLU(), nn.Conv2d(wide, wide, 3, 1, 1),
            Thread(wide), Thread(wide), nn.Conv2d(wide, code, 1),
        )  # fmt: skip
        self.decode = nn.Sequential(
            nn.Conv2d(code, wide, 3, 1, 1), Thread(wide), Thread(wide), nn.ReLU(),
            nn.ConvTranspose2d(wide, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip


def nearest(flat: Tensor, book: Tensor) -> Tensor:
    """Which code of the book is next to each spot."""
    away = flat.square().sum(1, keepdim=True) - 2.0 * (flat @ book.T) + book.square().sum(1)
    return away.argmin(1)


def tapestry_codes(s: Setup, *, last: bool = False, autocast: bool = False, read: bool = True, ahead: bool = False, compiled: bool = False) -> Step:
    """Codes that nobody uses any more are put where some spot is; how many are in use is written down."""
    count, side, codes, size = s.size(64, 2), s.size(128, 16), s.size(4096, 8), s.size(64, 4)
    with s.device:
        model, book = Loom(s.size(128, 4), size), torch.randn(codes, size)
        used, total, noted = torch.ones(codes), book.clone(), torch.zeros(2)
    if last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    photos: list[tuple[Tensor, ...]] = [(torch.rand(count, 3, side, side) - 0.5,) for _ in range(4)]
    queue = Prefetcher([(s.pin(photo),) for (photo,) in photos], s) if ahead else None
    find, turn, log = s.compile(nearest) if compiled else nearest, counter(), [0.0, 0.0]

    def renew(flat: Tensor, chosen: Tensor) -> None:
        """The running mean of the spots at each code."""
        used.mul_(0.99).add_(chosen.sum(0), alpha=0.01)
        total.mul_(0.99).add_(chosen.T @ flat, alpha=0.01)
        book.copy_(total / (used + 1e-5)[:, None])
        if read:
            dead = (used < 0.01).nonzero()[:, 0]
            if len(dead):
                spots = flat[torch.randint(len(flat), (len(dead),), device=s.device)]
                book[dead], total[dead], used[dead] = spots, spots, 1.0
            return
        lost = used < 0.01
        spots = flat[torch.randint(len(flat), (codes,), device=s.device)]
        book.copy_(torch.where(lost[:, None], spots, book))
        total.copy_(torch.where(lost[:, None], spots, total))
        used.masked_fill_(lost, 1.0)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        (x,) = queue.next() if queue else (photos[next(turn) % len(photos)][0].to(s.device),)
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            z = model.encode(x)
        z = z.float().permute(0, 2, 3, 1)
        flat = z.detach().reshape(-1, size)
        with torch.no_grad():
            chosen = torch.zeros(len(flat), codes, device=s.device)
            chosen.scatter_(1, find(flat, book)[:, None], 1.0)
            woven = (chosen @ book).view(z.shape)
            share = chosen.mean(0)
            variety = torch.exp(-(share * torch.log(share + 1e-10)).sum())
            renew(flat, chosen)
        commit = F.mse_loss(z, woven)
        woven = (z + (woven - z).detach()).permute(0, 3, 1, 2)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            again = model.decode(woven if last else woven.contiguous())
        loss = F.mse_loss(again.float(), x) + 0.25 * commit
        loss.backward()
        optimizer.step()
        if read:
            log[0], log[1] = loss.item(), variety.item()
        else:
            noted.copy_(torch.stack([loss.detach(), variety]))
        return loss.detach()

    return step


PROGRAM = written(
    "tapestry_codes",
    "A VQ-VAE of 4096 codes in training on 64 photographs, TF32 in NCHW; they are pageable, loss and lost codes are read.",
    "channels_last; bf16 autocast; nothing is read; pinned photographs on a side stream; torch.compile of the distances",
    tapestry_codes,
    {
        "memory-layout": {"last": True},
        "precision/bf16": {"autocast": True},
        "sync-stall": {"read": False},
        "memcpy": {"ahead": True},
        "unfused-elementwise": {"compiled": True},
    },
    gpu_bound=True,
)
