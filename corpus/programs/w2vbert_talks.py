"""W2v-BERT of transformers, tuned in FP32 on four talks whose mel bands NumPy makes in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from workloads.base import Setup, Step
from workloads.public import BF16, SDPA, How, _public, training


class _Talks(Dataset[tuple[Tensor, Tensor]]):
    """Five seconds of a talk each, of which the library's extractor makes mel bands as it is read, and what is said in it."""

    def __init__(self, seconds: float, letters: int, said: int) -> None:
        from transformers import SeamlessM4TFeatureExtractor

        draw = np.random.default_rng(0)
        self.extractor, self.letters, self.said = SeamlessM4TFeatureExtractor(), letters, said
        self.sounds = [draw.standard_normal(int(16_000 * seconds), dtype=np.float32) * 0.1 for _ in range(16)]

    def __len__(self) -> int:
        return 1 << 14

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        bands = self.extractor(self.sounds[at % len(self.sounds)], sampling_rate=16_000, return_tensors="pt")["input_features"][0]
        return bands, torch.randint(3, self.letters, (self.said,))


def wav2vec2_bert(s: Setup, *, workers: int = 0, pinned: bool = False, **how: Any) -> Step:
    """W2v-BERT is tuned to write down four talks of five seconds (CTC), spans of which are hidden from it."""
    from transformers import Wav2Vec2BertConfig, Wav2Vec2BertForCTC

    way, letters = How(**how), s.size(64, 11)
    config = Wav2Vec2BertConfig(
        vocab_size=letters, hidden_size=s.size(1024, 32), num_hidden_layers=s.size(8, 1), num_attention_heads=s.size(16, 2), layerdrop=0.0,
        intermediate_size=s.size(4096, 64), ctc_loss_reduction="mean", ctc_zero_infinity=True, attn_implementation=SDPA,
    )  # fmt: skip
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "prefetch_factor": 4} if workers and s.cuda else {}
    data = _Talks(5.0 if not s.tiny else 0.5, letters, s.size(40, 3))
    loader = DataLoader(data, s.size(4, 2), shuffle=True, drop_last=True, pin_memory=pinned and s.cuda, **options)
    stream = (batch for _ in iter(int, 1) for batch in loader)

    with s.device:
        model = Wav2Vec2BertForCTC(config)

    def loss(model: Any) -> Tensor:
        bands, said = (part.to(s.device, non_blocking=pinned) for part in next(stream))
        return model(input_features=bands, labels=said).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


PROGRAM = _public(
    "w2vbert_talks",
    "W2v-BERT of transformers, tuned in FP32 on four talks whose mel bands NumPy makes in this process.",
    wav2vec2_bert,
    {},
    {"data-loading": {"workers": 10, "pinned": True}, "precision": {"autocast": BF16}, "memcpy": {"pinned": True}, "optimizer-foreach": {"optimizer": "fused"}},
)
