"""Training of an equivariant diffusion model that draws ligands into protein pockets.

A complex is a ligand (heavy atoms) and the C-alpha atoms of the residues around it. The pocket is given, the ligand is noised, and an
E(n)-equivariant graph network predicts the noise of coordinates and atom types. A step is one training step of TF32 matrix products with
AdamW, gradient clipping by the recent history of norms, and a moving average of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..base import Setup, Step

ATOM_TYPES, RESIDUE_TYPES = 10, 20
TYPE_SCALE = 4.0  # one-hot types are divided by it, so that coordinates come out of the noise first


class ComplexDataset(Dataset):
    """Made-up complexes: a ligand as a branched chain of bonds, the pocket as residues in a shell around it."""

    def __init__(self, count: int, atoms: tuple[int, int], residues: tuple[int, int], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.items = [self._complex(rng, int(rng.integers(*atoms)), int(rng.integers(*residues))) for _ in range(count)]

    @staticmethod
    def _complex(rng: np.random.Generator, atoms: int, residues: int) -> dict[str, np.ndarray]:
        steps = rng.normal(size=(atoms, 3))
        steps *= 1.5 / np.linalg.norm(steps, axis=1, keepdims=True)
        ligand = np.zeros((atoms, 3))
        for i in range(1, atoms):
            ligand[i] = ligand[max(0, i - int(rng.integers(1, 4)))] + steps[i]
        ligand -= ligand.mean(axis=0)
        direction = rng.normal(size=(residues, 3))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        pocket = direction * rng.uniform(6.0, 14.0, size=(residues, 1))
        shift = rng.normal(scale=20.0, size=(1, 3))
        atom_odds = np.array([0.70, 0.10, 0.12, 0.02, 0.01, 0.02, 0.01, 0.01, 0.005, 0.005])
        return {
            "ligand_x": (ligand + shift).astype(np.float32),
            "ligand_type": rng.choice(ATOM_TYPES, size=atoms, p=atom_odds),
            "pocket_x": (pocket + shift).astype(np.float32),
            "pocket_type": rng.integers(0, RESIDUE_TYPES, size=residues),
        }

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return self.items[index]


def collate(items: list[dict[str, np.ndarray]]) -> dict[str, Tensor]:
    batch = {key: torch.from_numpy(np.concatenate([item[key] for item in items])) for key in items[0]}
    for part in ("ligand", "pocket"):
        sizes = [len(item[f"{part}_x"]) for item in items]
        batch[f"{part}_mask"] = torch.from_numpy(np.repeat(np.arange(len(items)), sizes))
    return batch


def segment_sum(data: Tensor, segment: Tensor, count: int) -> Tensor:
    result = data.new_zeros((count, data.shape[1]))
    return result.scatter_add_(0, segment.unsqueeze(-1).expand(-1, data.shape[1]), data)


def segment_mean(data: Tensor, segment: Tensor, count: int) -> Tensor:
    total = segment_sum(data, segment, count)
    norm = segment_sum(torch.ones_like(data), segment, count)
    return total / norm.clamp(min=1.0)


class GCL(nn.Module):
    """Messages along the edges, gated by attention, added to the nodes."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.edge_mlp = nn.Sequential(nn.Linear(2 * hidden + 2, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.att_mlp = nn.Sequential(nn.Linear(hidden, 1), nn.Sigmoid())
        self.node_mlp = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, h: Tensor, edges: Tensor, edge_attr: Tensor) -> Tensor:
        row, col = edges
        message = self.edge_mlp(torch.cat([h[row], h[col], edge_attr], dim=1))
        message = message * self.att_mlp(message)
        gathered = segment_sum(message.float(), row, h.shape[0]) / 100.0  # summed in FP32 under autocast as well
        return h + self.node_mlp(torch.cat([h, gathered], dim=1))


