"""A gated linear RNN (HGRN) of six layers in training, TF32: running sums in chunks; RMS norms written out; zeros filled."""

from __future__ import annotations

from itertools import count as counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


def root_mean_square(x: Tensor, gain: Tensor, library: bool) -> Tensor:
    if library:
        return F.rms_norm(x, x.shape[-1:], gain, 1e-6)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gain


def recurrence(gates: Tensor, floor: Tensor, chunk: int) -> Tensor:
    """h = forget h + (1 - forget) new: running sums within a chunk, and what each chunk leaves to the next."""
    forget, new, out = gates.float().chunk(3, -1)
    forget = floor + (1.0 - floor) * torch.sigmoid(forget)
    new = (1.0 - forget) * F.silu(new)
    kept = torch.log(forget).unflatten(1, (-1, chunk)).cumsum(2)
    inner = torch.exp(kept) * torch.cumsum(new.unflatten(1, (-1, chunk)) * torch.exp(-kept), 2)
    state, states = torch.zeros_like(new[:, 0]), []
    for share, last in zip(torch.exp(kept[:, :, -1]).unbind(1), inner[:, :, -1].unbind(1), strict=True):
        states.append(state)
        state = share * state + last
    hidden = inner + torch.exp(kept) * torch.stack(states, 1)[:, :, None]
    return hidden.flatten(1, 2) * torch.sigmoid(out)


def gated_half(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


class Comb(nn.Module):
    """A layer of the recurrence and one of a gated feed-forward; `norm`, `recur` and `gated` are the functions above."""

    def __init__(self, width: int, floor: float, chunk: int, library: bool, norm: Any, recur: Any, gated: Any) -> None:
        super().__init__()
        self.chunk, self.library = chunk, library
        self.register_buffer("floor", torch.tensor(floor))
        self.norm, self.recur, self.gated = norm, recur, gated
        self.gates, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.recur(self.gates(self.norm(x, self.gains[0], self.library)), self.floor, self.chunk)
        x = x + self.out(self.norm(hidden, self.gains[1], self.library))
        return x + self.down(self.gated(self.up(self.norm(x, self.gains[2], self.library))))


class Apiary(nn.Module):
    def __init__(self, bands: int, width: int, layers: int, chunk: int, doings: int, *how: Any) -> None:
        super().__init__()
        self.hear, self.say = nn.Linear(bands, width), nn.Linear(width, doings)
        self.combs = nn.Sequential(*(Comb(width, 0.75 + 0.2 * n / layers, chunk, *how) for n in range(layers)))

    def forward(self, sound: Tensor) -> Tensor:
        return self.say(self.combs(self.hear(sound)))


def hive_sounds(
    s: Setup, *, compiled: bool = False, autocast: bool = False, library: bool = False, fused: bool = False, none: bool = False,
    graphed: bool = False,
) -> Step:  # fmt: skip
    """Training in TF32 on sixteen recordings of 1024 moments that lie on the GPU; gradients are filled with zeros."""
    count, moments, bands, doings = s.size(16, 2), s.size(1024, 16), s.size(80, 6), s.size(12, 3)
    functions = [root_mean_square, recurrence, gated_half]
    if compiled:
        functions = [s.compile(function, dynamic=False) for function in functions]
    with s.device:
        model = Apiary(bands, s.size(512, 8), s.size(6, 2), s.size(64, 4), doings, library, *functions)
        sounds, heard = torch.randn(4, count, moments, bands), torch.rand(4, count, moments, doings).round()
        sound, told, mean = sounds[0].clone(), heard[0].clone(), torch.zeros(())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=fused or None, capturable=graphed and s.cuda)
    turn = counter()

    def learn() -> None:
        optimizer.zero_grad(set_to_none=none)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            says = model(sound)
        loss = F.binary_cross_entropy_with_logits(says.float(), told)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean.lerp_(loss.detach(), 0.02)

    torch.set_float32_matmul_precision("high")
    update = capture(learn, s) if graphed else learn

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        n = next(turn) % len(sounds)
        sound.copy_(sounds[n])
        told.copy_(heard[n])
        update()
        return mean

    return step


PROGRAM = written(
    "hive_sounds",
    "A gated linear RNN (HGRN) of six layers in training, TF32: running sums in chunks; RMS norms written out; zeros filled.",
    "torch.compile of recurrence, norms and gates; bf16 autocast; F.rms_norm; fused AdamW; set_to_none; the step as a CUDA graph",
    hive_sounds,
    {
        "unfused-elementwise": {"compiled": True},
        "precision/bf16": {"autocast": True},
        "unfused-norm": {"library": True},
        "optimizer-foreach": {"fused": True},
        "grad-zeroing": {"none": True},
        "graph-candidate": {"graphed": True},
    },
    gpu_bound=True,
)
