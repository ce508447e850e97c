"""Two layers of spiking neurons over 25 moments, training through a surrogate's slope, TF32 products, moment by moment."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class Fire(torch.autograd.Function):
    """A step whose slope is that of a fast sigmoid."""

    @staticmethod
    def forward(ctx: Any, above: Tensor) -> Tensor:
        ctx.save_for_backward(above)
        return (above > 0).to(above.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (above,) = ctx.saved_tensors
        return slope / (1.0 + 25.0 * above.abs()) ** 2


def _leak(current: Tensor, volts: Tensor, drive: Tensor, tired: Tensor, spikes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A moment of neurons that adapt: synapse, membrane, threshold, spike."""
    current = 0.9 * current + drive
    tired = 0.97 * tired + 0.03 * spikes
    volts = 0.95 * volts * (1.0 - spikes.detach()) + 0.05 * current
    return current, volts, tired, Fire.apply(volts - 1.0 - 1.8 * tired)


def spiking_digits(s: Setup, *, graphed: bool = False, compiled: bool = False, autocast: bool = False) -> Step:
    count, moments, fibres, width = s.size(256, 3), s.size(25, 4), s.size(700, 9), s.size(256, 8)
    into = nn.ModuleList([nn.Linear(fibres, width), nn.Linear(width, width)]).to(s.device)
    within = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2)).to(s.device)
    read_out = nn.Linear(width, 20).to(s.device)
    optimizer = torch.optim.Adam([p for part in (into, within, read_out) for p in part.parameters()], lr=1e-3, capturable=graphed and s.cuda)
    leak = s.compile(_leak) if compiled else _leak
    heard, digit = (torch.rand(moments, count, fibres, device=s.device) < 0.03).float(), torch.randint(20, (count,), device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        optimizer.zero_grad()
        states = [tuple(torch.zeros(count, width, device=s.device) for _ in range(4)) for _ in into]
        score, fired = torch.zeros(count, 20, device=s.device), torch.zeros((), device=s.device)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            for now in heard:
                signal = now
                for layer, (enter, back) in enumerate(zip(into, within, strict=True)):
                    current, volts, tired, spikes = states[layer]
                    states[layer] = leak(current, volts, enter(signal) + back(spikes), tired, spikes)
                    signal = states[layer][3]
                    fired = fired + signal.mean()
                score = 0.95 * score + read_out(signal)
        loss = F.cross_entropy(score.float() / moments, digit) + 0.1 * (fired / moments - 0.1) ** 2
        loss.backward()
        optimizer.step()
        return loss.detach()

    return capture(step, s) if graphed else step


PROGRAM = written(
    "spiking_digits",
    "Two layers of spiking neurons over 25 moments, training through a surrogate's slope, TF32 products, moment by moment.",
    "the step as a CUDA graph; torch.compile of a moment; bf16 autocast",
    spiking_digits,
    {"graph-candidate": {"graphed": True}, "unfused-elementwise": {"compiled": True}, "precision": {"autocast": True}},
)
