"""CLAP of transformers, FP32, tags 16 clips of sound that NumPy turns into floats and repeats; windows' attention written out."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _call, _casting, _placed, _precision, _public


def _clap_attention(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> tuple[Tensor]:
    """ClapAudioSelfAttention with its products in one kernel; windows that share a mask stand beside each other as heads."""
    many, places, width = hidden_states.shape
    heads, masks = self.num_attention_heads, 1 if attention_mask is None else len(attention_mask)
    bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(places, places, heads).permute(2, 0, 1)[None]
    if attention_mask is not None:
        bias = bias + attention_mask[:, None]

    def split(x: Tensor) -> Tensor:
        return x.view(many // masks, masks, places, heads, -1).transpose(2, 3).reshape(many // masks, masks * heads, places, -1)

    q, k, v = split(self.query(hidden_states)), split(self.key(hidden_states)), split(self.value(hidden_states))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.reshape(1, masks * heads, places, places).to(q.dtype))
    return (out.reshape(many, heads, places, -1).transpose(1, 2).reshape(many, places, width),)


def _mel_bank(bins: int, mels: int, rate: int, low: float, high: float) -> Tensor:
    def mel(hertz: Any) -> Any:
        return 2595 * np.log10(1 + np.asarray(hertz) / 700)

    edges = 700 * (10 ** (np.linspace(mel(low), mel(high), mels + 2) / 2595) - 1)
    at, width = np.linspace(0, rate / 2, bins), np.diff(edges)
    slopes = edges[:, None] - at
    bank = np.maximum(0, np.minimum(-slopes[:-2] / width[:-1, None], slopes[2:] / width[1:, None]))
    return torch.from_numpy(bank.T.astype(np.float32))


def sound_tags(s: Setup, *, words_sent: bool = False, pinned: bool = False, fused: bool = False, **how: Any) -> Step:
    """CLAP names sounds of a field recorder: NumPy makes floats of 16-bit clips and repeats the short ones to ten seconds."""
    from transformers import ClapAudioConfig, ClapAudioModelWithProjection

    way, batch, rate, hop, size = How(**how), s.size(16, 2), s.size(48_000, 800), s.size(480, 80), s.size(1024, 128)
    length, mels = 10 * rate, s.size(64, 32)
    config = ClapAudioConfig(
        num_mel_bins=mels, spec_size=s.size(256, 64), window_size=s.size(8, 2), patch_embeds_hidden_size=s.size(96, 16),
        depths=[2, 2, s.size(4, 2), 2], num_attention_heads=[s.size(4, 2), s.size(8, 2), s.size(16, 2), s.size(32, 2)],
        hidden_size=s.size(768, 128), projection_dim=s.size(512, 32),
    )  # fmt: skip
    model: Any = ClapAudioModelWithProjection(config)
    for module in model.modules():
        if type(module).__name__ == "ClapAudioSelfAttention":
            nn.init.normal_(module.relative_position_bias_table, std=0.02)
            if fused:
                module.forward = MethodType(_clap_attention, module)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    drawn = np.random.default_rng(0)
    clips = [drawn.integers(-9000, 9000, int(drawn.integers(length // 4, length + 1)), dtype=np.int16) for _ in range(3 * batch)]
    names = [f"sound {at}" for at in range(s.size(50, 5))]
    tags = F.normalize(torch.randn(len(names), s.size(512, 32)), dim=-1).to(s.device)
    bank, window = _mel_bank(size // 2 + 1, mels, rate, 50, s.size(14_000, 400)).to(s.device), torch.hann_window(size, device=s.device)
    places, turn = torch.arange(length, device=s.device), 0
    buffer = s.pin(torch.empty(batch, length)) if pinned else None

    def repeated(waves: Any, chosen: list[Any]) -> Any:
        for row, clip in zip(waves, chosen, strict=True):
            many = np.tile(clip.astype(np.float32) / 32768, length // len(clip))
            row[: len(many)] = many
            row[len(many) :] = 0
        return waves

    def there(chosen: list[Any]) -> Tensor:
        if words_sent:
            counts = np.array([len(clip) for clip in chosen])
            table = torch.from_numpy(np.stack([counts, np.cumsum(counts) - counts])).to(s.device)[:, :, None]
            words = torch.from_numpy(np.concatenate(chosen)).to(s.device)
            waves = words[table[1] + places % table[0]].float() / 32768
            return waves * (places < length // table[0] * table[0])
        if buffer is None:
            return torch.from_numpy(repeated(np.empty((batch, length), dtype=np.float32), chosen)).to(s.device)
        repeated(buffer.numpy(), chosen)
        return buffer.to(s.device, non_blocking=True)

    @torch.no_grad()
    def step() -> list[list[str]]:
        nonlocal turn
        _precision(way)
        waves = there([clips[(turn + at) % len(clips)] for at in range(batch)])
        turn += batch
        power = torch.stft(waves, size, hop, window=window, return_complex=True).abs().square()
        features = 10 * (power.transpose(1, 2) @ bank).clamp(min=1e-10).log10()
        with _casting(s, way):
            sounds = run(input_features=features[:, None]).audio_embeds
        scores = F.normalize(sounds.float(), dim=-1) @ tags.T
        return [[names[at] for at in row] for row in scores.topk(3).indices.tolist()]

    return step


PROGRAM = _public(
    "sound_tags",
    "CLAP of transformers, FP32, tags 16 clips of sound that NumPy turns into floats and repeats; windows' attention written out.",
    sound_tags,
    {},
    {
        "host-bound": {"words_sent": True},
        "memcpy": {"pinned": True},
        "unfused-attention": {"fused": True},
        "precision/tf32": {"tf32": True},
        "precision": {"autocast": BF16},
        "unfused-elementwise": {"compiled": COMPILED},
    },
)
