"""Three highway networks of 46,175 recipes in FP32 on one molecule a call; Python counts its surroundings, the fifty best are read one by one."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written

BF16 = torch.bfloat16
WORD = (1 << 64) - 1
STIR, BOND, OWN = 0xFF51AFD7ED558CCD, 0x9E3779B97F4A7C15, 3


class Molecule:
    """Atoms in a chain with a few branches and rings; whom each is bound to, and how often."""

    def __init__(self, atoms: int, draw: np.random.Generator) -> None:
        self.atoms = draw.choice([6, 6, 6, 6, 7, 8, 9, 16, 17], atoms).tolist()
        self.bound: list[list[tuple[int, int]]] = [[] for _ in range(atoms)]
        ends = [(int(draw.integers(max(0, atom - 3), atom)), atom) for atom in range(1, atoms)]
        ends += [(atom, atom + 5) for atom in range(0, atoms - 5, 9)]
        for one, two in ends:
            times = int(draw.integers(1, 3))
            self.bound[one].append((two, times))
            self.bound[two].append((one, times))
        flat = [(atom, other, times) for atom, near in enumerate(self.bound) for other, times in near]
        self.at, self.other, self.times = (np.array(column, np.uint64) for column in zip(*flat, strict=True))


def _stirred(x: int) -> int:
    x = ((x ^ (x >> 33)) * STIR) & WORD
    return x ^ (x >> 29)


def _counted(molecule: Molecule, reach: int, size: int) -> list[float]:
    """How often each kind of surroundings occurs, up to `reach` bonds away, atom by atom."""
    counts = [0.0] * size
    marks = [_stirred(atom) for atom in molecule.atoms]
    for far in range(reach + 1):
        if far:
            new = []
            for mark, near in zip(marks, molecule.bound, strict=True):
                total = mark * OWN
                for other, times in near:
                    total += _stirred((marks[other] + times * BOND) & WORD)
                new.append(_stirred(total & WORD))
            marks = new
        for mark in marks:
            counts[mark % size] += 1.0
    return counts


def _stirred_array(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(33))) * np.uint64(STIR)
    return x ^ (x >> np.uint64(29))


def _counted_array(molecule: Molecule, reach: int, size: int) -> np.ndarray:
    """The same by numpy, all atoms at once."""
    marks = _stirred_array(np.array(molecule.atoms, np.uint64))
    at, other, bond = molecule.at.astype(np.int64), molecule.other.astype(np.int64), molecule.times * np.uint64(BOND)
    places = [marks]
    for _ in range(reach):
        total = marks * np.uint64(OWN)
        np.add.at(total, at, _stirred_array(marks[other] + bond))
        marks = _stirred_array(total)
        places.append(marks)
    return np.bincount((np.concatenate(places) % np.uint64(size)).astype(np.int64), minlength=size).astype(np.float32)


class Highway(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.new, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * F.elu(self.new(x)) + (1.0 - gate) * x


def recipe_expansion(s: Setup, *, vectorised: bool = False, fetched: bool = False, half: bool = False, pinned: bool = False, molecules: int = 1) -> Step:
    """One node of a tree search: three networks have to agree, and the fifty best recipes are listed until they cover all chances."""
    size, width, recipes, best = s.size(8192, 32), s.size(4096, 8), s.size(46_175, 60), s.size(50, 5)
    molecules = min(molecules, s.size(molecules, 2))

    def network() -> nn.Sequential:
        with torch.device(s.device):
            layers = [nn.Linear(size, width), nn.ELU(), *(Highway(width) for _ in range(s.size(4, 1))), nn.Linear(width, recipes)]
            return nn.Sequential(*layers).eval().requires_grad_(False)

    kind = BF16 if half else torch.float32
    networks = [network().to(kind) for _ in range(3)]
    draw = np.random.default_rng(0)
    asked = [Molecule(s.size(56, 8), draw) for _ in range(32)]
    names = [f"T{recipe:05d}" for recipe in range(recipes)]
    staging = torch.zeros(molecules, size)
    if pinned:
        staging = s.pin(staging)
    turn = [0]

    def listed(chances: list[float], which: list[int]) -> list[tuple[str, float]]:
        total, found = 0.0, []
        for chance, recipe in zip(chances, which, strict=True):
            found.append((names[recipe], chance))
            total += chance
            if total > 0.995:
                break
        return found

    def listed_one_by_one(chances: Tensor, which: Tensor) -> list[tuple[str, float]]:
        total, found = 0.0, []
        for rank in range(best):
            chance = chances[rank].item()
            found.append((names[int(which[rank].item())], chance))
            total += chance
            if total > 0.995:
                break
        return found

    @torch.inference_mode()
    def step() -> list[list[tuple[str, float]]]:
        torch.set_float32_matmul_precision("highest")
        these = [asked[(turn[0] + more) % len(asked)] for more in range(molecules)]
        turn[0] += molecules
        if vectorised:
            counts = torch.from_numpy(np.stack([_counted_array(molecule, 3, size) for molecule in these]))
        else:
            counts = torch.tensor([_counted(molecule, 3, size) for molecule in these])
        x = staging.copy_(counts).to(s.device, non_blocking=True) if pinned else counts.to(s.device)
        x = torch.log1p(x).to(kind)
        chances = torch.stack([torch.softmax(network(x).float(), -1) for network in networks]).mean(0)
        top = chances.topk(best)
        if fetched:
            return [listed(*row) for row in zip(top.values.tolist(), top.indices.tolist(), strict=True)]
        return [listed_one_by_one(values, which) for values, which in zip(top.values, top.indices, strict=True)]

    return step


PROGRAM = written(
    "recipe_expansion",
    "Three highway networks of 46,175 recipes in FP32 on one molecule a call; Python counts its surroundings, the fifty best are read one by one.",
    "surroundings counted by numpy; the fifty best fetched at once; weights in bf16; a pinned row; sixteen molecules together",
    recipe_expansion,
    {
        "host-bound": {"vectorised": True},
        "sync-stall": {"fetched": True},
        "precision": {"half": True},
        "memcpy": {"pinned": True},
        "low-arithmetic-intensity": {"molecules": 16},
    },
    shared={"low-arithmetic-intensity": 16.0},
)
