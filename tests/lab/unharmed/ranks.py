"""Data parallel training by gloo: two ranks, which torchrun starts, or this script itself."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world, store, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.rand(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.005)
    dist.barrier()
    with open(f"rank{rank}.txt", "w") as file:
        file.write(f"{loss.item()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    steps = int(sys.argv[1])
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", steps)
    else:
        mp.spawn(work, (2, f"file://{os.path.abspath('store')}", steps), nprocs=2)
        os.unlink("store") if os.path.exists("store") else None
        print("both ranks ended")
