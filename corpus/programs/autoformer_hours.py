"""Autoformer of transformers, training in FP32; windows come one by one from tensors in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from workloads.base import Setup, Step
from workloads.public import How, _forever, _public, training


def autoformer(s: Setup, *, workers: bool = False, **how: Any) -> Step:
    """Autoformer of transformers on windows of hourly counts: correlations with itself by Fourier transforms."""
    from transformers import AutoformerConfig, AutoformerForPrediction

    lags, past, ahead, count = [1, 2, 3, 24], s.size(96, 24), s.size(24, 6), s.size(64, 4)
    config = AutoformerConfig(
        prediction_length=ahead, context_length=past, lags_sequence=lags, num_time_features=2, d_model=s.size(64, 16), encoder_layers=s.size(2, 1),
        decoder_layers=1, encoder_ffn_dim=s.size(128, 16), decoder_ffn_dim=s.size(128, 16), label_length=past // 2, moving_average=5,
        autocorrelation_factor=1,
    )  # fmt: skip
    windows, longer = s.size(4096, 16), past + max(lags)
    data = TensorDataset(torch.rand(windows, longer), torch.rand(windows, longer, 2), torch.rand(windows, ahead), torch.rand(windows, ahead, 2))
    options, batches = _forever(s, workers)
    stream = batches(DataLoader(data, batch_size=count, shuffle=True, drop_last=True, **options))

    def loss(model: Any) -> Tensor:
        values, times, future, future_times = (tensor.to(s.device, non_blocking=workers) for tensor in next(stream))
        return model(  # type: ignore[no-any-return]
            past_values=values, past_time_features=times, past_observed_mask=torch.ones_like(values), future_values=future,
            future_time_features=future_times,
        ).loss  # fmt: skip

    return training(s, How(**how), AutoformerForPrediction(config), loss, torch.optim.AdamW)


PROGRAM = _public(
    "autoformer_hours",
    "Autoformer of transformers, training in FP32; windows come one by one from tensors in memory.",
    autoformer,
    {},
    {"optimizer-foreach": {"optimizer": "fused"}, "data-loading": {"workers": True}, "precision/tf32": {"tf32": True}},
)
