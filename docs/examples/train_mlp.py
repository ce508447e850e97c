"""A small classifier that trains slower than it could, on a GPU or a laptop's CPU:

advisor record -- python docs/examples/train_mlp.py
advisor analyze recording
advisor verify --before "python docs/examples/train_mlp.py" --after "python docs/examples/train_mlp.py --fixed"
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    """RMS norm as it stands in papers: one kernel for each of its operations. `--fixed` uses the one that torch has."""

    def __init__(self, width: int, fixed: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.fixed = fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fixed:
            return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def model(width: int, layers: int, fixed: bool) -> nn.Sequential:
    blocks = [nn.Sequential(Norm(width, fixed), nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Linear(width, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--fixed", action="store_true", help="the loss stays on the device, one kernel for all weights, fused norms")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    net = model(args.width, args.layers, args.fixed).to(device)
    optimizer = torch.optim.Adam(net.parameters(), fused=True) if args.fixed else torch.optim.Adam(net.parameters(), foreach=False)
    inputs = torch.randn(args.batch, args.width, device=device)
    labels = torch.randint(10, (args.batch,), device=device)
    total = torch.zeros((), device=device)
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
        if args.fixed:
            total += loss.detach()
        else:
            total += loss.item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: mean loss {total.item() / (step + 1):.4f}", flush=True)


if __name__ == "__main__":
    main()
