"""SpeechT5 of transformers, training in fp16 autocast with a scaler on 16 announcements; guides by length, EMA by a loop."""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step
from workloads.public import BF16, HALF, How, _casting, _optimizer, _placed, _precision, _public


def _fused_speech(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, position_bias: Tensor | None = None, **_: Any) -> Any:
    """Self-attention of SpeechT5 in one kernel; what places add to the scores goes in as the mask."""
    b, n, _width = hidden_states.shape
    q, k, v = (part(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
    bias = attention_mask
    if position_bias is not None:
        places = torch.einsum("bhid,ijd->bhij", q * self.scaling, position_bias.to(q.dtype))
        bias = places if bias is None else places + bias
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=None if bias is None else bias.to(q.dtype), dropout_p=self.dropout if self.training else 0.0, scale=self.scaling
    )  # fmt: skip
    return self.out_proj(out.transpose(1, 2).reshape(b, n, -1)), None


def _whole_loss(config: Any, there: Tensor, before: Tensor, after: Tensor, stop: Tensor, mels: Tensor, crossed: tuple[Tensor, ...]) -> Tensor:
    """SpeechT5's loss with weights of 0 and 1 where the library selects, and all guides at once."""
    real = mels[:, :, 0] != -100.0
    weight = real[:, :, None].float() / (real.sum() * mels.shape[2])
    l1 = (((after - mels).abs() + (before - mels).abs()) * weight).sum()
    last = F.pad((~real).float()[:, 1:], (0, 1), value=1.0)
    bce = F.binary_cross_entropy_with_logits(stop, last, reduction="none", pos_weight=last.new_full((), 5.0))
    bce = (bce * real).sum() / real.sum()
    attn = torch.cat([x[:, : config.guided_attention_loss_num_heads] for x in crossed], 1)
    spoken, read = real[:, config.reduction_factor - 1 :: config.reduction_factor], there == 1
    down = torch.arange(spoken.shape[1], device=mels.device) / spoken.sum(-1, keepdim=True)
    along = torch.arange(read.shape[1], device=mels.device) / read.sum(-1, keepdim=True)
    both = spoken[:, :, None] & read[:, None]
    guide = (1.0 - torch.exp(-((along[:, None] - down[:, :, None]) ** 2) / (2 * config.guided_attention_loss_sigma**2))) * both
    guided = (attn * guide[:, None]).sum() / (both.sum() * attn.shape[1])
    return l1 + bce + config.guided_attention_loss_scale * guided  # type: ignore[no-any-return]


def tannoy_voices(
    s: Setup, *, fused: bool = False, whole: bool = False, late: bool = False, ahead: bool = False, averaged: bool = False, **how: Any
) -> Step:  # fmt: skip
    """SpeechT5 learns to announce trains, fp16 with a scaler; the library's guided loss asks for lengths, an average is kept, five meters are read."""
    from transformers import SpeechT5Config, SpeechT5ForTextToSpeech
    from transformers.models.speecht5.modeling_speecht5 import SpeechT5SpectrogramLoss, shift_spectrograms_right

    way = How(**{"autocast": HALF if s.cuda else BF16, "scaler": True, "zero": True, **how})
    batch, letters, frames, width, signs = s.size(16, 2), s.size(120, 10), s.size(640, 24), s.size(512, 32), s.size(81, 20)
    config = SpeechT5Config(
        vocab_size=signs, hidden_size=width, encoder_layers=s.size(8, 1), encoder_attention_heads=s.size(8, 2), encoder_ffn_dim=4 * width,
        decoder_layers=s.size(6, 1), decoder_attention_heads=s.size(8, 2), decoder_ffn_dim=4 * width, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
        speech_decoder_prenet_units=s.size(256, 16), speech_decoder_postnet_units=s.size(256, 16), speaker_embedding_dim=s.size(512, 8),
        guided_attention_loss_num_heads=2,
    )  # fmt: skip
    with s.device:
        model: Any = SpeechT5ForTextToSpeech(config)
    if fused:
        for name, module in model.named_modules():
            if type(module).__name__ == "SpeechT5Attention" and "encoder_attn" not in name:
                module.forward = MethodType(_fused_speech, module)
    model = _placed(s, way, model).train()
    criterion = SpeechT5SpectrogramLoss(config).to(s.device)
    weights = list(model.parameters())
    mean = [weight.detach().clone() for weight in weights]
    optimizer = _optimizer(way, weights, weight_decay=0.01)
    scaler = torch.amp.GradScaler(s.device.type, enabled=way.scaler and s.cuda)
    pile = []
    for _ in range(4):
        long, loud = torch.randint(letters // 2, letters + 1, (batch, 1)), 2 * torch.randint(frames // 4, frames // 2 + 1, (batch, 1))
        there = (torch.arange(letters) < long).long()
        mels = torch.randn(batch, frames, config.num_mel_bins).masked_fill((torch.arange(frames) >= loud)[:, :, None], -100.0)
        pile.append((torch.randint(4, signs, (batch, letters)), there, mels, F.normalize(torch.randn(batch, config.speaker_embedding_dim), dim=-1)))
    loader = Prefetcher([tuple(s.pin(part) for part in group) for group in pile], s) if ahead else None
    turn, sums, meters = 0, torch.zeros(4, device=s.device), {"loss": 0.0, "norm": 0.0, "mel": 0.0, "stop": 0.0, "scale": 0.0}

    def step() -> dict[str, float]:
        nonlocal turn
        _precision(way)
        ids, there, mels, speaker = loader.next() if loader else tuple(part.to(s.device) for part in pile[turn % 4])
        turn += 1
        optimizer.zero_grad(set_to_none=not way.zero)
        with _casting(s, way):
            given, _ = shift_spectrograms_right(mels, config.reduction_factor)
            out = model.speecht5(
                input_values=ids, attention_mask=there, decoder_input_values=given, speaker_embeddings=speaker, use_cache=False, output_attentions=True,
                return_dict=True,
            )  # fmt: skip
            before, after, stop = model.speech_decoder_postnet(out.last_hidden_state)
            if whole:
                loss = _whole_loss(config, there, before, after, stop, mels, out.cross_attentions)
            else:
                loss = criterion(there, before, after, stop, mels, out.cross_attentions)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(weights, 1.0)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            if averaged:
                torch._foreach_lerp_(mean, weights, 1e-3)
            else:
                for kept, weight in zip(mean, weights, strict=True):
                    kept.mul_(0.999).add_(weight, alpha=0.001)
            shown = (loss.detach(), norm, after.detach().float().abs().mean(), stop.detach().float().sigmoid().mean())
            if whole or late:
                sums.add_(torch.stack(shown))
                if turn % 50 == 0:
                    meters.update(zip(meters, [value / 50 for value in sums.tolist()] + [math.log2(scaler.get_scale())], strict=True))
                    sums.zero_()
            else:
                meters.update(zip(meters, [value.item() for value in shown] + [math.log2(scaler.get_scale())], strict=True))
        return meters

    return step


PROGRAM = _public(
    "tannoy_voices",
    "SpeechT5 of transformers, training in fp16 autocast with a scaler on 16 announcements; guides by length, EMA by a loop.",
    tannoy_voices,
    {},
    {
        "amp-scaler-sync": {"optimizer": "fused"},
        "amp-scaler-sync/bf16": {"autocast": BF16, "scaler": False},
        "sync-stall": {"whole": True},
        "sync-stall/meters": {"late": True},
        "unfused-attention": {"fused": True},
        "optimizer-foreach": {"averaged": True},
        "grad-zeroing": {"zero": False},
        "memcpy": {"ahead": True},
    },
)
