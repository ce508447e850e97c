"""HuBERT of transformers, training in FP32 on 16 recordings that numpy changes in this process, attention written out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workloads.base import Setup, Step
from workloads.public import BF16, How, _public, training

WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "multiprocessing_context": "fork"}


def _without_end(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def _loaded(s: Setup, data: Dataset[Any], batch: int, workers: bool) -> Iterator[Any]:
    options = WORKERS | {"pin_memory": s.cuda} if workers and s.cuda else {}
    return _without_end(DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, **options))


class Calls(Dataset[tuple[Tensor, int]]):
    """Recordings cut anywhere, in noise and with another speed, all by numpy."""

    def __init__(self, s: Setup) -> None:
        self.length, rng = s.size(24_000, 1600), np.random.default_rng(0)
        self.sound, self.noise = (rng.standard_normal((s.size(128, 8), 2 * self.length)).astype(np.float32) for _ in range(2))

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng(index)
        speed, at = rng.uniform(0.9, 1.1), int(rng.integers(self.length // 2))
        where = at + speed * np.arange(self.length)
        wave = np.interp(where, np.arange(2 * self.length), self.sound[index % len(self.sound)])
        noise = self.noise[rng.integers(len(self.noise)), at : at + self.length]
        wave = wave + noise * (wave.std() / noise.std() * 10 ** (-rng.uniform(5, 20) / 20))
        return torch.from_numpy(((wave - wave.mean()) / wave.std()).astype(np.float32)), index % 12


def hubert_calls(s: Setup, *, workers: bool = False, **how: Any) -> Step:
    """HuBERT learns twelve birds' calls."""
    from transformers import HubertConfig, HubertForSequenceClassification

    way = How(**how)
    config = HubertConfig(
        hidden_size=s.size(512, 32), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(8, 2), intermediate_size=s.size(2048, 64), num_labels=12,
        attn_implementation=way.attention, apply_spec_augment=False, layerdrop=0.0, num_conv_pos_embedding_groups=s.size(16, 2),
        num_conv_pos_embeddings=s.size(128, 8), conv_dim=(s.size(512, 32),) * 7,
    )  # fmt: skip
    batches = _loaded(s, Calls(s), s.size(16, 2), workers)

    def loss(model: Any) -> Tensor:
        wave, labels = (part.to(s.device, non_blocking=workers) for part in next(batches))
        return model(input_values=wave, labels=labels).loss  # type: ignore[no-any-return]

    return training(s, way, HubertForSequenceClassification(config), loss)


PROGRAM = _public(
    "hubert_calls",
    "HuBERT of transformers, training in FP32 on 16 recordings that numpy changes in this process, attention written out.",
    hubert_calls,
    {},
    {"data-loading": {"workers": True}, "precision": {"autocast": BF16}, "unfused-attention": {"attention": "sdpa"}},
)
