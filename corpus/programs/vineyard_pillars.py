"""PointPillars on one lidar sweep, FP32 with TF32 convolutions, NCHW: NumPy makes the pillars, masks pick boxes kind by kind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16


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


PROGRAM = written(
    "vineyard_pillars",
    "PointPillars on one lidar sweep, FP32 with TF32 convolutions, NCHW: NumPy makes the pillars, masks pick boxes kind by kind.",
    "pillars made on the GPU; pinned buffers; channels_last; norm of the pillars without transposes; bf16 autocast; boxes of fixed number; torch.compile",
    vineyard_pillars,
    {
        "host-bound": {"on_device": True},
        "memcpy": {"pinned": True},
        "memory-layout": {"channels_last": True},
        "memory-layout/pillars": {"turned": False},
        "precision": {"autocast": True},
        "sync-stall": {"fixed": True},
        "unfused-elementwise": {"compiled": True},
    },
)
