"""Programs whose matrix products have sizes that Tensor Cores load badly."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload
from .models import Block


def _gpt2(s: Setup, words: int) -> Step:
    """GPT-2 small with two of its blocks: the head is most of the work."""
    dim, batch, length = s.size(768, 32), s.size(8, 2), s.size(1024, 8)
    vocabulary = s.size(50257, 61)
    with s.device:
        blocks = nn.Sequential(*(Block(dim, s.size(12, 2), causal=True) for _ in range(s.size(2, 1))))
        model = nn.Sequential(nn.Embedding(words, dim), blocks, nn.LayerNorm(dim), nn.Linear(dim, words, bias=False))
        tokens = torch.randint(vocabulary, (batch, length + 1))
    model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def vocabulary_slow(s: Setup) -> Step:
    return _gpt2(s, s.size(50257, 61))


def vocabulary_fixed(s: Setup) -> Step:
    return _gpt2(s, s.size(50304, 64))


def _features(s: Setup, columns: int) -> Step:
    """Click-through model over a table of dense features that is made once; added columns hold zeros."""
    features, hidden, rows = s.size(1001, 13), s.size(4096, 16), s.size(32768, 8)
    model = nn.Sequential(
        nn.Linear(columns, hidden), nn.ReLU(), nn.Linear(hidden, s.size(1001, 13) if columns == features else columns)
    )
    model = model.to(s.device, torch.bfloat16).eval()
    table = F.pad(torch.randn(rows, features), (0, columns - features)).to(s.device, torch.bfloat16)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(table)

    return step


def features_slow(s: Setup) -> Step:
    return _features(s, s.size(1001, 13))


def features_fixed(s: Setup) -> Step:
    return _features(s, s.size(1008, 16))


def _packed(s: Setup, rows: int) -> Step:
    """Training on packed sequences: `rows` tokens, as many as there are."""
    dim = s.size(2048, 16)
    model = nn.Sequential(*(nn.Linear(dim, dim) for _ in range(s.size(8, 2)))).to(s.device, torch.bfloat16)
    x = torch.randn(rows, dim, device=s.device, dtype=torch.bfloat16)

    def step() -> None:
        model.zero_grad()
        model(x).float().square().mean().backward()

    return step


def packed_slow(s: Setup) -> Step:
    return _packed(s, s.size(16381, 13))


def packed_fixed(s: Setup) -> Step:
    return _packed(s, s.size(16384, 16))


WORKLOADS = (
    Workload(
        name="gpt2_vocabulary", rule="gemm-alignment", main=True, make_slow=vocabulary_slow, make_fixed=vocabulary_fixed,
        what="GPT-2 training step in bf16 with a vocabulary of 50257: the three products of the head leave the fast kernels.",
        fix="a vocabulary of 50304",
        gpu_bound=True,
    ),
    Workload(
        name="odd_features", rule="gemm-alignment", make_slow=features_slow, make_fixed=features_fixed,
        what="Click-through model in bf16 on 1001 dense features, with 1001 outputs.",
        fix="both padded to 1008",
        gpu_bound=True,
    ),
    Workload(
        name="odd_rows", rule="gemm-alignment", trap=True, make_slow=packed_slow, make_fixed=packed_fixed,
        what="Training in bf16 on 16381 packed tokens: an odd number of rows, but every row begins at a multiple of 16 bytes.",
        fix="16384 tokens: gains nothing",
        gpu_bound=True,
    ),
)  # fmt: skip
