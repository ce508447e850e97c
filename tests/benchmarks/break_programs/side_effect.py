"""A training step whose model counts its calls under a lock that is shared with a thread."""

import threading

import common
from torch import nn

LOCK = threading.Lock()
CALLS = {}


def count(stage):
    if common.BROKEN:
        with LOCK:
            CALLS[stage] = CALLS.get(stage, 0) + 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.fourth = (common.layers(common.Block, 5, 1) for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        count("first")
        x = self.second(x)
        count("second")
        x = self.third(x)
        count("third")
        return self.fourth(x)


common.train(Net())
