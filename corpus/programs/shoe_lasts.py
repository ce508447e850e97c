"""A mesh is fitted to a scan: points drawn in NumPy, all 6000 x 6000 distances written out, the loss read, the cache emptied."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from workloads.base import Setup, Step, written

DRAWS = np.random.default_rng(0)


def tube(rings: int, around: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Vertices of a tube that is closed around, and two triangles for each of its squares."""
    along, angle = np.meshgrid(np.linspace(-1.0, 1.0, rings), np.linspace(0.0, 2.0 * np.pi, around, endpoint=False), indexing="ij")
    place = np.stack([np.cos(angle), np.sin(angle), 2.0 * along], -1).reshape(-1, 3).astype(np.float32)
    name = np.arange(rings * around).reshape(rings, around)
    a, b = name[:-1], np.roll(name, -1, 1)[:-1]
    c, d = name[1:], np.roll(name, -1, 1)[1:]
    return place, np.concatenate([np.stack([a, b, c], -1).reshape(-1, 3), np.stack([b, d, c], -1).reshape(-1, 3)])


def chamfer(one: Tensor, other: Tensor) -> Tensor:
    """From each point to the nearest of the others, both ways."""
    apart = (one[:, None, :] - other[None, :, :]).pow(2).sum(-1)
    return apart.min(1)[0].mean() + apart.min(0)[0].mean()


def corners_on_host(place: Tensor, faces: np.ndarray[Any, Any], count: int) -> tuple[Tensor, Tensor]:
    """Triangles by their area, and where in each; in NumPy."""
    corner = place.detach().cpu().numpy()[faces]
    area = np.linalg.norm(np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]), axis=-1).astype(np.float64)
    these = DRAWS.choice(len(faces), count, p=area / area.sum())
    u, v = np.sqrt(DRAWS.random((count, 1))), DRAWS.random((count, 1))
    share = np.concatenate([1.0 - u, u * (1.0 - v), u * v], 1).astype(np.float32)
    return torch.from_numpy(faces[these]).to(place.device), torch.from_numpy(share).to(place.device)


def corners_in_place(place: Tensor, faces: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The same where the mesh is."""
    a, b, c = place.detach()[faces].unbind(1)
    area = torch.linalg.cross(b - a, c - a).norm(dim=-1)
    these = torch.multinomial(area, count, replacement=True)
    u, v = torch.rand(2, count, 1, device=place.device)
    u = u.sqrt()
    return faces[these], torch.cat([1.0 - u, u * (1.0 - v), u * v], 1)


def shoe_lasts(s: Setup, *, device: bool = False, compiled: bool = False, keep: bool = False, read: bool = True) -> Step:
    """Memory is given back after each step, because the scanner's other programs once ran out of it."""
    count, scanned = s.size(6000, 20), s.size(200_000, 60)
    start, faces = tube(s.size(96, 5), s.size(64, 6))
    with s.device:
        move, base, names = torch.zeros(start.shape), torch.from_numpy(start).to(s.device), torch.from_numpy(faces).to(s.device)
        foot = torch.randn(scanned, 3)
        foot = foot / foot.norm(dim=-1, keepdim=True) * torch.tensor([0.8, 1.0, 1.9])
        edges = torch.cat([names[:, [0, 1]], names[:, [1, 2]], names[:, [2, 0]]])
        degree = torch.zeros(len(start), 1).index_add_(0, edges[:, 0], torch.ones(len(edges), 1))
    move.requires_grad_()
    optimizer, apart, history = torch.optim.Adam([move], lr=1e-3), s.compile(chamfer) if compiled else chamfer, [0.0]

    def step() -> Tensor:
        place = base + move
        corners, share = corners_in_place(place, names, count) if device else corners_on_host(place, faces, count)
        points = (place[corners] * share[..., None]).sum(1)
        if device:
            some = foot[torch.randint(scanned, (count,), device=s.device)]
        else:
            some = foot[torch.from_numpy(DRAWS.integers(0, scanned, count)).to(s.device)]
        one, other = place[edges[:, 0]], place[edges[:, 1]]
        length = (one - other).square().sum(-1).mean()
        middle = torch.zeros_like(place).index_add(0, edges[:, 0], other) / degree.clamp(min=1.0)
        smooth = (middle - place).square().sum(-1).mean()
        loss = apart(points, some) + 0.2 * length + 0.5 * smooth
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if read:
            history[0] = loss.item()
        result = loss.detach()
        del loss, length, smooth, middle, one, other, points, some
        if not keep and s.cuda:
            torch.cuda.empty_cache()
        return result

    return step


PROGRAM = written(
    "shoe_lasts",
    "A mesh is fitted to a scan: points drawn in NumPy, all 6000 x 6000 distances written out, the loss read, the cache emptied.",
    "points are drawn on the GPU; torch.compile of the distances; no empty_cache(); the loss is not read",
    shoe_lasts,
    {"host-bound": {"device": True}, "unfused-elementwise": {"compiled": True}, "allocator": {"keep": True}, "sync-stall": {"read": False}},
)
