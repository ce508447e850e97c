"""What a program with a memory fault is, and the model that several of them train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Step = Callable[[], object]


@dataclass(frozen=True)
class Setup:
    """Where a program runs. `tiny` swaps every size for a toy one, so that it can be tried without a GPU."""

    device: torch.device
    tiny: bool = False

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full


Make = Callable[[Setup], Step]


@dataclass(frozen=True)
class MemoryWorkload:
    """One program, slow and fixed; a control has only the fixed side.

    `bytes`: the peak that the fix lowers, allocated or reserved. `late`: the history begins after that many steps.
    `stacks`: as `_record_memory_history` takes it. `fixed_conf`: PYTORCH_CUDA_ALLOC_CONF of the fixed side.
    """

    name: str
    rule: str | None
    what: str
    fix: str
    make_fixed: Make
    make_slow: Make | None = None
    bytes: str = "allocated"
    steps: int = 3
    late: int = 0
    stacks: str = "all"
    fixed_conf: str = ""
    other_rules: tuple[str, ...] = field(default=())

    def sides(self) -> dict[str, Make]:
        return {"slow": self.make_slow, "fixed": self.make_fixed} if self.make_slow else {"fixed": self.make_fixed}


class Attention(nn.Module):
    """Causal self-attention; `materialize` forms the matrix of scores, as a hand-written one does."""

    def __init__(self, width: int, heads: int, materialize: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.materialize = heads, materialize

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        if self.materialize:
            scores = q @ k.transpose(-2, -1) / (width / self.heads) ** 0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~mask, float("-inf"))
            mixed = scores.softmax(dim=-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, materialize: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, materialize)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A small language model."""

    def __init__(
        self, vocabulary: int, width: int, layers: int, *, materialize: bool = False, checkpointed: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64), materialize) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.checkpointed = checkpointed

    def features(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.features(tokens))


def tokens_of(s: Setup, batch: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length), device=s.device)


def mlp(width: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), nn.GELU())), nn.Linear(width, 1))
