"""wav2vec 2.0 of transformers learns letters by CTC, fp16 with a GradScaler; lists of floats are padded in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, HALF, SDPA, How, _forever, _public, training


class _Talks(torch.utils.data.Dataset[dict[str, Any]]):
    """What `datasets` gives after `map`: waves as lists of floats, or as arrays after `with_format("numpy")`."""

    def __init__(self, count: int, length: int, letters: int, said: int, arrays: bool) -> None:
        drawn = np.random.default_rng(0)
        waves = [drawn.standard_normal(int(length * share), dtype=np.float32) for share in np.linspace(0.8, 1.0, count)]
        self.waves: list[Any] = waves if arrays else [wave.tolist() for wave in waves]
        self.labels = [drawn.integers(5, letters, said).tolist() for _ in range(count)]

    def __len__(self) -> int:
        return 64 * len(self.waves)

    def __getitem__(self, at: int) -> dict[str, Any]:
        at %= len(self.waves)
        return {"input_values": self.waves[at], "labels": self.labels[at]}


def wav2vec_letters(s: Setup, *, arrays: bool = False, workers: bool = False, **how: Any) -> Step:
    """wav2vec 2.0 base learns to write talks down by CTC, as in the well-known notebook; 8 talks of up to ten seconds a step."""
    from torch.utils.data import DataLoader
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    way, talks, length, letters = How(**how), s.size(8, 2), s.size(160_000, 8000), 32
    small: dict[str, Any] = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2} if s.tiny else {}
    config = Wav2Vec2Config(
        vocab_size=letters, hidden_size=s.size(768, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), ctc_loss_reduction="mean", pad_token_id=0, layerdrop=0.0, mask_time_length=s.size(10, 2),
        attn_implementation=way.attention, **small,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config)
    model.freeze_feature_encoder()
    extractor = Wav2Vec2FeatureExtractor(feature_size=1, sampling_rate=16_000, padding_value=0.0, do_normalize=True)

    def collate(features: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        batch = extractor.pad([{"input_values": one["input_values"]} for one in features], padding=True, return_tensors="pt")
        labels = nn.utils.rnn.pad_sequence([torch.tensor(one["labels"]) for one in features], batch_first=True, padding_value=-100)
        return batch["input_values"], labels

    options, batches = _forever(s, workers and s.cuda)
    options |= {"num_workers": 4} if options else {}
    data = _Talks(s.size(24, 4), length, letters, s.size(150, 4), arrays)
    stream = batches(DataLoader(data, batch_size=talks, shuffle=True, drop_last=True, collate_fn=collate, **options))

    def loss(model: Any) -> Tensor:
        waves, labels = (tensor.to(s.device, non_blocking=workers) for tensor in next(stream))
        return model(input_values=waves, labels=labels).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


PROGRAM = _public(
    "wav2vec_letters",
    "wav2vec 2.0 of transformers learns letters by CTC, fp16 with a GradScaler; lists of floats are padded in this process.",
    wav2vec_letters,
    {"autocast": HALF, "scaler": True},
    {
        "host-bound": {"arrays": True},
        "data-loading": {"workers": True},
        "amp-scaler-sync": {"autocast": BF16, "scaler": False},
        "unfused-attention": {"attention": SDPA},
        "optimizer-foreach": {"optimizer": "fused"},
    },
)
