"""Inference whose layers ask the allocator how much memory is in use."""

import common
import torch
from torch.nn.functional import gelu


class Block(common.Block):
    def forward(self, x):
        y = gelu(self.up(self.norm(x)))
        if common.BROKEN and torch.cuda.memory_allocated() > 64 << 30:
            torch.cuda.empty_cache()
        return x + self.down(y)


common.infer(common.layers(Block, 48, 4))
