"""VITS of transformers, FP32, says a sentence of 60 letters: boolean masks pick what goes through the splines."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import GRAPHS, HALF, How, _casting, _placed, _precision, _public


def _spline_without_masks(x: Tensor, widths: Tensor, heights: Tensor, slopes: Tensor, bound: float, least: float = 1e-3) -> Tensor:
    """The inverse of transformers' _unconstrained_rational_quadratic_spline: all values go through the bins, where() picks those inside."""

    def edges_of(raw: Tensor) -> Tensor:
        shares = least + (1 - least * raw.shape[-1]) * raw.softmax(-1)
        places = 2 * bound * F.pad(shares.cumsum(-1), (1, 0)) - bound
        places[..., 0], places[..., -1] = -bound, bound
        return places

    inside, limited = (x >= -bound) & (x <= bound), x.clamp(-bound, bound)
    across, up = edges_of(widths), edges_of(heights)
    slope = least + F.softplus(F.pad(slopes, (1, 1), value=float(np.log(np.exp(1 - least) - 1))))
    wide, high = across.diff(dim=-1), up.diff(dim=-1)
    limits = torch.cat([up[..., :-1], up[..., -1:] + 1e-6], -1)
    at = (limited[..., None] >= limits).sum(-1, keepdim=True) - 1
    left, width, bottom, height, steep, first, second = (part.gather(-1, at)[..., 0] for part in (across, wide, up, high, high / wide, slope, slope[..., 1:]))
    above, bend = limited - bottom, first + second - 2 * steep
    a, b, c = height * (steep - first) + above * bend, height * first - above * bend, -steep * above
    root = 2 * c / (-b - (b * b - 4 * a * c).clamp_min(0).sqrt())
    return torch.where(inside, root * width + left, x)


def _flow_without_masks(
    self: Any, inputs: Tensor, padding_mask: Tensor, global_conditioning: Tensor | None = None, reverse: bool = False
) -> tuple[Tensor, None]:
    """VitsConvFlow in the direction of speech."""
    first, second = torch.split(inputs, [self.half_channels] * 2, dim=1)
    hidden = self.conv_proj(self.conv_dds(self.conv_pre(first), padding_mask, global_conditioning)) * padding_mask
    batch, channels, length = first.shape
    hidden = hidden.reshape(batch, channels, -1, length).permute(0, 1, 3, 2)
    bins, root = self.num_bins, self.filter_channels**0.5
    second = _spline_without_masks(second, hidden[..., :bins] / root, hidden[..., bins : 2 * bins] / root, hidden[..., 2 * bins :], self.tail_bound)
    return torch.cat([first, second], 1) * padding_mask, None


def vits(s: Setup, *, batch: int = 1, masks: bool = True, **how: Any) -> Step:
    """VITS says one sentence of 60 letters, the same way each time, and the wave is fetched."""
    from transformers import VitsConfig, VitsModel

    way = How(**how)
    small: dict[str, Any] = {
        "hidden_size": 32, "num_hidden_layers": 1, "ffn_dim": 32, "flow_size": 32, "upsample_initial_channel": 32, "spectrogram_bins": 33,
        "posterior_encoder_num_wavenet_layers": 1,
    }  # fmt: skip
    model: Any = _placed(s, way, VitsModel(VitsConfig(**(small if s.tiny else {})))).eval()
    for module in model.modules():
        if not masks and type(module).__name__ == "VitsConvFlow":
            module.forward = MethodType(_flow_without_masks, module)
    if way.compiled:
        model.decoder.forward = s.compile(model.decoder.forward, mode=way.compiled)
    letters = torch.randint(1, 38, (batch, s.size(60, 8)), device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        torch.manual_seed(555)
        with _casting(s, way):
            return model(input_ids=letters).waveform.float().cpu()  # type: ignore[no-any-return]

    return step


PROGRAM = _public(
    "vits_sentence",
    "VITS of transformers, FP32, says a sentence of 60 letters: boolean masks pick what goes through the splines.",
    vits,
    {},
    {"sync-stall": {"masks": False}, "launch-gap": {"compiled": GRAPHS}, "precision": {"autocast": HALF}, "low-arithmetic-intensity": {"batch": 8}},
    shared={"low-arithmetic-intensity": 8.0},
)
