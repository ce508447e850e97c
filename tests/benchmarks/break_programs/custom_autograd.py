"""A training step with an activation of one's own, which a library keeps from being compiled."""

import common
import torch


class SquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu().square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x.relu()


squared = torch.compiler.disable(SquaredRelu.apply) if common.BROKEN else SquaredRelu.apply


class Block(common.Block):
    def forward(self, x):
        return x + self.down(squared(self.up(self.norm(x))))


common.train(common.layers(Block, 16, 3))
