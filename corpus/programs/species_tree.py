"""Felsenstein's pruning over a tree of 56 species, node by node, and its gradient, FP32; each node is asked whether it must be scaled."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written


def _born(leaves: int, rng: random.Random) -> list[tuple[int, int, int]]:
    """Who comes from whom: (parent, child, child), children first."""
    alone = list(range(leaves))
    tree: list[tuple[int, int, int]] = []
    while len(alone) > 1:
        one, other = (alone.pop(rng.randrange(len(alone))) for _ in range(2))
        tree.append((leaves + len(tree), one, other))
        alone.append(tree[-1][0])
    return tree


def _generations(leaves: int, tree: list[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
    """Those who can be worked out at once, one generation after another."""
    age = dict.fromkeys(range(leaves), 0)
    for parent, one, other in tree:
        age[parent] = 1 + max(age[one], age[other])
    return [[birth for birth in tree if age[birth[0]] == when] for when in range(1, max(age.values()) + 1)]


def species_tree(s: Setup, *, asked: bool = True, together: bool = False, tf32: bool = False) -> Step:
    """The likelihood of 3000 sites and its gradient by the branches' lengths; what gets too small is scaled, if anything does."""
    leaves, sites = s.size(56, 5), s.size(3000, 12)
    tree = _born(leaves, random.Random(1))
    rates = torch.tensor([0.14, 0.48, 1.0, 2.4], device=s.device)
    exchange = torch.tensor([[-1.0, 0.2, 0.6, 0.2], [0.2, -1.0, 0.2, 0.6], [0.6, 0.2, -1.0, 0.2], [0.2, 0.6, 0.2, -1.0]])
    values, vectors = (part.to(s.device) for part in torch.linalg.eigh(exchange))
    letters = F.one_hot(torch.randint(4, (leaves, sites)), 4).float().mT.to(s.device)[:, None].expand(-1, 4, -1, -1)
    lengths = nn.Parameter(torch.full((2 * leaves - 2,), -2.0, device=s.device))
    optimizer = torch.optim.Adam([lengths], lr=0.05)
    births = _generations(leaves, tree) if together else [[birth] for birth in tree]
    rows = [(torch.tensor([b[1] for b in some], device=s.device), torch.tensor([b[2] for b in some], device=s.device)) for some in births]

    def scaled(up: Tensor) -> tuple[Tensor, Tensor]:
        high = up.amax((-3, -2), keepdim=True).detach()
        return up / high, torch.log(high).flatten(0, -2).sum(0)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        optimizer.zero_grad()
        decay = torch.exp(values * rates[:, None] * torch.exp(lengths)[:, None, None])
        change = torch.einsum("ik,brk,jk->brij", vectors, decay, vectors)
        below, offset = list(letters.unbind(0)), torch.zeros(sites, device=s.device)
        for turn, (some, (ones, others)) in enumerate(zip(births, rows, strict=True)):
            if together:
                left, right = (torch.stack([below[birth[child]] for birth in some]) for child in (1, 2))
                up = (change[ones] @ left) * (change[others] @ right)
            else:
                _, one, other = some[0]
                up = (change[one] @ below[one]) * (change[other] @ below[other])
            if bool((up.amax((-3, -2)) < 1e-8).any()) if asked else turn % 4 == 3:
                up, logs = scaled(up)
                offset = offset + logs
            below.extend([torch.empty(0)] * (max(birth[0] for birth in some) + 1 - len(below)))
            for birth, each in zip(some, up.unbind(0) if together else (up,), strict=True):
                below[birth[0]] = each
        loss = -(torch.log(below[-1].mean((0, 1))) + offset).sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


PROGRAM = written(
    "species_tree",
    "Felsenstein's pruning over a tree of 56 species, node by node, and its gradient, FP32; each node is asked whether it must be scaled.",
    "scale each fourth node unasked; a generation's nodes together; TF32 products",
    species_tree,
    {"sync-stall": {"asked": False}, "host-bound": {"together": True}, "precision/tf32": {"tf32": True}},
)
