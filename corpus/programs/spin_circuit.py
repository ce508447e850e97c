"""memory-layout"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from workloads.base import Setup, Step, written_pair


def spin_circuit(s: Setup, *, rearranged: bool = True, checked: bool = True, where: str = "host") -> Step:
    spins, depth = s.size(24, 4), s.size(2, 1)
    angles = np.random.default_rng(0).uniform(0.0, math.pi, (depth, spins, 2))
    placed = torch.tensor(angles, dtype=torch.float32, device=s.device)
    ones = torch.arange(2**spins, device=s.device)
    flips = torch.zeros_like(ones)
    for i in range(spins - 1):  # a controlled Z between neighbours
        flips += ones >> i & ones >> i + 1 & 1
    signs = (1.0 - 2.0 * (flips % 2)).float().view((2,) * spins)
    del ones, flips
    zero = torch.zeros((2,) * spins, dtype=torch.complex64, device=s.device)
    zero[(0,) * spins] = 1.0

    def all_gates() -> Tensor:
        cos, sin, turn = torch.cos(placed[..., 0] / 2), torch.sin(placed[..., 0] / 2), torch.polar(torch.ones_like(placed[..., 1]), placed[..., 1] / 2)
        return torch.stack([turn.conj() * cos, -turn.conj() * sin, turn * sin, turn * cos], -1).view(depth, spins, 2, 2)

    def one_gate(a: float, b: float) -> Tensor:
        cos, sin, turn = math.cos(a / 2), math.sin(a / 2), complex(math.cos(b / 2), math.sin(b / 2))
        back = turn.conjugate()
        return torch.tensor([[back * cos, -back * sin], [turn * sin, turn * cos]], dtype=torch.complex64).to(s.device)

    @torch.no_grad()
    def step() -> Tensor:
        state = zero
        gates = all_gates() if where == "gpu" else None
        for layer in range(depth):
            for spin in range(spins):
                gate = one_gate(*angles[layer, spin]) if gates is None else gates[layer, spin]
                state = torch.tensordot(gate, state, dims=([1], [spin])).movedim(0, spin)
                if rearranged:
                    state = state.contiguous()
            state = state * signs
            if checked and abs(torch.linalg.vector_norm(state).item() - 1.0) > 1e-2:
                raise FloatingPointError
        return (state.abs().square() * signs).sum()

    return step


PROGRAM = written_pair(
    "spin_circuit",
    "memory-layout",
    "A circuit on 24 spins; after each gate the amplitudes are put back in order by contiguous().",
    "no contiguous()",
    spin_circuit,
    {"rearranged": False},
    alone={"sync-stall": {"checked": False}, "memcpy": {"where": "gpu"}},
    gpu_bound=True,
)
