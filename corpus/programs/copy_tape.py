"""A neural Turing machine learns to copy 20 vectors, moment by moment: 41 moments forward and backward with TF32 products, RMSprop."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class Head(nn.Module):
    """Where on the tape to be: by likeness, then by shifts from where it was, then sharper."""

    def __init__(self, width: int, cell: int) -> None:
        super().__init__()
        self.key, self.rest = nn.Linear(width, cell), nn.Linear(width, 6)

    def forward(self, control: Tensor, tape: Tensor, was: Tensor) -> Tensor:
        rest = self.rest(control)
        likeness = F.cosine_similarity(torch.tanh(self.key(control))[:, None], tape, dim=-1)
        by_content = torch.softmax(F.softplus(rest[:, :1]) * likeness, -1)
        gate = torch.sigmoid(rest[:, 1:2])
        mixed = gate * by_content + (1 - gate) * was
        shifts = torch.softmax(rest[:, 2:5], -1)
        moved = shifts[:, :1] * mixed.roll(-1, -1) + shifts[:, 1:2] * mixed + shifts[:, 2:] * mixed.roll(1, -1)
        sharp = (moved + 1e-8) ** (1 + F.softplus(rest[:, 5:]))
        return sharp / sharp.sum(-1, keepdim=True)


class Tape(nn.Module):
    def __init__(self, bits: int, width: int, cell: int) -> None:
        super().__init__()
        self.control = nn.LSTMCell(bits + 1 + cell, width)
        self.reads, self.writes = Head(width, cell), Head(width, cell)
        self.erase, self.add, self.says = nn.Linear(width, cell), nn.Linear(width, cell), nn.Linear(width + cell, bits)

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        h, c, tape, read_at, write_at, read = state
        h, c = self.control(torch.cat([x, read], -1), (h, c))
        write_at = self.writes(h, tape, write_at)
        erase, add = torch.sigmoid(self.erase(h)), torch.tanh(self.add(h))
        tape = tape * (1 - write_at[..., None] * erase[:, None]) + write_at[..., None] * add[:, None]
        read_at = self.reads(h, tape, read_at)
        read = torch.einsum("bn,bnc->bc", read_at, tape)
        return self.says(torch.cat([h, read], -1)), (h, c, tape, read_at, write_at, read)


def copy_tape(s: Setup, *, compiled: bool = False, graphed: bool = False, autocast: bool = False) -> Step:
    """Sequences of 20 vectors, new in each step, to be said again after a mark."""
    count, long, bits, width, cells, cell = s.size(32, 2), s.size(20, 3), s.size(8, 4), s.size(100, 8), s.size(128, 6), s.size(20, 5)
    machine = Tape(bits, width, cell).to(s.device)
    blank = torch.full((cells, cell), 1e-6, device=s.device)
    first = F.one_hot(torch.tensor(0), cells).float().to(s.device)
    optimizer = torch.optim.RMSprop(machine.parameters(), lr=1e-4, alpha=0.95, momentum=0.9, capturable=graphed and s.cuda)
    moment = s.compile(machine) if compiled else machine
    mark = torch.cat([torch.zeros(count, bits, device=s.device), torch.ones(count, 1, device=s.device)], -1)
    silence = torch.zeros(count, bits + 1, device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        sequence = (torch.rand(long, count, bits, device=s.device) < 0.5).float()
        heads = first.expand(count, -1)
        empty = torch.zeros(count, width, device=s.device)
        state: tuple[Tensor, ...] = (empty, empty, blank.expand(count, -1, -1), heads, heads, torch.zeros(count, cell, device=s.device))
        optimizer.zero_grad()
        said = []
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for x in (*F.pad(sequence, (0, 1)), mark):
                _, state = moment(x, state)
            for _ in range(long):
                word, state = moment(silence, state)
                said.append(word)
        loss = F.binary_cross_entropy_with_logits(torch.stack(said).float(), sequence)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_value_(machine.parameters(), 10.0)
        optimizer.step()
        return loss.detach()

    return capture(step, s) if graphed else step


PROGRAM = written(
    "copy_tape",
    "A neural Turing machine learns to copy 20 vectors, moment by moment: 41 moments forward and backward with TF32 products, RMSprop.",
    "torch.compile of a moment; the step as a CUDA graph; bf16 autocast",
    copy_tape,
    {"launch-gap": {"compiled": True}, "graph-candidate": {"graphed": True}, "precision": {"autocast": True}},
)
