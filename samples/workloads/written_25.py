"""Programs by an author who has not read the rules: ice charts, sounds of hives, points of rubble, blocks with fossils.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from itertools import count as counter
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written

BF16 = torch.bfloat16


# Ice charts: radar pictures of the sea are divided into kinds of ice; attention goes along columns, then along rows (Axial-DeepLab).


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


# Hives: what a colony is up to, moment by moment of its sound, by a gated linear RNN whose forgetting has a floor (HGRN).


def root_mean_square(x: Tensor, gain: Tensor, library: bool) -> Tensor:
    if library:
        return F.rms_norm(x, x.shape[-1:], gain, 1e-6)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gain


def recurrence(gates: Tensor, floor: Tensor, chunk: int) -> Tensor:
    """h = forget h + (1 - forget) new: running sums within a chunk, and what each chunk leaves to the next."""
    forget, new, out = gates.float().chunk(3, -1)
    forget = floor + (1.0 - floor) * torch.sigmoid(forget)
    new = (1.0 - forget) * F.silu(new)
    kept = torch.log(forget).unflatten(1, (-1, chunk)).cumsum(2)
    inner = torch.exp(kept) * torch.cumsum(new.unflatten(1, (-1, chunk)) * torch.exp(-kept), 2)
    state, states = torch.zeros_like(new[:, 0]), []
    for share, last in zip(torch.exp(kept[:, :, -1]).unbind(1), inner[:, :, -1].unbind(1), strict=True):
        states.append(state)
        state = share * state + last
    hidden = inner + torch.exp(kept) * torch.stack(states, 1)[:, :, None]
    return hidden.flatten(1, 2) * torch.sigmoid(out)


def gated_half(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


class Comb(nn.Module):
    """A layer of the recurrence and one of a gated feed-forward; `norm`, `recur` and `gated` are the functions above."""

    def __init__(self, width: int, floor: float, chunk: int, library: bool, norm: Any, recur: Any, gated: Any) -> None:
        super().__init__()
        self.chunk, self.library = chunk, library
        self.register_buffer("floor", torch.tensor(floor))
        self.norm, self.recur, self.gated = norm, recur, gated
        self.gates, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.recur(self.gates(self.norm(x, self.gains[0], self.library)), self.floor, self.chunk)
        x = x + self.out(self.norm(hidden, self.gains[1], self.library))
        return x + self.down(self.gated(self.up(self.norm(x, self.gains[2], self.library))))


class Apiary(nn.Module):
    def __init__(self, bands: int, width: int, layers: int, chunk: int, doings: int, *how: Any) -> None:
        super().__init__()
        self.hear, self.say = nn.Linear(bands, width), nn.Linear(width, doings)
        self.combs = nn.Sequential(*(Comb(width, 0.75 + 0.2 * n / layers, chunk, *how) for n in range(layers)))

    def forward(self, sound: Tensor) -> Tensor:
        return self.say(self.combs(self.hear(sound)))


def hive_sounds(
    s: Setup, *, compiled: bool = False, autocast: bool = False, library: bool = False, fused: bool = False, none: bool = False,
    graphed: bool = False,
) -> Step:  # fmt: skip
    """Training in TF32 on sixteen recordings of 1024 moments that lie on the GPU; gradients are filled with zeros."""
    count, moments, bands, doings = s.size(16, 2), s.size(1024, 16), s.size(80, 6), s.size(12, 3)
    functions = [root_mean_square, recurrence, gated_half]
    if compiled:
        functions = [s.compile(function, dynamic=False) for function in functions]
    with s.device:
        model = Apiary(bands, s.size(512, 8), s.size(6, 2), s.size(64, 4), doings, library, *functions)
        sounds, heard = torch.randn(4, count, moments, bands), torch.rand(4, count, moments, doings).round()
        sound, told, mean = sounds[0].clone(), heard[0].clone(), torch.zeros(())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=fused or None, capturable=graphed and s.cuda)
    turn = counter()

    def learn() -> None:
        optimizer.zero_grad(set_to_none=none)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            says = model(sound)
        loss = F.binary_cross_entropy_with_logits(says.float(), told)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean.lerp_(loss.detach(), 0.02)

    torch.set_float32_matmul_precision("high")
    update = capture(learn, s) if graphed else learn

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        n = next(turn) % len(sounds)
        sound.copy_(sounds[n])
        told.copy_(heard[n])
        update()
        return mean

    return step


# Rubble: which points of a fallen building are wall, slab, steel, void... by attention that weighs each channel (Point Transformer).


def square_distances(a: Tensor, b: Tensor) -> Tensor:
    x, y, z = (a[:, :, None, axis] - b[:, None, :, axis] for axis in range(3))
    return x * x + y * y + z * z


def gathered(x: Tensor, near: Tensor) -> Tensor:
    """Rows of (clouds, points, width) that (clouds, points, neighbours) names."""
    clouds, points, neighbours = near.shape
    rows = near.view(clouds, -1, 1).expand(-1, -1, x.shape[-1])
    return x.gather(1, rows).view(clouds, points, neighbours, -1)


def share_among(x: Tensor, library: bool) -> Tensor:
    """A softmax over the neighbours; written out unless `library`."""
    if library:
        return torch.softmax(x, 2)
    e = torch.exp(x - x.max(2, keepdim=True).values)
    return e / e.sum(2, keepdim=True)


class VectorAttention(nn.Module):
    def __init__(self, width: int, library: bool) -> None:
        super().__init__()
        self.library = library
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.place = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.weigh = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, xyz: Tensor, near: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        place = self.place(xyz[:, :, None] - gathered(xyz, near))
        weights = self.weigh(q[:, :, None] - gathered(k, near) + place)
        weights = share_among(weights / math.sqrt(x.shape[-1]), self.library)
        x = x + self.out((weights * (gathered(v, near) + place)).sum(2))
        return x + self.feed(self.between(x))


class Rubble(nn.Module):
    """Three scales; points come shuffled, so that the first fourth of them is a sample."""

    def __init__(self, width: int, kinds: int, neighbours: int, library: bool) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.neighbours, self.apart = neighbours, square_distances
        self.rise = nn.Linear(6, width)
        self.encode = nn.ModuleList(nn.ModuleList(VectorAttention(w, library) for _ in range(2)) for w in widths)
        self.decode = nn.ModuleList(VectorAttention(w, library) for w in widths[:-1])
        self.down = nn.ModuleList(nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 2 * w)) for w in widths[:-1])
        self.up = nn.ModuleList(nn.Linear(2 * w, w) for w in widths[:-1])
        self.say = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, kinds))

    def nearest(self, a: Tensor, b: Tensor, many: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return self.apart(a, b).topk(many, -1, largest=False, sorted=False)

    def forward(self, xyz: Tensor, colour: Tensor) -> Tensor:
        x = self.rise(torch.cat([xyz, colour], -1))
        places = [xyz, xyz[:, : xyz.shape[1] // 4], xyz[:, : xyz.shape[1] // 16]]
        nears = [self.nearest(place, place, self.neighbours)[1] for place in places]
        skips = []
        for scale, blocks in enumerate(self.encode):
            for block in blocks:
                x = block(x, places[scale], nears[scale])
            if scale < len(self.down):
                skips.append(x)
                x = self.down[scale](gathered(x, nears[scale][:, : x.shape[1] // 4]).amax(2))
        for scale in reversed(range(len(self.decode))):
            far, which = self.nearest(places[scale], places[scale + 1], 3)
            share = 1.0 / (far + 1e-6)
            share = share / share.sum(-1, keepdim=True)
            raised = (gathered(self.up[scale](x), which) * share[..., None]).sum(2)
            x = self.decode[scale](skips[scale] + raised, places[scale], nears[scale])
        return self.say(x)


def shaken(xyz: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each cloud is turned, made larger or smaller, and its points are moved a little."""
    angle = rng.uniform(0.0, 2.0 * np.pi, len(xyz))
    cos, sin, zero, one = np.cos(angle), np.sin(angle), np.zeros_like(angle), np.ones_like(angle)
    turned = np.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], -1).reshape(-1, 3, 3)
    xyz = np.einsum("bnd,bde->bne", xyz, turned) * rng.uniform(0.8, 1.2, (len(xyz), 1, 1))
    return (xyz + rng.normal(0.0, 0.01, xyz.shape).clip(-0.05, 0.05)).astype(np.float32)


