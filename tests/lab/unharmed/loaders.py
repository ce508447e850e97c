"""Batches from a DataLoader with two workers, which are forked or started anew."""

import sys
import time

import torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return torch.full((4,), float(i))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, shuffle=True, num_workers=2, multiprocessing_context=sys.argv[1])
    for _epoch in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss = net(batch).square().mean()
            loss.backward()
            optimizer.step()
            time.sleep(0.02)
    print(loss.item())
