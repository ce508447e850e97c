"""A Potts model of 253 places with 21 letters each, 4096 relatives a step, training in FP32; the likelihood of each letter is written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written


class Couplings(nn.Module):
    """One field for each letter at each place, one coupling for each two of them at different places."""

    elsewhere: Tensor

    def __init__(self, columns: int, letters: int, more: int) -> None:
        super().__init__()
        size = columns * letters
        self.columns, self.letters, self.more = columns, letters, more
        self.fields = nn.Parameter(torch.zeros(size + more))
        self.couplings = nn.Parameter(torch.zeros(size + more, size + more))
        place = torch.arange(size + more) // letters
        self.register_buffer("elsewhere", (place[:, None] != place).float())

    def symmetric(self) -> Tensor:
        return 0.5 * (self.couplings + self.couplings.T) * self.elsewhere

    def forward(self, family: Tensor, couplings: Tensor) -> Tensor:
        seen = F.one_hot(family, self.letters).float().flatten(1)
        if self.more:
            seen = F.pad(seen, (0, self.more))
        energy = torch.addmm(self.fields, seen, couplings)
        return energy[:, : self.columns * self.letters].reshape(len(family), self.columns, self.letters)


def protein_contacts(s: Setup, *, tf32: bool = False, more: int = 0, library: bool = False) -> Step:
    """Relatives that are much alike count less."""
    columns, letters, count, batch = s.size(253, 5), s.size(21, 5), s.size(12_000, 20), s.size(4096, 6)
    model = Couplings(columns, letters, more).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    family = torch.randint(letters, (count, columns), device=s.device)
    counts = torch.rand(count, device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        these = torch.randint(count, (batch,), device=s.device)
        letter, weight = family[these], counts[these]
        optimizer.zero_grad()
        couplings = model.symmetric()
        energy = model(letter, couplings)
        if library:
            wrong = F.cross_entropy(energy.flatten(0, 1), letter.flatten(), reduction="none").view_as(letter)
        else:
            energy = energy - energy.amax(-1, keepdim=True).detach()
            wrong = torch.log(torch.exp(energy).sum(-1)) - energy.gather(-1, letter[..., None])[..., 0]
        loss = (wrong.sum(1) * weight).sum() / weight.sum() + 0.01 * couplings.square().sum() + 0.01 * model.fields.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


PROGRAM = written(
    "protein_contacts",
    "A Potts model of 253 places with 21 letters each, 4096 relatives a step, training in FP32; the likelihood of each letter is written out.",
    "TF32 products; 5320 letters of all places; F.cross_entropy",
    protein_contacts,
    {"precision/tf32": {"tf32": True}, "gemm-alignment": {"more": 7}, "unfused-norm": {"library": True}},
    gpu_bound=True,
)
