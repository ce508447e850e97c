"""384 lines of 640 pixels of 160 bands: NumPy mends dead spots, pageable, norm written out, TF32 network on 127 slopes, 24 things read."""

from __future__ import annotations

from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, written

BF16 = torch.bfloat16


class Spectra(nn.Module):
    """Names the matter of each pixel."""

    def __init__(self, bands: int, width: int, kinds: int) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(bands, width), nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, kinds)
        for layer in (self.first, self.second, self.third, self.head):
            nn.init.zeros_(layer.bias)

    def widen(self, spare: int) -> None:
        self.first.weight = nn.Parameter(F.pad(self.first.weight.detach(), (0, spare)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.relu(self.second(x))
        x = F.relu(self.third(x))
        return self.head(x)


def absorbed(raw: Tensor, dark: Tensor, white: Tensor) -> Tensor:
    """From counts to the logarithm of Kubelka's and Munk's ratio."""
    light = (raw.float() - dark) / (white - dark)
    light = torch.where(light > 0.995, 0.995, light)
    light = light.clamp(min=0.004)
    return torch.log1p((1 - light) ** 2 / (2 * light))


def waste_belt(
    s: Setup,
    *,
    repaired_there: bool = False,
    ahead: bool = False,
    compiled: bool = False,
    copied: bool = True,
    normed: bool = False,
    padded: bool = False,
    autocast: bool = False,
    at_once: bool = False,
) -> Step:
    """384 lines of 640 pixels of 160 bands: NumPy mends dead spots, pageable, norms written out, a network in TF32 on 127 slopes, each thing is read."""
    lines, columns, bands, kept = s.size(384, 16), s.size(640, 20), s.size(160, 12), s.size(127, 7)
    kinds, width, things, window = s.size(12, 4), s.size(768, 16), s.size(24, 3), s.size(48, 4)
    rng = np.random.default_rng(41)
    films, places = [], []
    for _ in range(3):
        film = torch.randint(200, 3600, (lines, columns, bands), dtype=torch.int16)
        films.append(s.pin(film) if ahead else film)
        places.append([(int(y * (lines - window)), int(x * (columns - window))) for y, x in rng.random((things, 2))])
    bad_x, bad_b = rng.integers(0, columns, s.size(400, 5)), 2 * rng.integers(0, bands // 2 - 1, s.size(400, 5)) + 1
    chosen = [*range(2, bands - 2)]
    chosen = chosen[: kept // 2] + chosen[len(chosen) - (kept - kept // 2) :]
    slopes = torch.zeros(bands, kept)
    for column, band in enumerate(chosen):
        slopes[band - 2 : band + 3, column] = torch.tensor([-0.2, -0.1, 0.0, 0.1, 0.2])
    spare = -kept % 16 if padded else 0
    slopes = F.pad(slopes, (0, spare)).to(s.device)
    with s.device:
        network = Spectra(kept, width, kinds).eval()
        dark, white = torch.rand(columns, bands) * 50 + 100, torch.rand(columns, bands) * 200 + 3700
        near = torch.arange(window)
        spots, rows = torch.tensor(bad_x), torch.tensor(bad_b)
        corners = torch.tensor(places)
    if spare:
        network.widen(spare)
    absorb = s.compile(absorbed, dynamic=False) if compiled else absorbed
    turn = counter()

    def mend(film: Tensor) -> None:
        x = film.numpy()
        x[:, bad_x, bad_b] = (x[:, bad_x, bad_b - 1] + x[:, bad_x, bad_b + 1]) // 2

    if ahead and not repaired_there:
        mend(films[0])
    loader = Prefetcher([(film,) for film in films], s) if ahead else None

    def standard(x: Tensor) -> Tensor:
        if normed:
            return F.layer_norm(x, (bands,), eps=1e-6)
        mean = x.mean(-1, keepdim=True)
        centred = x - mean
        var = centred.pow(2).mean(-1, keepdim=True)
        return centred / torch.sqrt(var + 1e-6)

    def smooth(x: Tensor) -> Tensor:
        if copied:
            image = x.permute(2, 0, 1).contiguous()[None]
            return F.avg_pool2d(image, 3, 1, 1)[0].permute(1, 2, 0).contiguous()
        return F.avg_pool2d(x[None].permute(0, 3, 1, 2), 3, 1, 1)[0].permute(1, 2, 0)

    def bring(n: int) -> Tensor:
        film = films[(n + 1 if ahead else n) % len(films)]
        if not repaired_there:
            mend(film)
        raw = loader.next()[0] if loader else film.to(s.device)
        if repaired_there:
            raw[:, spots, rows] = (raw[:, spots, rows - 1] + raw[:, spots, rows + 1]) // 2
        return raw

    @torch.no_grad()
    def step() -> list[tuple[int, float]]:
        torch.set_float32_matmul_precision("high")
        n = next(turn)
        x = standard(smooth(absorb(bring(n), dark, white)))
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            logits = network(x.reshape(-1, bands) @ slopes)
        labels = logits.argmax(-1).view(lines, columns)
        if at_once:
            corner = corners[n % len(films)]
            y, z = corner[:, 0, None, None] + near[:, None], corner[:, 1, None, None] + near
            piece = labels[y, z].flatten(1)
            counts = torch.zeros(things, kinds, dtype=torch.long, device=s.device).scatter_add_(1, piece, torch.ones_like(piece))
            share, kind = (counts[:, 1:].float() / window**2).max(1)
            answer = torch.stack([kind + 1.0, share]).tolist()
            return [(int(k), v) for k, v in zip(*answer, strict=True)]
        verdicts = []
        for top, left in places[n % len(films)]:
            piece = labels[top : top + window, left : left + window].flatten()
            counts = torch.bincount(piece, minlength=kinds)[1:]
            best = counts.argmax()
            verdicts.append((int(best.item()) + 1, (counts[best] / window**2).item()))
        return verdicts

    return step


PROGRAM = written(
    "waste_belt",
    "384 lines of 640 pixels of 160 bands: NumPy mends dead spots, pageable, norm written out, TF32 network on 127 slopes, 24 things read.",
    "dead spots mended on the GPU; pinned films copied ahead; torch.compile of the chain; smoothing without transposes; layer_norm; 127 padded to 128; "
    "bf16 autocast; all things at once and one read",
    waste_belt,
    {
        "host-bound": {"repaired_there": True},
        "memcpy": {"ahead": True},
        "unfused-elementwise": {"compiled": True},
        "memory-layout": {"copied": False},
        "unfused-norm": {"normed": True},
        "gemm-alignment": {"padded": True},
        "precision": {"autocast": True},
        "sync-stall": {"at_once": True},
    },
)
