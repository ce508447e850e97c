"""What the programs share: a layer, and the loops that train or infer and print the median step."""

import sys
import time

import torch
from torch import nn

BROKEN = sys.argv[1] == "broken"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
GPU = torch.cuda.is_available()
WARMUP, TIMED = 9, 30


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(512), nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def layers(block, on_a_gpu, on_a_cpu):
    return nn.Sequential(*(block() for _ in range(on_a_gpu if GPU else on_a_cpu)))


def placed(model):
    """The compiled model with its parameters, and a batch for it."""
    torch.manual_seed(0)
    device, dtype = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
    model = model.to(device, dtype)
    return torch.compile(model), model.parameters(), torch.randn(256, 512, device=device, dtype=dtype)


def train(model):
    compiled, parameters, x = placed(model)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)

    def step():
        loss = compiled(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    timed(step)


def infer(model):
    compiled, _, x = placed(model)

    def step():
        with torch.no_grad():
            compiled(x)

    timed(step)


def timed(step):
    """Print the median of the steps after the warm-up, in ms."""
    ends = []
    for _ in range(STEPS):
        step()
        if GPU:
            ends.append(torch.cuda.Event(enable_timing=True))
            ends[-1].record()
        else:
            ends.append(time.perf_counter())
    if GPU:
        torch.cuda.synchronize()
    took = sorted(a.elapsed_time(b) if GPU else (b - a) * 1e3 for a, b in list(zip(ends, ends[1:]))[WARMUP : WARMUP + TIMED])
    print(f"median step {took[len(took) // 2]:.4f} ms")
