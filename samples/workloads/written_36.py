"""Services and pipelines in their authors' own code: fish at a weir, routes to a molecule, a tractor's lidar, a ferry line's offers.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written

BF16 = torch.bfloat16


# A weir: what swims past four cameras (a mixture of Gaussians for each pixel, then a small network on the busiest cells).


class Species(nn.Module):
    """Tells what swims in a crop."""

    def __init__(self, channels: Sequence[int], kinds: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in zip((3, *channels[:-1]), channels, strict=True):
            layers += [nn.Conv2d(inner, outer, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(channels[-1], kinds)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


def matched(frame: Tensor, mean: Tensor, var: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Moves each pixel's best component towards the frame; which pixels no component explains, and which move."""
    rate = 0.01
    apart = ((frame[:, None] - mean) ** 2).sum(2)
    near = apart < 18.75 * var
    rank = torch.where(near, weight / torch.sqrt(var), -1.0)
    hot = (near & (rank == rank.amax(1, keepdim=True))).float()
    weight += rate * (hot - weight)
    rho = rate * hot / torch.clamp(weight, min=rate)
    mean += rho[:, :, None] * (frame[:, None] - mean)
    var += rho * (apart / 3.0 - var)
    var.clamp_(1e-4, 0.05)
    lost = ~near.any(1)
    return lost, lost | ((hot * weight).sum(1) < 0.1)


def cleaned(moving: Tensor) -> Tensor:
    """Opened by 3 x 3, closed by 7 x 7."""
    x = moving[:, None].float()
    x = F.max_pool2d(-F.max_pool2d(-x, 3, 1, 1), 3, 1, 1)
    return -F.max_pool2d(-F.max_pool2d(x, 7, 1, 3), 7, 1, 3)


