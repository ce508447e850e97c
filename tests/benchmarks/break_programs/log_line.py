"""A training step whose model logs between its stages."""

import logging

import common
from torch import nn

log = logging.getLogger("net")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.early, self.middle, self.late, self.head = (common.layers(common.Block, 4, 1) for _ in range(5))

    # No loop: Dynamo gives a frame up that breaks inside one.
    def forward(self, x):
        x = self.stem(x)
        if common.BROKEN:
            log.info("after stem: %s", tuple(x.shape))
        x = self.early(x)
        if common.BROKEN:
            log.info("after early: %s", tuple(x.shape))
        x = self.middle(x)
        if common.BROKEN:
            log.info("after middle: %s", tuple(x.shape))
        x = self.late(x)
        if common.BROKEN:
            log.info("after late: %s", tuple(x.shape))
        return self.head(x)


common.train(Net())
