"""DistributedDataParallel over processes that the program spawns itself, as PyTorch's examples do: a deep net of small layers."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = max(1, min(2, torch.cuda.device_count())) if torch.cuda.is_available() else 2
device = "cuda" if torch.cuda.is_available() else "cpu"


def train(rank):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29517")
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(rank)
    where = f"cuda:{rank}" if device == "cuda" else "cpu"
    net = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(4 if device == "cpu" else 24)), nn.Linear(256, 10))
    model = DistributedDataParallel(net.to(where), device_ids=[rank] if device == "cuda" else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images, labels = torch.randn(4096, 256, device=where), torch.randint(10, (4096,), device=where)
    for _ in range(4000):
        chosen = torch.randint(4096, (128,), device=where)
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, nprocs=RANKS)
