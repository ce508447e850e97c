"""A field of shifts over 9.6 million voxels, fitted by edges, bends and folds, all written out; the loss is read in each step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written


def _edges(volume: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = F.pad(volume[..., 1:] - volume[..., :-1], (0, 1))
    y = F.pad(volume[..., 1:, :] - volume[..., :-1, :], (0, 0, 0, 1))
    z = F.pad(volume[..., 1:, :, :] - volume[..., :-1, :, :], (0, 0, 0, 0, 0, 1))
    return x, y, z


def _unlike(warped: Tensor, fixed: Tensor, shifts: Tensor, soft: float) -> Tensor:
    """How little the edges of both point the same way, and how much the field bends and folds."""
    ours, theirs = _edges(warped), _edges(fixed)
    inner = sum((a * b for a, b in zip(ours, theirs, strict=True)), torch.zeros_like(warped))
    first = torch.sqrt(ours[0] ** 2 + ours[1] ** 2 + ours[2] ** 2 + soft**2)
    second = torch.sqrt(theirs[0] ** 2 + theirs[1] ** 2 + theirs[2] ** 2 + soft**2)
    alike = ((inner + soft**2) / (first * second)) ** 2
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (_edges(shifts[:, axis : axis + 1]) for axis in range(3))
    volume = (1 + xx) * ((1 + yy) * (1 + zz) - yz * zy) - xy * (yx * (1 + zz) - yz * zx) + xz * (yx * zy - (1 + yy) * zx)
    folds = F.relu(0.1 - volume) ** 2
    bends = sum((part * part for part in (xx, xy, xz, yx, yy, yz, zx, zy, zz)), torch.zeros_like(xx))
    return (1 - alike).mean() + 10.0 * folds.mean() + 0.1 * bends.mean()


def lung_motion(s: Setup, *, compiled: bool = False, read: bool = True) -> Step:
    """Adam moves the field; the curve of the loss is kept for a figure."""
    shape = (s.size(224, 8), s.size(192, 8), s.size(224, 8))
    fixed, moving = (F.avg_pool3d(torch.rand(1, 1, *shape, device=s.device), 5, 1, 2) for _ in range(2))
    grid = F.affine_grid(torch.eye(3, 4, device=s.device)[None], [1, 1, *shape], align_corners=True)
    voxels = torch.tensor([2.0 / (size - 1) for size in reversed(shape)], device=s.device)
    shifts = nn.Parameter(torch.zeros(1, 3, *shape, device=s.device))
    optimizer, curve = torch.optim.Adam([shifts], lr=0.1), [0.0]
    unlike = s.compile(_unlike) if compiled else _unlike

    def step() -> None:
        optimizer.zero_grad()
        warped = F.grid_sample(moving, grid + shifts.permute(0, 2, 3, 4, 1) * voxels, align_corners=True)
        loss = unlike(warped, fixed, shifts, 0.01)
        loss.backward()
        optimizer.step()
        if read:
            curve[0] = 0.9 * curve[0] + 0.1 * loss.item()

    return step


PROGRAM = written(
    "lung_motion",
    "A field of shifts over 9.6 million voxels, fitted by edges, bends and folds, all written out; the loss is read in each step.",
    "torch.compile of the loss; the loss not read",
    lung_motion,
    {"unfused-elementwise": {"compiled": True}, "sync-stall": {"read": False}},
    gpu_bound=True,
)
