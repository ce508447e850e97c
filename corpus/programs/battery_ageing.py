"""Two GRU layers over 100 cycles of 256 battery cells, a Python loop over nn.GRUCell, three quantiles after each cycle; training with TF32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, capture, written

BF16 = torch.bfloat16


class Ageing(nn.Module):
    """Two gated recurrent layers over the cycles of a cell, and three quantiles of its capacity after each."""

    def __init__(self, measured: int, width: int, layers: int, library: bool) -> None:
        super().__init__()
        cells = [nn.GRUCell(width if layer else measured, width) for layer in range(layers)]
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3))
        if library:
            self.layers: nn.Module = nn.GRU(measured, width, layers, batch_first=True)
            with torch.no_grad():
                for layer, cell in enumerate(cells):
                    for name, weight in cell.named_parameters():
                        getattr(self.layers, f"{name}_l{layer}").copy_(weight)
        else:
            self.layers = nn.ModuleList(cells)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layers, nn.GRU):
            return self.head(self.layers(x)[0])
        for cell in self.layers.children():
            hidden, states = x.new_zeros(len(x), cell.hidden_size), list[Tensor]()
            for now in x.unbind(1):
                hidden = cell(now, hidden)
                states.append(hidden)
            x = torch.stack(states, 1)
        return self.head(x)


def pinball(guess: Tensor, held: Tensor, levels: Tensor) -> Tensor:
    """The loss of quantiles; a cell does not recover, nor do quantiles cross."""
    short = held[..., None] - guess
    loss = torch.maximum(levels * short, (levels - 1.0) * short).mean()
    recovers = F.relu(guess[:, 1:] - guess[:, :-1]).mean()
    crosses = F.relu(guess[..., :-1] - guess[..., 1:]).mean()
    return loss + 0.1 * recovers + crosses


def battery_ageing(s: Setup, *, library: bool = False, graphed: bool = False, fused: bool = False, autocast: bool = False) -> Step:
    """All that was measured lies on the GPU; the mean loss does too."""
    cells, cycles, measured, count = s.size(4096, 12), s.size(100, 5), s.size(24, 3), s.size(256, 4)
    with s.device:
        curves, held = torch.randn(cells, cycles, measured), 1.0 - 0.002 * torch.rand(cells, cycles).cumsum(1)
        model = Ageing(measured, s.size(128, 8), 2, library)
        levels, mean = torch.tensor([0.1, 0.5, 0.9]), torch.zeros(())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused or None, capturable=graphed and s.cuda)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        these = torch.randint(cells, (count,), device=s.device)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            guess = model(curves[these])
        loss = pinball(guess.float(), held[these], levels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean.lerp_(loss.detach(), 0.01)
        return mean

    return capture(step, s) if graphed else step


PROGRAM = written(
    "battery_ageing",
    "Two GRU layers over 100 cycles of 256 battery cells, a Python loop over nn.GRUCell, three quantiles after each cycle; training with TF32.",
    "nn.GRU; the step as a CUDA graph; fused AdamW; bf16 autocast",
    battery_ageing,
    {"launch-gap": {"library": True}, "graph-candidate": {"graphed": True}, "optimizer-foreach": {"fused": True}, "precision": {"autocast": True}},
)
