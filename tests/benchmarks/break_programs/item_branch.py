"""A training step whose layers branch on the size of their activations."""

import sys
import time

import torch
from torch import nn

BROKEN = sys.argv[1] == "broken"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
GPU = torch.cuda.is_available()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(512), nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        y = nn.functional.gelu(self.up(self.norm(x)))
        if BROKEN:
            if y.abs().amax().item() > 8.0:
                y = y.clamp(-8.0, 8.0)
        else:
            y = y.clamp(-8.0, 8.0)
        return x + self.down(y)


torch.manual_seed(0)
device, dtype = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
model = nn.Sequential(*(Block() for _ in range(16 if GPU else 3))).to(device, dtype)
compiled = torch.compile(model)
x = torch.randn(256, 512, device=device, dtype=dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
ends = []
for _ in range(STEPS):
    loss = compiled(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if GPU:
        ends.append(torch.cuda.Event(enable_timing=True))
        ends[-1].record()
    else:
        ends.append(time.perf_counter())
if GPU:
    torch.cuda.synchronize()
took = sorted(a.elapsed_time(b) if GPU else (b - a) * 1e3 for a, b in list(zip(ends, ends[1:]))[9:39])
print(f"median step {took[len(took) // 2]:.4f} ms")
