"""Three processes that know nothing of each other's steps, started by torch.multiprocessing."""

import torch.multiprocessing as mp
from loop import trained


def work(index):
    with open(f"loss{index}.txt", "w") as file:
        file.write(f"{trained(seed=index)}\n")


if __name__ == "__main__":
    mp.spawn(work, nprocs=3)
    print("all three ended")
