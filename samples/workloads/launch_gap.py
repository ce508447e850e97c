"""Programs whose kernels are shorter than the time it takes to launch them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, Workload, capture
from .models import Block


class SentenceEncoder(nn.Module):
    """A small sentence-embedding model."""

    def __init__(self, vocabulary: int, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.normalize(self.norm(self.blocks(self.embed(tokens))).mean(1), dim=-1)


def _encoder(s: Setup) -> tuple[nn.Module, Tensor]:
    model = SentenceEncoder(s.size(30522, 100), s.size(384, 32), s.size(12, 2), s.size(8, 1))
    tokens = torch.randint(100, (2, s.size(64, 8)), device=s.device)
    return model.to(s.device, torch.bfloat16).eval(), tokens


def encoder_slow(s: Setup) -> Step:
    model, tokens = _encoder(s)

    @torch.inference_mode()
    def step() -> Tensor:
        return model(tokens)

    return step


def encoder_fixed(s: Setup) -> Step:
    model, tokens = _encoder(s)
    encode = s.compile(model, mode="reduce-overhead")

    @torch.inference_mode()
    def step() -> Tensor:
        return encode(tokens)

    return step


def _sequence(s: Setup) -> Tensor:
    return torch.randn(s.size(64, 4), s.size(32, 2), s.size(512, 16), device=s.device, dtype=torch.bfloat16)


def rnn_slow(s: Setup) -> Step:
    sequence = _sequence(s)
    width = sequence.shape[-1]
    cell = nn.LSTMCell(width, width).to(s.device, torch.bfloat16)

    @torch.inference_mode()
    def step() -> Tensor:
        state = (torch.zeros_like(sequence[0]), torch.zeros_like(sequence[0]))
        outputs = []
        for frame in sequence:
            state = cell(frame, state)
            outputs.append(state[0])
        return torch.stack(outputs)

    return step


def rnn_fixed(s: Setup) -> Step:
    sequence = _sequence(s)
    width = sequence.shape[-1]
    lstm = nn.LSTM(width, width).to(s.device, torch.bfloat16)

    @torch.inference_mode()
    def step() -> Tensor:
        return lstm(sequence)[0]

    return step


def _tabular_training(s: Setup) -> Step:
    width, depth, rows = s.size(256, 16), s.size(8, 2), s.size(512, 8)
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).to(s.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
    features, target = torch.randn(rows, width, device=s.device), torch.randn(rows, 1, device=s.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.huber_loss(model(features), target).backward()
        optimizer.step()

    return step


def tabular_fixed(s: Setup) -> Step:
    return capture(_tabular_training(s), s)


WORKLOADS = (
    Workload(
        name="encoder_infer", rule="launch-gap", main=True, make_slow=encoder_slow, make_fixed=encoder_fixed,
        what="Sentence-encoder inference at batch 2, eager: eight layers of kernels of a few microseconds each.",
        fix="torch.compile(mode='reduce-overhead')",
        top=("launch-gap", "graph-candidate", "host-bound"),
    ),
    Workload(
        name="rnn_cell_loop", rule="launch-gap", make_slow=rnn_slow, make_fixed=rnn_fixed,
        what="A Python loop over nn.LSTMCell for 64 time steps.",
        fix="nn.LSTM: one cuDNN call for the whole sequence",
        top=("launch-gap", "graph-candidate", "host-bound"),
        fixed_quiet=False,  # cuDNN still launches small kernels for each time step
    ),
    Workload(
        name="many_small_ops", rule="launch-gap", make_slow=_tabular_training, make_fixed=tabular_fixed,
        what="Training step of a small tabular MLP with a for-loop SGD.",
        fix="capture the whole step in a torch.cuda.CUDAGraph",
        top=("launch-gap", "graph-candidate", "optimizer-foreach", "host-bound"),
    ),
)  # fmt: skip
