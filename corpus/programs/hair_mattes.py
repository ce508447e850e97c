"""ViTMatte of transformers, FP32, a photo of 1024 x 1024 that the host makes floats and looks up positions for."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import COMPILED, How, _call, _casting, _placed, _precision, _public


def _positions(rel_pos: Tensor, size: int) -> Tensor:
    """VitDet's get_rel_pos for queries and keys of one size, with its index made on the device of the weights."""
    from torch.nn.functional import interpolate

    longest = 2 * size - 1
    if rel_pos.shape[0] != longest:
        rel_pos = interpolate(rel_pos.T[None], size=longest, mode="linear")[0].T
    at = torch.arange(size, device=rel_pos.device)
    return rel_pos[at[:, None] - at[None, :] + size - 1]


def _vitdet(self: Any, hidden_state: Tensor, output_attentions: bool = False, **_: Any) -> tuple[Tensor]:
    """VitDetAttention with its tables kept from the first call on (`kept`), its products in one kernel (`fused`), or either."""
    from transformers.models.vitdet.modeling_vitdet import get_rel_pos

    batch, height, width, _dim = hidden_state.shape
    qkv = self.qkv(hidden_state).reshape(batch, height * width, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.reshape(3, batch * self.num_heads, height * width, -1).unbind(0)
    if self.kept:
        if (height, width) not in self.tables:
            self.tables[height, width] = _positions(self.rel_pos_h, height), _positions(self.rel_pos_w, width)
        down, across = self.tables[height, width]
    else:
        down, across = get_rel_pos(height, height, self.rel_pos_h), get_rel_pos(width, width, self.rel_pos_w)
    where = q.reshape(-1, height, width, q.shape[-1])
    rows, columns = torch.einsum("bhwc,hkc->bhwk", where, down), torch.einsum("bhwc,wkc->bhwk", where, across)
    if self.fused:
        bias = (rows[..., :, None] + columns[..., None, :]).reshape(batch, self.num_heads, height * width, height * width)
        heads = (part.reshape(batch, self.num_heads, height * width, -1) for part in (q, k, v))
        out = F.scaled_dot_product_attention(*heads, attn_mask=bias)
    else:
        scores = (q * self.scale) @ k.transpose(-2, -1)
        scores = scores.reshape(-1, height, width, height, width) + rows[..., :, None] + columns[..., None, :]
        out = scores.reshape(-1, height * width, height * width).softmax(-1) @ v
    out = out.reshape(batch, self.num_heads, height, width, -1).permute(0, 2, 3, 1, 4).reshape(batch, height, width, -1)
    return (self.proj(out),)


def hair_mattes(s: Setup, *, bytes_sent: bool = False, kept: bool = False, fused: bool = False, **how: Any) -> Step:
    """ViTMatte cuts a person out of a photo: the host makes floats of the photo and its trimap, and bytes of what comes back."""
    from transformers import VitDetConfig, VitMatteConfig, VitMatteForImageMatting

    way, side, layers = How(**how), s.size(1024, 64), s.size(12, 3)
    last = {2, 5, 8, 11} if layers == 12 else {2}
    backbone = VitDetConfig(
        hidden_size=s.size(384, 32), num_hidden_layers=layers, num_attention_heads=s.size(6, 2), num_channels=4, image_size=s.size(512, 64),
        pretrain_image_size=224, patch_size=16, window_size=s.size(14, 3), window_block_indices=sorted({*range(layers)} - last),
        residual_block_indices=sorted(last), use_relative_position_embeddings=True, out_features=[f"stage{layers}"],
    )  # fmt: skip
    widths: dict[str, Any] = {"convstream_hidden_sizes": [48, 96, 192], "fusion_hidden_sizes": [256, 128, 64, 32]}
    config = VitMatteConfig(backbone_config=backbone, hidden_size=s.size(384, 32), **widths)
    model: Any = VitMatteForImageMatting(config)
    for module in model.modules():
        if hasattr(module, "rel_pos_h"):
            nn.init.normal_(module.rel_pos_h, std=0.02)
            nn.init.normal_(module.rel_pos_w, std=0.02)
            if kept or fused:
                module.kept, module.fused, module.tables = kept, fused, {}
                module.forward = MethodType(_vitdet, module)
    for module in model.decoder.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            module.reset_parameters()
    nn.init.normal_(model.decoder.matting_head.matting_convs[-1].weight, std=2.0)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    drawn = np.random.default_rng(0)
    photos = [drawn.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(4)]
    trimaps = [drawn.choice(np.array([0, 128, 255], dtype=np.uint8), (side, side)) for _ in range(4)]
    turn = 0

    def prepared(photo: Any, trimap: Any) -> Tensor:
        if bytes_sent:
            both = torch.cat([torch.from_numpy(part).to(s.device) for part in (photo, trimap[..., None])], -1)
            x = both.permute(2, 0, 1).float() / 255
            x[:3] = (x[:3] - 0.5) / 0.5
            return x[None].contiguous()
        colours = (photo.astype(np.float32) / 255 - 0.5) / 0.5
        edge = trimap.astype(np.float32) / 255
        x = np.concatenate([colours.transpose(2, 0, 1), edge[None]])
        return torch.from_numpy(x)[None].to(s.device)

    @torch.no_grad()
    def step() -> Any:
        nonlocal turn
        _precision(way)
        photo, trimap = photos[turn % 4], trimaps[turn % 4]
        turn += 1
        x = prepared(photo, trimap)
        if way.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            alpha = run(pixel_values=x).alphas[0, 0].float()
        if bytes_sent:
            alpha = torch.where(torch.from_numpy(trimap).to(s.device) == 255, 1.0, alpha)
            return (alpha * 255).to(torch.uint8).cpu().numpy()
        alpha = alpha.cpu().numpy()
        alpha[trimap == 255] = 1.0
        return (alpha * 255).astype(np.uint8)

    return step


PROGRAM = _public(
    "hair_mattes",
    "ViTMatte of transformers, FP32, a photo of 1024 x 1024 that the host makes floats and looks up positions for.",
    hair_mattes,
    {},
    {
        "host-bound": {"bytes_sent": True},
        "memcpy": {"kept": True},
        "unfused-attention": {"fused": True},
        "precision": {"tf32": True},
        "unfused-elementwise": {"compiled": COMPILED},
        "memory-layout": {"channels_last": True},
    },
)
