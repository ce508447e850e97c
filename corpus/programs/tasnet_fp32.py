"""Conv-TasNet of torchaudio, training in FP32 on 3 s of two speakers: norms over whole clips."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _workload, training


def tasnet(s: Setup, how: How) -> Step:
    """Two speakers are parted; 8 of the 24 blocks of the base model."""
    from torchaudio.models import ConvTasNet

    batch, samples = s.size(8, 1), s.size(24_000, 800)
    model = ConvTasNet(msk_num_layers=s.size(4, 1), msk_num_stacks=s.size(2, 1), msk_activate="relu")
    mixed, parts = torch.randn(batch, 1, samples, device=s.device), torch.randn(batch, 2, samples, device=s.device)
    return training(s, how, model, lambda model: F.l1_loss(model(mixed), parts), torch.optim.Adam)


PROGRAM = _workload(
    "tasnet_fp32",
    "Conv-TasNet of torchaudio, training in FP32 on 3 s of two speakers: norms over whole clips.",
    tasnet,
    How(),
    precision=How(autocast=BF16),
    precision__tf32=How(tf32=True),
    unfused_elementwise=How(compiled=COMPILED),
    optimizer_foreach=How(optimizer="fused"),
)
