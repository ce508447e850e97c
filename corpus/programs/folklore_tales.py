"""A MiniLM (BERT of transformers) embeds 192 tales of 24 to 448 words in FP32, 32 at a time; the cache is emptied after each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, SDPA, How, _placed, _precision, _public


def folklore_tales(
    s: Setup, *, emptied: bool = True, late: bool = False, prepared: bool = False, layers: bool = False, **how: Any
) -> Step:  # fmt: skip
    """A MiniLM embeds 192 tales, 32 at a time by length; ten kin of each are looked up among 100,000 vectors."""
    from transformers import BertConfig, BertModel

    way = How(**how)
    tales, batch, words, width = s.size(192, 6), s.size(32, 3), s.size(30522, 101), s.size(384, 32)
    shortest, longest, kin = s.size(24, 3), s.size(448, 14), s.size(10, 2)
    config = BertConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=s.size(12, 2), num_attention_heads=s.size(12, 2), intermediate_size=4 * width,
        attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model: Any = BertModel(config, add_pooling_layer=False)
        archive = F.normalize(torch.randn(s.size(100_000, 20), width), dim=-1)
    model = _placed(s, way, model).eval()
    if layers:
        for layer in model.encoder.layer:
            layer.forward = s.compile(layer.forward, dynamic=True)
    rng = np.random.default_rng(31)
    spread = np.clip(np.exp(np.linspace(-1.6, 1.6, tales)) * (shortest * longest) ** 0.5 * 1.6, shortest, longest).astype(int)
    shelves = []
    for _ in range(4):
        lengths = rng.permutation(spread)
        flat = rng.integers(4, words, lengths.sum())
        shelves.append((np.split(flat, lengths.cumsum()[:-1]), torch.from_numpy(flat), torch.from_numpy(lengths)))
    told = [[tale.tolist() for tale in shelf] for shelf, _flat, _lengths in shelves]
    turn = 0

    def collated(shelf: int, picked: np.ndarray) -> tuple[Tensor, Tensor]:
        if prepared:
            _split, flat, lengths = shelves[shelf]
            index = torch.from_numpy(picked)
            long = lengths[index]
            at = torch.arange(int(long.max()))
            there = at < long[:, None]
            first = (lengths.cumsum(0) - lengths)[index]
            ids = flat[(first[:, None] + at).clamp(max=len(flat) - 1)] * there
            return ids, there.long()
        rows = [told[shelf][n] for n in picked]
        most = max(len(row) for row in rows)
        ids, mask = [], []
        for row in rows:
            ids.append(row + [0] * (most - len(row)))
            mask.append([1] * len(row) + [0] * (most - len(row)))
        return torch.tensor(ids), torch.tensor(mask)

    def embedded(ids: Tensor, mask: Tensor) -> Tensor:
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        there = mask.unsqueeze(-1).float()
        return F.normalize((hidden * there).sum(1) / there.sum(1).clamp(min=1e-9), dim=-1)

    @torch.no_grad()
    def step() -> tuple[np.ndarray, np.ndarray]:
        nonlocal turn
        _precision(way)
        shelf, turn = turn % 4, turn + 1
        order = np.argsort([-len(tale) for tale in told[shelf]], kind="stable")
        found: list[Any] = []
        for start in range(0, tales, batch):
            ids, mask = collated(shelf, order[start : start + batch])
            if way.pinned:
                ids, mask = s.pin(ids).to(s.device, non_blocking=True), s.pin(mask).to(s.device, non_blocking=True)
            else:
                ids, mask = ids.to(s.device), mask.to(s.device)
            vectors = embedded(ids, mask)
            found.append(vectors if late else vectors.cpu().numpy())
            del ids, mask, vectors
            if emptied and s.cuda:
                torch.cuda.empty_cache()
        back = np.argsort(order)
        if late:
            vectors = torch.cat(found)
        else:
            vectors = torch.from_numpy(np.concatenate(found)).to(s.device)
        nearest = (vectors @ archive.T).topk(kin, dim=-1).indices
        return vectors.cpu().numpy()[back], nearest.cpu().numpy()[back]

    return step


PROGRAM = _public(
    "folklore_tales",
    "A MiniLM (BERT of transformers) embeds 192 tales of 24 to 448 words in FP32, 32 at a time; the cache is emptied after each.",
    folklore_tales,
    {},
    {
        "allocator": {"emptied": False},
        "precision": {"dtype": BF16},
        "precision/tf32": {"tf32": True},
        "unfused-attention": {"attention": SDPA},
        "unfused-elementwise": {"layers": True},
        "host-bound": {"prepared": True},
        "sync-stall": {"late": True},
        "memcpy": {"pinned": True},
    },
)
