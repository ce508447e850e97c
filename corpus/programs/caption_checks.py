"""BLIP of transformers, FP32, weighs 12 captions for each of 4 photos, photo by photo; attention written out."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, COMPILED, How, _call, _casting, _placed, _precision, _public


def _blip_attention(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    batch, length, width = hidden_states.shape
    q, k, v = self.qkv(hidden_states).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
    return self.projection(out.transpose(1, 2).reshape(batch, length, width)), None


def caption_checks(s: Setup, *, at_once: bool = False, kept: bool = False, fused: bool = False, **how: Any) -> Step:
    """BLIP says which of twelve captions fits a photo best, for one photo of a shop after the other."""
    from transformers import BlipConfig, BlipForImageTextRetrieval

    way, photos, many, length = How(**how), s.size(4, 2), s.size(12, 3), s.size(24, 5)
    words, width, heads, side = s.size(30_524, 101), s.size(768, 32), s.size(12, 2), s.size(384, 32)
    both = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": s.size(8, 2), "num_attention_heads": heads}
    config = BlipConfig(
        text_config={**both, "vocab_size": words, "encoder_hidden_size": width, "bos_token_id": 1, "pad_token_id": 0, "eos_token_id": 2,
                     "sep_token_id": 2},
        vision_config={**both, "image_size": side, "patch_size": 16}, image_text_hidden_size=s.size(256, 16),
    )  # fmt: skip
    with s.device:
        model: Any = BlipForImageTextRetrieval(config)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "BlipAttention":
                module.forward = MethodType(_blip_attention, module)
    model = _placed(s, way, model).eval()
    look, read = _call(s, way, model.vision_model), _call(s, way, model.text_encoder)
    uploads = [torch.randint(256, (photos, side, side, 3), dtype=torch.uint8) for _ in range(3)]
    drawn = np.random.default_rng(0)
    texts = torch.from_numpy(drawn.integers(3, words, (photos, many, length)))
    texts[..., 0] = 1
    counts = torch.from_numpy(drawn.integers(length // 3, length + 1, (photos, many, 1)))
    masks = (torch.arange(length) < counts).long()
    mean, std = (torch.tensor(colours, device=s.device) for colours in ((0.481, 0.458, 0.408), (0.269, 0.261, 0.276)))
    turn = 0

    def chances(photo: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        seen = look(pixel_values=photo).last_hidden_state.repeat_interleave(many, 0)
        everywhere = torch.ones(seen.shape[:2], dtype=torch.long, device=s.device)
        out = read(input_ids=ids, attention_mask=mask, encoder_hidden_states=seen, encoder_attention_mask=everywhere)
        return model.itm_head(out.last_hidden_state[:, 0]).float().softmax(-1)[:, 1]  # type: ignore[no-any-return]

    @torch.no_grad()
    def step() -> list[tuple[int, float]]:
        nonlocal turn
        _precision(way)
        pixels = (uploads[turn % 3].to(s.device).float() / 255 - mean) / std
        pixels = pixels.permute(0, 3, 1, 2).contiguous().to(way.dtype or torch.float32)
        ids, mask = texts.to(s.device), masks.to(s.device)
        turn += 1
        with _casting(s, way):
            if at_once:
                rows = chances(pixels, ids.flatten(0, 1), mask.flatten(0, 1)).view(photos, many).tolist()
            elif kept:
                rows = torch.stack([chances(pixels[at, None], ids[at], mask[at]) for at in range(photos)]).tolist()
            else:
                rows = [chances(pixels[at, None], ids[at], mask[at]).tolist() for at in range(photos)]
        return [max(enumerate(row), key=lambda pair: pair[1]) for row in rows]

    return step


PROGRAM = _public(
    "caption_checks",
    "BLIP of transformers, FP32, weighs 12 captions for each of 4 photos, photo by photo; attention written out.",
    caption_checks,
    {},
    {
        "sync-stall": {"kept": True},
        "launch-gap": {"at_once": True},
        "unfused-attention": {"fused": True},
        "precision/tf32": {"tf32": True},
        "precision": {"dtype": BF16},
        "unfused-elementwise": {"compiled": COMPILED},
    },
)
