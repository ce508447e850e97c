"""Conformer of torchaudio, training in FP32 on 16 x 500 frames."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _workload, training


def conformer(s: Setup, how: How) -> Step:
    """The encoder alone, each frame classified as one of 256 pieces of words."""
    from torchaudio.models import Conformer

    dim, frames, batch = s.size(256, 16), s.size(500, 20), s.size(16, 2)
    model = Conformer(dim, num_heads=4, ffn_dim=4 * dim, num_layers=s.size(4, 1), depthwise_conv_kernel_size=31, dropout=0.1)
    sound, lengths = torch.randn(batch, frames, dim, device=s.device), torch.full((batch,), frames, device=s.device)
    labels = torch.randint(dim, (batch, frames), device=s.device)
    return training(s, how, model, lambda model: F.cross_entropy(model(sound, lengths)[0].transpose(1, 2), labels))


PROGRAM = _workload(
    "conformer_fp32",
    "Conformer of torchaudio, training in FP32 on 16 x 500 frames.",
    conformer,
    How(),
    precision=How(autocast=BF16),
    precision__tf32=How(tf32=True),
    unfused_elementwise=How(compiled=COMPILED),
    optimizer_foreach=How(optimizer="fused"),
)