def shaken_tensor(xyz: Tensor) -> Tensor:
    angle = 2.0 * math.pi * torch.rand(len(xyz), device=xyz.device)
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    turned = torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], -1).view(-1, 3, 3)
    xyz = torch.einsum("bnd,bde->bne", xyz, turned) * (0.8 + 0.4 * torch.rand(len(xyz), 1, 1, device=xyz.device))
    return xyz + (0.01 * torch.randn_like(xyz)).clamp(-0.05, 0.05)


def rubble_points(
    s: Setup, *, tf32: bool = False, compiled: bool = False, library: bool = False, read: bool = True, on_gpu: bool = False,
    fused: bool = False,
) -> Step:  # fmt: skip
    """Training in FP32 on sixteen clouds of 2048 points, some of them without a label (-1); NumPy shakes the clouds."""
    count, points, kinds = s.size(16, 2), s.size(2048, 64), s.size(9, 3)
    with s.device:
        model = Rubble(s.size(64, 4), kinds, s.size(16, 3), library)
    if compiled:
        model.apart = s.compile(square_distances, dynamic=False)
        for blocks in (*model.encode, model.decode):
            for n, block in enumerate(blocks):
                blocks[n] = s.compile(block, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **({"fused": True} if fused else {"foreach": False}))
    rng, turn, log = np.random.default_rng(0), counter(), [0.0, 0.0]
    clouds = [rng.uniform(-1.0, 1.0, (count, points, 3)).astype(np.float32) for _ in range(4)]
    rest = [(torch.rand(count, points, 3), torch.randint(-1, kinds, (count, points))) for _ in clouds]
    noted = torch.zeros(2, device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        n = next(turn) % len(clouds)
        colour, label = (part.to(s.device) for part in rest[n])
        if on_gpu:
            xyz = shaken_tensor(torch.from_numpy(clouds[n]).to(s.device))
        else:
            xyz = torch.from_numpy(shaken(clouds[n], rng)).to(s.device)
        optimizer.zero_grad()
        says, known = model(xyz, colour), label >= 0
        if read:
            says, label = says[known], label[known]
            loss = F.cross_entropy(says, label)
            right = (says.argmax(-1) == label).float().mean()
        else:
            share = known / known.sum()
            loss = (F.cross_entropy(says.flatten(0, 1), label.flatten(), ignore_index=-1, reduction="none").view_as(share) * share).sum()
            right = ((says.argmax(-1) == label) * share).sum()
        loss.backward()
        optimizer.step()
        if read:
            log[:] = [0.95 * log[0] + 0.05 * loss.item(), 0.95 * log[1] + 0.05 * right.item()]
        else:
            noted.lerp_(torch.stack([loss.detach(), right]), 0.05)
        return loss.detach()

    return step


# Fossils: bone and stone in a scan of a block of rock, window after window through a residual 3D U-Net (nnU-Net).


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
        self.down = nn.ModuleList(
            Stratum(inner, outer, 2 if n else 1, library) for n, (inner, outer) in enumerate(zip([1, *widths], widths, strict=False))
        )
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


WORKLOADS = (
    written(
        "ice_charts", "Axial attention on sixteen radar tiles, bf16 weights: attention, norms written out, softmax and GELU in FP32; pageable.",
        "scaled_dot_product_attention; F.layer_norm; no casts; torch.compile; channels_last; pinned tiles and charts", ice_charts,
        {
            "unfused-attention": {"sdpa": True}, "unfused-norm": {"library": True}, "dtype-casts": {"casts": False},
            "unfused-elementwise": {"compiled": True}, "memory-layout": {"last": True}, "memcpy": {"pinned": True},
        }, gpu_bound=True,
    ),
    written(
        "hive_sounds", "A gated linear RNN (HGRN) of six layers in training, TF32: running sums in chunks; RMS norms written out; zeros filled.",
        "torch.compile of recurrence, norms and gates; bf16 autocast; F.rms_norm; fused AdamW; set_to_none; the step as a CUDA graph",
        hive_sounds,
        {
            "unfused-elementwise": {"compiled": True}, "precision/bf16": {"autocast": True}, "unfused-norm": {"library": True},
            "optimizer-foreach": {"fused": True}, "grad-zeroing": {"none": True}, "graph-candidate": {"graphed": True},
        }, gpu_bound=True,
    ),
    written(
        "rubble_points", "A Point Transformer in training on 16 x 2048 points, FP32; softmax written out; NumPy shakes; labels are picked; AdamW in a loop.",
        "TF32; torch.compile of blocks and distances; torch.softmax; masks, nothing is read; shaken on the GPU; fused AdamW", rubble_points,
        {
            "precision/tf32": {"tf32": True}, "unfused-elementwise": {"compiled": True}, "unfused-norm": {"library": True},
            "sync-stall": {"read": False}, "host-bound": {"on_gpu": True}, "optimizer-foreach": {"fused": True},
        },
    ),
    written(
        "fossil_block", "A 3D U-Net on eight windows of a scan, TF32, NCDHW; instance norms written out; empty_cache after each block; pageable.",
        "channels_last_3d; bf16 autocast; F.instance_norm; torch.compile; no empty_cache; pinned blocks and answers", fossil_block,
        {
            "memory-layout": {"last": True}, "precision/bf16": {"autocast": True}, "unfused-norm": {"library": True},
            "unfused-elementwise": {"compiled": True}, "allocator": {"kept": True}, "memcpy": {"pinned": True},
        }, gpu_bound=True,
    ),
)  # fmt: skip