def weir_salmon(
    s: Setup,
    *,
    compiled: bool = False,
    asked: bool = True,
    graphed: bool = False,
    ahead: bool = False,
    together: bool = False,
    autocast: bool = False,
    copied: bool = True,
) -> Step:
    """Four frames of four cameras: a mixture of Gaussians in FP32 finds what moves, a network names it; pageable frames, positions are read."""
    cameras, frames, components, kinds, busiest = s.size(4, 2), s.size(4, 2), s.size(4, 3), s.size(6, 3), s.size(4, 2)
    cell, down, across = s.size(60, 8), s.size(9, 3), s.size(16, 4)
    high, wide = cell * down, cell * across
    river = torch.randint(40, 200, (cameras, high, wide, 3), dtype=torch.int16)
    ripples = torch.randint(-4, 5, (cameras, high, wide, 3), dtype=torch.int16)
    shelf = []
    for part in range(3):
        film = torch.stack([river + ripples.roll(7 * (part * frames + n), 1) for n in range(frames)]).to(torch.uint8)
        for n in range(frames):
            for camera in range(cameras):
                for y, x in torch.rand(6, 2).tolist():
                    top, left = int(y * (high - cell // 2)), int(x * (wide - cell))
                    film[n, camera, top : top + cell // 2, left : left + cell] = 230
        shelf.append(film)
    loader = Prefetcher([(s.pin(film),) for film in shelf], s) if ahead else None
    with s.device:
        network = Species([s.size(width, 8) for width in (32, 64, 128, 128)], kinds).eval()
        mean, var = torch.rand(cameras, components, 3, high, wide), torch.full((cameras, components, high, wide), 0.01)
        weight, order = torch.full((cameras, components, high, wide), 1 / components), torch.arange(components)[:, None, None]
        counted, still = torch.zeros(kinds, dtype=torch.long), torch.zeros(cameras, high, wide, 3, dtype=torch.uint8)
    match = s.compile(matched, dynamic=False) if compiled else matched
    reading, tally, turn = asked and not graphed, [0] * kinds, counter()

    def renew(frame: Tensor, lost: Tensor) -> None:
        """A pixel that nothing explains gets a new component in place of its weakest."""
        weakest = weight.argmin(1)
        if reading:
            n, y, x = torch.where(lost)
            k = weakest[n, y, x]
            mean[n, k, :, y, x] = frame[n, :, y, x]
            var[n, k, y, x] = 0.01
            weight[n, k, y, x] = 0.05
        else:
            new = lost[:, None] & (order == weakest[:, None])
            mean.copy_(torch.where(new[:, :, None], frame[:, None], mean))
            var.masked_fill_(new, 0.01)
            weight.masked_fill_(new, 0.05)
        weight.div_(weight.sum(1, keepdim=True))

    def named(crops: Tensor) -> Tensor:
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            return network(crops).argmax(1)

    def cut(frame: Tensor, camera: int, place: int) -> Tensor:
        top, left = place // across * cell, place % across * cell
        return frame[camera, :, top : top + cell, left : left + cell]

    def watch(raw: Tensor) -> None:
        frame = raw.permute(0, 3, 1, 2)
        frame = (frame.contiguous() if copied else frame).float() / 255
        lost, moving = match(frame, mean, var, weight)
        renew(frame, lost)
        shares, places = F.avg_pool2d(cleaned(moving), cell).flatten(1).topk(busiest)
        if not reading:
            tiles = frame.view(cameras, 3, down, cell, across, cell).permute(0, 2, 4, 1, 3, 5)
            for camera in range(cameras):
                crops = tiles[camera, places[camera] // across, places[camera] % across]
                counted.index_add_(0, named(crops), (shares[camera] > 0.05).long())
        elif together:
            cells, full = places.tolist(), (shares > 0.05).flatten().tolist()
            found = named(torch.stack([cut(frame, camera, place) for camera in range(cameras) for place in cells[camera]])).tolist()
            for kind, counts in zip(found, full, strict=True):
                tally[kind] += counts
        else:
            for camera in range(cameras):
                crops = torch.stack([cut(frame, camera, place) for place in places[camera].tolist()])
                for kind, share in zip(named(crops).tolist(), shares[camera].tolist(), strict=True):
                    tally[kind] += share > 0.05

    with torch.no_grad():
        work = capture(lambda: watch(still), s) if graphed else None

    @torch.no_grad()
    def step() -> list[int]:
        film = loader.next()[0] if loader else shelf[next(turn) % len(shelf)]
        for raw in film:
            if work is not None:
                still.copy_(raw)
                work()
            else:
                watch(raw.to(s.device))
        return tally if reading else counted.tolist()

    return step


# Routes to a molecule: which substances make it (a transformer from string to string, ten beams).


class Attend(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.key(x)), self.split(self.value(x))

    def forward(self, x: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        q = self.split(self.query(x))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
            if seen is not None:
                scores = scores.masked_fill(~seen, -1e4)
            y = torch.matmul(scores.softmax(dim=-1), v)
        return self.out(y.transpose(1, 2).flatten(2))


def feed_forward(width: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


class Reader(nn.Module):
    """A layer of the encoder."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.norm, self.attend, self.feed = nn.LayerNorm(width), Attend(width, heads, fused), feed_forward(width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attend(y, *self.attend.keys(y), seen)
        return x + self.feed(x)


class Writer(nn.Module):
    """A layer of the decoder and what it keeps: keys and values that grow by a word, or (`still`) lie in one place."""

    past_k: Tensor
    past_v: Tensor
    source_k: Tensor
    source_v: Tensor

    def __init__(self, width: int, heads: int, fused: bool, still: bool, rows: int, longest: int, source: int, kept: torch.dtype) -> None:
        super().__init__()
        self.still = still
        self.norm, self.attend = nn.LayerNorm(width), Attend(width, heads, fused)
        self.cross_norm, self.cross, self.feed = nn.LayerNorm(width), Attend(width, heads, fused), feed_forward(width)
        for name, words in (("past_k", longest), ("past_v", longest), ("source_k", source), ("source_v", source)):
            self.register_buffer(name, torch.zeros(rows, heads, words, width // heads, dtype=kept), persistent=False)

    def begin(self, memory: Tensor) -> None:
        k, v = self.cross.keys(memory)
        if self.still:
            self.source_k.copy_(k)
            self.source_v.copy_(v)
        else:
            self.source_k, self.source_v = k, v
            self.past_k, self.past_v = self.past_k[:, :, :0], self.past_v[:, :, :0]

    def reorder(self, parents: Tensor) -> None:
        k, v = self.past_k.index_select(0, parents), self.past_v.index_select(0, parents)
        if self.still:
            self.past_k.copy_(k)
            self.past_v.copy_(v)
        else:
            self.past_k, self.past_v = k, v

    def forward(self, x: Tensor, place: Tensor, said: Tensor | None, seen: Tensor) -> Tensor:
        y = self.norm(x)
        k, v = self.attend.keys(y)
        if self.still:
            self.past_k.index_copy_(2, place, k)
            self.past_v.index_copy_(2, place, v)
        else:
            self.past_k, self.past_v = torch.cat([self.past_k, k], 2), torch.cat([self.past_v, v], 2)
        x = x + self.attend(y, self.past_k, self.past_v, said)
        x = x + self.cross(self.cross_norm(x), self.source_k, self.source_v, seen)
        return x + self.feed(x)


class Encoder(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, longest: int, fused: bool) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(words, width), nn.Embedding(longest, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(Reader(width, heads, fused) for _ in range(layers))

    def forward(self, ids: Tensor, seen: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x, seen)
        return self.norm(x)


class Decoder(nn.Module):
    def __init__(self, words: int, width: int, longest: int, still: bool, layers: list[Writer]) -> None:
        super().__init__()
        self.words, self.places, self.norm, self.head = nn.Embedding(words, width), nn.Embedding(longest, width), nn.LayerNorm(width), nn.Linear(width, words)
        self.layers, self.still = nn.ModuleList(layers), still
        self.register_buffer("order", torch.arange(longest), persistent=False)

    def forward(self, said: Tensor, place: Tensor, seen: Tensor) -> Tensor:
        x = self.words(said)[:, None] + self.places(place)
        before = (self.order <= place)[None, None, None] if self.still else None
        for layer in self.layers:
            x = layer(x, place, before, seen)
        return self.head(self.norm(x))[:, 0]


def synthesis_routes(
    s: Setup,
    *,
    products: int = 1,
    half: bool = False,
    fused: bool = False,
    read_each: bool = True,
    graphed: bool = False,
    compiled: bool = False,
    pinned: bool = False,
) -> Step:
    """A molecular transformer under FP16 autocast writes 16 symbols with ten beams: a cache that grows, attention by hand, each symbol is read."""
    dtype = torch.float16 if s.cuda else BF16
    words, width, heads, layers = s.size(320, 20), s.size(512, 16), s.size(8, 2), s.size(4, 2)
    beams, source, longest, start, end = s.size(10, 3), s.size(96, 8), s.size(16, 4), 1, 2
    rows, still = products * beams, graphed or compiled
    lengths = torch.randint(source // 2, source + 1, (8, products, 1))
    asked_for = [torch.randint(3, words, (products, source)).masked_fill(torch.arange(source) >= length, 0) for length in lengths]
    if pinned:
        asked_for = [s.pin(ids) for ids in asked_for]
    with s.device:
        encoder = Encoder(words, width, heads, layers, source, fused).eval()
        writers = [Writer(width, heads, fused, still, rows, longest, source, dtype) for _ in range(layers)]
        decoder = Decoder(words, width, longest, still, writers).eval()
        said, place, done = torch.full((rows,), start), torch.zeros(1, dtype=torch.long), torch.zeros(rows, dtype=torch.bool)
        parents, scores, seen = torch.zeros(rows, dtype=torch.long), torch.zeros(rows), torch.ones(rows, 1, 1, source, dtype=torch.bool)
        first = torch.arange(products)[:, None] * beams
        only_end, opening = torch.full((words,), -1e9), torch.full((products, beams), -1e9)
        only_end[end], opening[:, 0] = 0.0, 0.0
        decoder.head.bias.data[end] = -8.0  # no molecule ends within the first symbols
    if half:
        encoder, decoder = encoder.to(dtype), decoder.to(dtype)
    network = s.compile(decoder, mode="reduce-overhead", dynamic=False) if compiled else decoder
    turn = counter()

    def symbol() -> None:
        with torch.autocast(s.device.type, dtype, enabled=not half):
            logits = network(said, place, seen)
        likely = F.log_softmax(logits.float(), dim=-1)
        likely = torch.where(done[:, None], only_end, likely)
        best, flat = (scores[:, None] + likely).view(products, beams * words).topk(beams)
        scores.copy_(best.flatten())
        parents.copy_((flat // words + first).flatten())
        said.copy_((flat % words).flatten())
        done.copy_(done[parents] | (said == end))
        for writer in writers:
            writer.reorder(parents)
        place.add_(1)

    with torch.no_grad():
        work = capture(symbol, s) if graphed else symbol

    def spelled(steps: list[list[list[int]]]) -> list[list[int]]:
        """The best beam of each product, followed back."""
        texts = []
        for product in range(products):
            row, text = product * beams, []
            for before, symbols in reversed(steps):
                text.append(symbols[row])
                row = before[row]
            texts.append(text[::-1])
        return texts

    @torch.no_grad()
    def step() -> list[list[int]]:
        ids = asked_for[next(turn) % len(asked_for)].to(s.device, non_blocking=pinned)
        there = (ids != 0)[:, None, None]
        with torch.autocast(s.device.type, dtype, enabled=not half):
            memory = encoder(ids, there).repeat_interleave(beams, 0)
            for writer in writers:
                writer.begin(memory)
        seen.copy_(there.repeat_interleave(beams, 0))
        scores.copy_(opening.flatten())
        said.fill_(start)
        done.zero_()
        place.zero_()
        steps: list[list[list[int]]] = []
        kept: list[Tensor] = []
        for _ in range(longest):
            work()
            if not read_each:
                kept.append(torch.stack([parents, said]))
                continue
            steps.append([parents.tolist(), said.tolist()])
            if done.all():
                break
        return spelled(steps if read_each else torch.stack(kept).tolist())

    return step


# A tractor among vines: posts, vines and people in a sweep of its lidar (PointPillars, centres for boxes).


class Grid:
    """Where the pillars stand, and how many points each may hold."""

    def __init__(self, nx: int, ny: int, most: int, each: int) -> None:
        self.nx, self.ny, self.most, self.each = nx, ny, most, each
        self.size, self.left, self.right = 0.16, 0.0, -0.08 * ny

    def on_host(self, points: np.ndarray, table: np.ndarray, cells: np.ndarray) -> None:
        ix = np.floor((points[:, 0] - self.left) / self.size).astype(np.int64)
        iy = np.floor((points[:, 1] - self.right) / self.size).astype(np.int64)
        inside = (ix >= 0) & (ix < self.nx) & (iy >= 0) & (iy < self.ny) & (points[:, 2] > -3.0) & (points[:, 2] < 1.0)
        points, cell = points[inside], (iy * self.nx + ix)[inside]
        order = np.argsort(cell, kind="stable")
        points, cell = points[order], cell[order]
        kept, begins, number = np.unique(cell, return_index=True, return_inverse=True)
        rank = np.arange(len(cell)) - begins[number]
        good = (rank < self.each) & (number < self.most)
        table.fill(0.0)
        cells.fill(self.nx * self.ny)
        table[number[good], rank[good]] = points[good]
        cells[: len(kept)] = kept[: self.most]

    def on_device(self, points: Tensor) -> tuple[Tensor, Tensor]:
        ix, iy = ((points[:, 0] - self.left) / self.size).floor().long(), ((points[:, 1] - self.right) / self.size).floor().long()
        inside = (ix >= 0) & (ix < self.nx) & (iy >= 0) & (iy < self.ny) & (points[:, 2] > -3.0) & (points[:, 2] < 1.0)
        nowhere = self.nx * self.ny
        cell, order = torch.where(inside, iy * self.nx + ix, nowhere).sort(stable=True)
        at = torch.arange(len(cell), device=cell.device)
        begins = (cell != cell.roll(1)) | (at == 0)
        number, rank = begins.cumsum(0) - 1, at - torch.where(begins, at, 0).cummax(0).values
        good = (cell < nowhere) & (rank < self.each) & (number < self.most)
        row = torch.where(good, number, self.most)
        table = torch.zeros(self.most + 1, self.each, 4, device=cell.device)
        table[row, torch.where(good, rank, 0)] = points[order]
        cells = torch.full((self.most + 1,), nowhere, device=cell.device)
        cells[row] = torch.where(good, cell, nowhere)
        return table[:-1], cells[:-1]


def conv_norm(inner: int, outer: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(outer, eps=1e-3), nn.ReLU()]


class Pillars(nn.Module):
    def __init__(self, grid: Grid, widths: Sequence[int], depths: Sequence[int], kinds: int, turned: bool) -> None:
        super().__init__()
        self.grid, self.turned, self.kinds = grid, turned, kinds
        self.layout = torch.contiguous_format
        self.linear, self.norm = nn.Linear(9, widths[0], bias=False), nn.BatchNorm1d(widths[0], eps=1e-3)
        self.blocks, self.ups = nn.ModuleList(), nn.ModuleList()
        for n, (inner, outer, depth) in enumerate(zip((widths[0], *widths[:-1]), widths, depths, strict=True)):
            layers = conv_norm(inner, outer, 2)
            for _ in range(depth):
                layers += conv_norm(outer, outer, 1)
            self.blocks.append(nn.Sequential(*layers))
            up = nn.ConvTranspose2d(outer, widths[1], 2**n, stride=2**n, bias=False)
            self.ups.append(nn.Sequential(up, nn.BatchNorm2d(widths[1], eps=1e-3), nn.ReLU()))
        self.shared = nn.Sequential(*conv_norm(len(widths) * widths[1], widths[0], 1))
        self.head = nn.Conv2d(widths[0], kinds + 8, 3, padding=1)

    def canvas(self, table: Tensor, cells: Tensor) -> Tensor:
        grid = self.grid
        there = table.abs().sum(-1, keepdim=True) > 0
        centre = table[..., :3].sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)
        middle = torch.stack([(cells % grid.nx + 0.5) * grid.size + grid.left, (cells // grid.nx + 0.5) * grid.size + grid.right], -1)
        x = self.linear(torch.cat([table, table[..., :3] - centre, table[..., :2] - middle[:, None]], -1) * there)
        if self.turned:
            x = self.norm(x.permute(0, 2, 1).contiguous()).permute(0, 2, 1).contiguous()
        else:
            x = self.norm(x.flatten(0, 1)).view(x.shape)
        x = F.relu(x).max(dim=1).values
        flat = torch.zeros(x.shape[1], grid.nx * grid.ny + 1, dtype=x.dtype, device=x.device)
        flat[:, cells] = x.t()
        return flat[:, :-1].reshape(1, x.shape[1], grid.ny, grid.nx).contiguous(memory_format=self.layout)

    def forward(self, table: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        x, parts = self.canvas(table, cells), []
        for block, up in zip(self.blocks, self.ups, strict=True):
            x = block(x)
            parts.append(up(x))
        maps = self.head(self.shared(torch.cat(parts, 1)))[0].float()
        heat = torch.sigmoid(maps[: self.kinds] - 2.19)
        peaks = torch.where(heat == F.max_pool2d(heat, 3, 1, 1), heat, 0.0).flatten(1)
        down, across = maps.shape[1:]
        y, x = torch.arange(down, device=maps.device)[:, None], torch.arange(across, device=maps.device)
        dx, dy, z, long, wide, tall, sine, cosine = maps[self.kinds :]
        stride = 2 * self.grid.size
        boxes = [(x + dx) * stride + self.grid.left, (y + dy) * stride + self.grid.right, z, long.exp(), wide.exp(), tall.exp(), torch.atan2(sine, cosine)]
        return peaks, torch.stack([part.flatten() for part in boxes], -1)


def circled(boxes: np.ndarray, near: float) -> np.ndarray:
    """Boxes in falling order of their marks without those whose centre is near a better one's."""
    free, kept = np.ones(len(boxes), dtype=bool), []
    for n in range(len(boxes)):
        if free[n]:
            kept.append(n)
            free &= ((boxes[:, :2] - boxes[n, :2]) ** 2).sum(1) > near**2
    return boxes[kept]


def vineyard_pillars(
    s: Setup,
    *,
    on_device: bool = False,
    pinned: bool = False,
    channels_last: bool = False,
    turned: bool = True,
    autocast: bool = False,
    fixed: bool = False,
    compiled: bool = False,
) -> Step:
    """PointPillars on one lidar sweep, FP32 with TF32 convolutions, NCHW: NumPy sorts points into pillars, boxes are picked kind by kind by masks."""
    grid, bar, most = Grid(s.size(432, 16), s.size(496, 16), s.size(20_000, 40), s.size(32, 4)), 0.1, s.size(100, 5)
    rng = np.random.default_rng(362)
    sweeps = []
    for _ in range(8):
        many, far = int(rng.integers(s.size(55_000, 200), s.size(65_000, 300))), grid.nx * grid.size
        away, angle = far * rng.random(many) ** 4, rng.uniform(-0.7, 0.7, many)
        height = rng.normal(-1.2, 0.6, many)
        sweeps.append(np.stack([away * np.cos(angle), away * np.sin(angle), height, rng.random(many)], 1).astype(np.float32))
    kinds = 3
    with s.device:
        model = Pillars(grid, [s.size(width, 8) for width in (64, 128, 256)], [s.size(depth, 1) for depth in (3, 5, 5)], kinds, turned).eval()
    if channels_last:
        model, model.layout = model.to(memory_format=torch.channels_last), torch.channels_last
    network = s.compile(model, dynamic=False) if compiled else model
    rooms = (s.pin(torch.zeros(grid.most, grid.each, 4)), s.pin(torch.zeros(grid.most, dtype=torch.long))) if pinned else None
    turn = counter()

    def pillars(points: np.ndarray) -> tuple[Tensor, Tensor]:
        if on_device:
            return grid.on_device(torch.from_numpy(points).to(s.device))
        table, cells = rooms or (torch.empty(grid.most, grid.each, 4), torch.empty(grid.most, dtype=torch.long))
        grid.on_host(points, table.numpy(), cells.numpy())
        return table.to(s.device, non_blocking=pinned), cells.to(s.device, non_blocking=pinned)

    def picked(peaks: Tensor, boxes: Tensor) -> list[np.ndarray]:
        if fixed:
            marks, at = peaks.topk(most)
            every = torch.cat([boxes[at], marks[..., None]], -1).cpu().numpy()
            return [of_kind[of_kind[:, 7] > bar] for of_kind in every]
        found = []
        for kind in range(kinds):
            keep = peaks[kind] > bar
            if keep.sum() == 0:
                found.append(np.zeros((0, 8), dtype=np.float32))
                continue
            those, marks = boxes[keep], peaks[kind][keep]
            marks, at = marks.topk(min(most, len(marks)))
            found.append(np.concatenate([those[at].cpu().numpy(), marks.cpu().numpy()[:, None]], 1))
        return found

    @torch.no_grad()
    def step() -> list[np.ndarray]:
        torch.set_float32_matmul_precision("highest")
        table, cells = pillars(sweeps[next(turn) % len(sweeps)])
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            peaks, boxes = network(table, cells)
        return [circled(found, near) for found, near in zip(picked(peaks, boxes), (0.5, 1.0, 0.4), strict=True)]

    return step


# A ferry line at night: which of sixteen offers each customer gets (four deep and cross networks in FP64, as NumPy gave the columns).


class DeepCross(nn.Module):
    spare: Tensor

    def __init__(self, numbers: int, columns: int, codes: int, size: int, hidden: tuple[int, int]) -> None:
        super().__init__()
        width = numbers + columns * size
        self.embedding = nn.Embedding(columns * codes, size)
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(width, hidden[0]), nn.ReLU(), nn.Linear(hidden[0], hidden[1]), nn.ReLU())
        self.head = nn.Linear(hidden[1] + width, 1)
        self.register_buffer("spare", torch.zeros(1, 0))

    def widen(self, spare: int) -> None:
        """Columns of zeros after the features, in the layers themselves."""
        for layer in (*self.cross, self.deep[0], self.head):
            down = spare if layer in self.cross else 0
            layer.weight = nn.Parameter(F.pad(layer.weight.detach(), (0, spare, 0, down)))
            layer.bias = nn.Parameter(F.pad(layer.bias.detach(), (0, down)))
        self.spare = F.pad(self.spare, (0, spare))

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        known = torch.sign(numbers) * torch.log1p(numbers.abs())
        x0 = torch.cat([known, self.embedding(codes).flatten(1), self.spare.expand(len(numbers), -1)], 1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return self.head(torch.cat([self.deep(x0), x], 1))[:, 0]


def ferry_offers(
    s: Setup,
    *,
    times: int = 1,
    single: bool = False,
    prepared: bool = False,
    packed: bool = False,
    once: bool = False,
    together: bool = False,
    padded: bool = False,
) -> Step:
    """Four deep and cross networks in FP64 rank offers in eight parts of 2048 rows: words are looked up in Python, columns copied one by one."""
    parts, offers, customers = s.size(8, 2), s.size(16, 4), s.size(128, 3) * times
    count, coded, worded, codes, size = s.size(13, 5), s.size(16, 3), s.size(4, 2), s.size(2000, 20), s.size(16, 4)
    rows, columns, kept = customers * offers, coded + worded, s.size(5, 2)
    job = parts * s.size(2048, 12) * 8
    rng = np.random.default_rng(363)
    numbers = [rng.lognormal(2.0, 1.0, job) for _ in range(count)]
    known = [rng.integers(0, codes, job) for _ in range(coded)]
    vocabularies = [{f"{column}-{n:04d}": n for n in range(1, codes)} for column in range(worded)]
    texts = [[f"{column}-{n:04d}" for n in rng.integers(0, codes, job).tolist()] for column in range(worded)]
    looked_up = [np.array([words.get(word, 0) for word in text]) for words, text in zip(vocabularies, texts, strict=True)] if prepared else []
    dtype = torch.float32 if single else torch.float64
    if single:
        numbers = [column.astype(np.float32) for column in numbers]
    with s.device:
        members = [DeepCross(count, columns, codes, size, (s.size(512, 16), s.size(256, 8))).to(dtype).eval() for _ in range(4)]
        offsets = torch.arange(columns) * codes
    if padded:
        for member in members:
            member.widen(-(count + columns * size) % 16)
    state = torch.func.stack_module_state(members) if together else None
    rooms = [(s.pin(torch.zeros(rows, count, dtype=dtype)), s.pin(torch.zeros(rows, columns, dtype=torch.long))) for _ in range(parts)] if packed else []
    turn = counter()

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, code: Tensor) -> Tensor:
        return torch.func.functional_call(members[0], (parameters, buffers), (x, code))  # type: ignore[no-any-return]

    def features(part: int, at: slice) -> tuple[Tensor, Tensor]:
        if prepared:
            words = [column[at] for column in looked_up]
        else:
            words = [np.array([names.get(word, 0) for word in text[at]]) for names, text in zip(vocabularies, texts, strict=True)]
        reals, ints = [column[at] for column in numbers], [*(column[at] for column in known), *words]
        if packed:
            x, code = rooms[part]
            np.stack(reals, 1, out=x.numpy())
            np.stack(ints, 1, out=code.numpy())
            return x.to(s.device, non_blocking=True), code.to(s.device, non_blocking=True)
        return tuple(torch.stack([torch.from_numpy(column).to(s.device) for column in kind], 1) for kind in (reals, ints))  # type: ignore[return-value]

    @torch.no_grad()
    def step() -> np.ndarray:
        torch.set_float32_matmul_precision("high")
        begin = next(turn) * parts * rows % job
        chosen, written_down = [], []
        for part in range(parts):
            x, code = features(part, slice(begin + part * rows, begin + (part + 1) * rows))
            code = code + offsets
            if state is not None:
                logits = torch.vmap(one, in_dims=(0, 0, None, None))(*state, x, code)
            else:
                logits = torch.stack([member(x, code) for member in members])
            chance = torch.sigmoid(logits)
            worth = (chance.mean(0) + 0.3 * chance.std(0)) * x[:, 0]
            best = worth.view(customers, offers).topk(kept)
            found = torch.cat([best.indices.to(dtype), best.values], 1)
            if once:
                chosen.append(found)
            else:
                written_down.append(found.cpu().numpy())
        return torch.cat(chosen).cpu().numpy() if once else np.concatenate(written_down)

    return step


WORKLOADS = (
    written(
        "weir_salmon", "A mixture of Gaussians in FP32 finds fish in four frames of four cameras, a network names them: pageable frames, reads within.",
        "torch.compile of the mixture; masks of fixed shape and one read; CUDA graph of a frame; pinned frames copied ahead; crops of all cameras in one call; "
        "bf16 autocast of the network; frames left in their order",
        weir_salmon,
        {
            "unfused-elementwise": {"compiled": True}, "sync-stall": {"asked": False}, "graph-candidate": {"graphed": True}, "memcpy": {"ahead": True},
            "launch-gap": {"together": True}, "precision": {"autocast": True}, "memory-layout": {"copied": False},
        },
    ),
    written(
        "synthesis_routes", "A transformer under FP16 autocast writes 16 symbols with ten beams: a cache that grows, attention by hand, each symbol is read.",
        "weights in FP16; scaled_dot_product_attention; one read at the end; CUDA graph of a symbol; torch.compile into graphs; eight products; pinned ids",
        synthesis_routes,
        {
            "dtype-casts": {"half": True}, "unfused-attention": {"fused": True}, "sync-stall": {"read_each": False}, "graph-candidate": {"graphed": True},
            "launch-gap": {"compiled": True}, "low-arithmetic-intensity": {"products": 8}, "memcpy": {"pinned": True},
        }, shared={"low-arithmetic-intensity": 8.0},
    ),
    written(
        "vineyard_pillars", "PointPillars on one lidar sweep, FP32 with TF32 convolutions, NCHW: NumPy makes the pillars, masks pick boxes kind by kind.",
        "pillars made on the GPU; pinned buffers; channels_last; norm of the pillars without transposes; bf16 autocast; boxes of fixed number; torch.compile",
        vineyard_pillars,
        {
            "host-bound": {"on_device": True}, "memcpy": {"pinned": True}, "memory-layout": {"channels_last": True},
            "memory-layout/pillars": {"turned": False}, "precision": {"autocast": True}, "sync-stall": {"fixed": True},
            "unfused-elementwise": {"compiled": True},
        },
    ),
    written(
        "ferry_offers", "Four deep and cross networks in FP64 rank offers in eight parts of 2048 rows: words looked up in Python, columns copied one by one.",
        "FP32; words looked up once; columns packed and pinned; one read at the end; the four networks at once; width padded to 336; eight times the rows",
        ferry_offers,
        {
            "precision": {"single": True}, "host-bound": {"prepared": True}, "memcpy": {"packed": True}, "sync-stall": {"once": True},
            "launch-gap": {"together": True}, "gemm-alignment": {"padded": True}, "low-arithmetic-intensity": {"times": 8},
        }, shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