class EquivariantUpdate(nn.Module):
    def __init__(self, hidden: int, coords_range: float = 15.0) -> None:
        super().__init__()
        last = nn.Linear(hidden, 1, bias=False)
        nn.init.xavier_uniform_(last.weight, gain=0.001)
        self.coord_mlp = nn.Sequential(nn.Linear(2 * hidden + 2, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last)
        self.coords_range = coords_range

    def forward(self, h: Tensor, x: Tensor, edges: Tensor, direction: Tensor, edge_attr: Tensor, moves: Tensor) -> Tensor:
        row, col = edges
        weight = torch.tanh(self.coord_mlp(torch.cat([h[row], h[col], edge_attr], dim=1))) * self.coords_range
        return x + moves * segment_sum(direction * weight, row, x.shape[0]) / 100.0


class Dynamics(nn.Module):
    """Predicts the noise of the ligand from the noised ligand, the pocket and the time."""

    def __init__(self, hidden: int, layers: int, joint: int = 32) -> None:
        super().__init__()
        self.atom_encoder = nn.Sequential(nn.Linear(ATOM_TYPES, 2 * ATOM_TYPES), nn.SiLU(), nn.Linear(2 * ATOM_TYPES, joint))
        self.atom_decoder = nn.Sequential(nn.Linear(joint, 2 * ATOM_TYPES), nn.SiLU(), nn.Linear(2 * ATOM_TYPES, ATOM_TYPES))
        self.residue_encoder = nn.Sequential(nn.Linear(RESIDUE_TYPES, 2 * RESIDUE_TYPES), nn.SiLU(), nn.Linear(2 * RESIDUE_TYPES, joint))
        self.embedding = nn.Linear(joint + 1, hidden)
        self.embedding_out = nn.Linear(hidden, joint)
        self.gcls = nn.ModuleList(GCL(hidden) for _ in range(layers))
        self.updates = nn.ModuleList(EquivariantUpdate(hidden) for _ in range(layers))
        self.nan_on_gpu = False
        self.parts: tuple[Callable[..., Any], ...] = ()

    def compile_parts(self, s: Setup) -> None:
        """Compiles what lies between the two places where the host reads from the GPU; the layers share one function. Sizes vary."""
        self.parts = tuple(s.compile(part, dynamic=True) for part in (self.encode, self.adjacency, self.differences, self.layer, self.decode))

    @staticmethod
    @torch.no_grad()
    def adjacency(x: Tensor, mask: Tensor, ligand_mask: Tensor, pocket_cutoff: float = 8.0, cross_cutoff: float = 14.0) -> Tensor:
        atoms = len(ligand_mask)
        adjacency = mask[:, None] == mask[None, :]
        distance = torch.cdist(x, x)
        adjacency[atoms:, atoms:] &= distance[atoms:, atoms:] <= pocket_cutoff
        adjacency[:atoms, atoms:] &= distance[:atoms, atoms:] <= cross_cutoff
        adjacency[atoms:, :atoms] &= distance[atoms:, :atoms] <= cross_cutoff
        return adjacency

    @staticmethod
    def differences(x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        row, col = edges
        difference = x[row] - x[col]
        squared = (difference**2).sum(dim=1, keepdim=True)
        return squared, difference / (torch.sqrt(squared + 1e-8) + 1.0)

    def encode(self, ligand_x: Tensor, ligand_h: Tensor, pocket_x: Tensor, pocket_h: Tensor, t: Tensor, ligand_mask: Tensor, pocket_mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = torch.cat([ligand_x, pocket_x])
        mask = torch.cat([ligand_mask, pocket_mask])
        h = torch.cat([self.atom_encoder(ligand_h), self.residue_encoder(pocket_h)])
        h = self.embedding(torch.cat([h, t[mask]], dim=1))
        moves = torch.cat([torch.ones_like(ligand_mask), torch.zeros_like(pocket_mask)]).unsqueeze(1).to(x.dtype)
        return x, mask, h, moves

    @staticmethod
    def layer(gcl: GCL, update: EquivariantUpdate, h: Tensor, x_now: Tensor, edges: Tensor, start: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
        squared, direction = Dynamics.differences(x_now, edges)
        edge_attr = torch.cat([squared, start], dim=1)
        h = gcl(h, edges, edge_attr)
        return h, update(h, x_now, edges, direction, edge_attr, moves)

    def decode(self, h: Tensor, ligand_mask: Tensor) -> Tensor:
        return self.atom_decoder(self.embedding_out(h)[: len(ligand_mask)])

    def forward(self, ligand_x: Tensor, ligand_h: Tensor, pocket_x: Tensor, pocket_h: Tensor, t: Tensor, ligand_mask: Tensor, pocket_mask: Tensor) -> tuple[Tensor, Tensor]:
        encode, adjacency, differences, layer, decode = self.parts or (self.encode, self.adjacency, self.differences, self.layer, self.decode)
        x, mask, h, moves = encode(ligand_x, ligand_h, pocket_x, pocket_h, t, ligand_mask, pocket_mask)
        edges = torch.stack(torch.where(adjacency(x, mask, ligand_mask)))
        start, x_now = differences(x, edges)[0], x
        for gcl, update in zip(self.gcls, self.updates, strict=False):
            h, x_now = layer(gcl, update, h, x_now, edges, start, moves)
        velocity = (x_now - x)[: len(ligand_mask)]
        if self.nan_on_gpu:
            velocity = torch.where(torch.any(torch.isnan(velocity)), torch.zeros_like(velocity), velocity)
        elif torch.any(torch.isnan(velocity)):
            velocity = torch.zeros_like(velocity)
        return velocity, decode(h, ligand_mask)


def polynomial_gamma(timesteps: int, precision: float = 5e-4) -> Tensor:
    """The log of noise to signal at every timestep, for alpha = 1 - (t/T)^2."""
    t = np.linspace(0, timesteps, timesteps + 1)
    alphas2 = (1 - (t / timesteps) ** 2) ** 2
    ratio = np.clip(np.concatenate([alphas2[:1], alphas2[1:] / np.maximum(alphas2[:-1], 1e-12)]), 0.001, 1.0)
    alphas2 = (1 - 2 * precision) * np.cumprod(ratio) + precision
    return torch.from_numpy(np.log(1 - alphas2) - np.log(alphas2)).float()


class GradientQueue:
    """Norms of the last steps; a gradient is clipped where it is far above them."""

    def __init__(self, length: int = 50) -> None:
        self.length, self.items = length, [3000.0]

    def add(self, norm: float) -> None:
        self.items = [norm, *self.items][: self.length]

    def limit(self) -> float:
        return 1.5 * float(np.mean(self.items)) + 2 * float(np.std(self.items))


class QueueOnDevice:
    """The same queue without the host: the newest norm first, and a limit that stays where the norms are."""

    def __init__(self, device: torch.device, length: int = 50) -> None:
        self.length, self.items = length, torch.full((1,), 3000.0, dtype=torch.float64, device=device)

    def add(self, norm: Tensor) -> None:
        self.items = torch.cat([norm.double().reshape(1), self.items])[: self.length]

    def limit(self) -> Tensor:
        return 1.5 * self.items.mean() + 2 * self.items.std(correction=0)


class Late:
    """Numbers of a step on their way to the host, where they are read one step later (those of the first step at once)."""

    def __init__(self, s: Setup, count: int) -> None:
        self.buffers = [s.pin(torch.zeros(count)) for _ in range(2)]
        self.events = [torch.cuda.Event() for _ in range(2)] if s.cuda else []
        self.turn = 0

    def swap(self, values: list[Tensor]) -> list[float]:
        now = self.turn % 2
        self.buffers[now].copy_(torch.stack(values), non_blocking=True)
        if self.events:
            self.events[now].record()
        read = 1 - now if self.turn else now
        if self.events:
            self.events[read].synchronize()
        self.turn += 1
        return self.buffers[read].tolist()


def pocket_ligands(
    s: Setup, *, compiled: bool = False, late: bool = False, foreach: bool = False, bf16: bool = False, launch: bool = False
) -> Step:
    torch.manual_seed(12)
    torch.set_float32_matmul_precision("high")
    timesteps, graphs = 500, s.size(48, 3)
    dataset = ComplexDataset(s.size(2000, 12), (14, s.size(36, 18)), (s.size(36, 8), s.size(70, 12)))
    loader = DataLoader(dataset, batch_size=graphs, shuffle=True, drop_last=True, collate_fn=collate, pin_memory=s.cuda)
    model = Dynamics(s.size(192, 16), s.size(6, 2)).to(s.device)
    average = copy.deepcopy(model).requires_grad_(False)
    more: dict[str, Any] = {"fused": True} if launch else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True, weight_decay=1e-12, **more)
    gamma_table = polynomial_gamma(timesteps).to(s.device)
    queue = GradientQueue()
    queue_on_device, logged = QueueOnDevice(s.device), Late(s, 4)
    parameters, averages = list(model.parameters()), list(average.parameters())
    model.nan_on_gpu = late
    if compiled or launch:
        model.compile_parts(s)

    def forever() -> Iterator[dict[str, Tensor]]:
        while True:
            yield from loader

    batches = forever()

    def centred(ligand_type: Tensor, pocket_type: Tensor, ligand_x: Tensor, pocket_x: Tensor, ligand_mask: Tensor, pocket_mask: Tensor) -> tuple[Tensor, ...]:
        ligand_h = F.one_hot(ligand_type, ATOM_TYPES).float() / TYPE_SCALE
        pocket_h = F.one_hot(pocket_type, RESIDUE_TYPES).float() / TYPE_SCALE
        centre = segment_mean(ligand_x, ligand_mask, graphs)
        return ligand_h, pocket_h, ligand_x - centre[ligand_mask], pocket_x - centre[pocket_mask]

    def noised(t: Tensor, eps_x: Tensor, eps_h: Tensor, ligand_x: Tensor, ligand_h: Tensor, pocket_x: Tensor, ligand_mask: Tensor, pocket_mask: Tensor) -> tuple[Tensor, ...]:
        gamma = gamma_table[t]
        alpha, sigma = torch.sqrt(torch.sigmoid(-gamma)), torch.sqrt(torch.sigmoid(gamma))
        z_x = alpha[ligand_mask] * ligand_x + sigma[ligand_mask] * eps_x
        z_h = alpha[ligand_mask] * ligand_h + sigma[ligand_mask] * eps_h
        drift = segment_mean(z_x, ligand_mask, graphs)
        return z_x - drift[ligand_mask], z_h, pocket_x - drift[pocket_mask], t / timesteps

    def errors(net_x: Tensor, net_h: Tensor, eps_x: Tensor, eps_h: Tensor, ligand_mask: Tensor) -> tuple[Tensor, Tensor]:
        error_x = segment_mean(((net_x - eps_x) ** 2).mean(dim=1, keepdim=True), ligand_mask, graphs)
        error_h = segment_mean(((net_h - eps_h) ** 2).mean(dim=1, keepdim=True), ligand_mask, graphs)
        return error_x.mean(), error_h.mean()

    if compiled:
        centred, noised, errors = (s.compile(part, dynamic=True) for part in (centred, noised, errors))

    def loss_of(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        ligand_mask, pocket_mask = batch["ligand_mask"], batch["pocket_mask"]
        ligand_h, pocket_h, ligand_x, pocket_x = centred(batch["ligand_type"], batch["pocket_type"], batch["ligand_x"], batch["pocket_x"], ligand_mask, pocket_mask)
        t = torch.randint(0, timesteps + 1, (graphs, 1), device=s.device)
        eps_x, eps_h = torch.randn_like(ligand_x), torch.randn_like(ligand_h)
        z_x, z_h, pocket_x, time = noised(t, eps_x, eps_h, ligand_x, ligand_h, pocket_x, ligand_mask, pocket_mask)
        with torch.autocast(s.device.type, dtype=torch.bfloat16, enabled=bf16):
            net_x, net_h = model(z_x, z_h, pocket_x, pocket_h, time, ligand_mask, pocket_mask)
        return errors(net_x, net_h, eps_x, eps_h, ligand_mask)

    @torch.no_grad()
    def clip(limit: Tensor) -> Tensor:
        """clip_grad_norm_ asks for the limit as a number, for which the host would wait."""
        grads = [p.grad for p in parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(grads, foreach=True if s.cuda else None)
        torch._foreach_mul_(grads, (limit / (norm + 1e-6)).clamp(max=1.0).float())
        return norm

    def step() -> dict[str, float]:
        batch = {key: value.to(s.device, non_blocking=True) for key, value in next(batches).items()}
        error_x, error_h = loss_of(batch)
        loss = 0.5 * (error_x + error_h)
        optimizer.zero_grad()
        loss.backward()
        if late:
            limit = queue_on_device.limit()
            norm = clip(limit)
            queue_on_device.add(torch.minimum(norm, limit))
        else:
            limit = queue.limit()
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), max_norm=limit))
            queue.add(min(norm, limit))
        optimizer.step()
        with torch.no_grad():
            if foreach:
                torch._foreach_lerp_(averages, parameters, 0.001)
            else:
                for old, new in zip(average.parameters(), model.parameters(), strict=False):
                    old.data = old.data * 0.999 + new.data * 0.001
        if late:
            return dict(zip(("loss", "error_x", "error_h", "grad_norm"), logged.swap([loss.detach(), error_x.detach(), error_h.detach(), norm]), strict=False))
        return {"loss": loss.item(), "error_x": error_x.item(), "error_h": error_h.item(), "grad_norm": norm}

    return step
