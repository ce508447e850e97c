"""Serves requests and trains nothing; the last one is a bad one."""

import time

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
with torch.inference_mode():
    for _ in range(80):
        answer = net(torch.ones(2, 4))
        time.sleep(0.02)
    print(answer.tolist())
    try:
        net(torch.ones(2, 3))
    except RuntimeError as error:
        print(error)
