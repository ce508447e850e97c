"""Public models of riddles, captions of dishes, cut-outs of pets and tides, by an author who has not read the rules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step
from .public_models import BF16, How, _casting, _placed, _precision
from .public_models_2 import SDPA
from .public_models_4 import _public

def _cast(model: Any, dtype: torch.dtype | None) -> Any:
    """Buffers stay in FP32, as with from_pretrained: rotary frequencies need it."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype or parameter.dtype)
    return model


# Generation.


def _one_kernel(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def _punished_by_row(scores: Tensor, ids: Tensor, penalty: float) -> Tensor:
    """CTRL's penalty of words that were said, for each riddle by itself."""
    for row in range(len(scores)):
        said = torch.unique(ids[row])
        score = scores[row, said]
        scores[row, said] = torch.where(score < 0, score * penalty, score / penalty)
    return scores


def _punished(scores: Tensor, ids: Tensor, penalty: float) -> Tensor:
    score = scores.gather(1, ids)
    return scores.scatter(1, ids, torch.where(score < 0, score * penalty, score / penalty))


def _nucleus(scores: Tensor, mass: float) -> Tensor:
    ordered, order = scores.sort(descending=True)
    chances = ordered.softmax(-1)
    ordered = ordered.masked_fill(chances.cumsum(-1) - chances > mass, float("-inf"))
    return order.gather(1, torch.multinomial(ordered.softmax(-1), 1))


def diffllama_riddles(
    s: Setup, *, batch: int = 8, at_once: bool = False, checked: int = 1, fused_norms: bool = False, attention: str = "eager",
    dtype: torch.dtype | None = None,
) -> Step:  # fmt: skip
    """DiffLlama goes on with eight riddles: the top of the mass of words, a penalty for what was said, an end when all have ended."""
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, DynamicCache

    words, end, many = s.size(32_000, 101), 2, s.size(batch, batch // 4)
    config = DiffLlamaConfig(
        vocab_size=words, hidden_size=s.size(1024, 32), intermediate_size=s.size(2816, 64), num_hidden_layers=s.size(10, 2),
        num_attention_heads=s.size(16, 4), num_key_value_heads=s.size(8, 2), max_position_embeddings=2048, attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model = DiffLlamaForCausalLM(config)
    model = _cast(model, dtype).eval()
    if fused_norms:
        for module in model.modules():
            if type(module).__name__ == "DiffLlamaRMSNorm":
                module.forward = MethodType(_one_kernel, module)
    prompt = torch.randint(3, words, (many, s.size(96, 6)), device=s.device)
    punished = _punished if at_once else _punished_by_row

    @torch.no_grad()
    def step() -> list[list[int]]:
        torch.set_float32_matmul_precision("highest")
        ids, read, cache = prompt, prompt, DynamicCache(config=config)
        ended = torch.zeros(many, dtype=torch.bool, device=s.device)
        for turn in range(1, s.size(12, 4) + 1):
            out = model(input_ids=read, past_key_values=cache, use_cache=True, logits_to_keep=1)
            scores = punished(out.logits[:, -1].float(), ids, 1.2) / 0.8
            read = _nucleus(scores, 0.9).masked_fill(ended[:, None], end)
            ids, ended = torch.cat([ids, read], 1), ended | (read[:, 0] == end)
            if turn % checked == 0 and bool(ended.all()):
                break
        rows = ids[:, prompt.shape[1] :].tolist()
        return [row[: row.index(end)] if end in row else row for row in rows]

    return step


# Captions.


class _LowRank(nn.Module):
    """What tutorials put in the place of a linear layer."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * self.scale  # type: ignore[no-any-return]


def _adapted(model: nn.Module, names: tuple[str, ...], make: Any) -> list[Any]:
    layers = []
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(module, name, make(child).to(child.weight.device))
                layers.append(getattr(module, name))
    return layers


def _seen(self: Any, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
    """BlipAttention with PyTorch's own attention."""
    batch, length, width = hidden_states.shape
    q, k, v = self.qkv(hidden_states).view(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
    return self.projection(out.transpose(1, 2).reshape(batch, length, width)), None


def blip_dishes(
    s: Setup, *, pinned: bool = False, frozen: bool = False, sdpa: bool = False, micro_steps: int = 4, one_context: bool = False,
    fused: bool = False,
) -> Step:  # fmt: skip
    """BLIP learns a restaurant's captions by adapters: four micro-steps in FP16 with a scaler; only the adapters are given to AdamW."""
    from transformers import BlipConfig, BlipForConditionalGeneration

    words, length, side, many = s.size(30_524, 101), s.size(24, 6), s.size(384, 32), s.size(32, 8)
    width, inner, heads = s.size(768, 32), s.size(3072, 64), s.size(12, 2)
    shape = {"hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads}
    text: dict[str, Any] = {"vocab_size": words, "encoder_hidden_size": width, "num_hidden_layers": s.size(12, 1), "label_smoothing": 0.1}
    text |= {"use_cache": False, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, "pad_token_id": 0}
    config = BlipConfig(
        text_config={**shape, **text, "max_position_embeddings": 512}, projection_dim=width,
        vision_config={**shape, "num_hidden_layers": s.size(12, 1), "image_size": side, "patch_size": 16, "initializer_range": 0.02},
    )  # fmt: skip
    with s.device:
        model = BlipForConditionalGeneration(config).train()
    model.vision_model.requires_grad_(False)
    if frozen:
        model.text_decoder.requires_grad_(False)
    layers = _adapted(model.text_decoder, ("query", "value"), lambda layer: _LowRank(layer, 16, 32.0))
    if sdpa:
        for module in model.vision_model.modules():
            if type(module).__name__ == "BlipAttention":
                module.forward = MethodType(_seen, module)
    adapters = [parameter for layer in layers for part in (layer.down, layer.up) for parameter in part.parameters()]
    optimizer = torch.optim.AdamW(adapters, lr=1e-4, weight_decay=0.01, **({"fused": True} if fused else {}))
    scaler = torch.amp.GradScaler(s.device.type, enabled=s.cuda)
    pictures = torch.randn(many, 3, side, side).chunk(micro_steps)
    captions = torch.randint(3, words, (many, length)).chunk(micro_steps)
    if pinned:
        pictures, captions = (tuple(s.pin(part) for part in parts) for parts in (pictures, captions))
    log = [0.0]

    def casting() -> Any:
        return torch.autocast(s.device.type, torch.float16)

    def step() -> None:
        torch.set_float32_matmul_precision("high")
        model.zero_grad()
        losses = []
        with casting() if one_context else nullcontext():
            for picture, caption in zip(pictures, captions, strict=True):
                x, ids = picture.to(s.device, non_blocking=pinned), caption.to(s.device, non_blocking=pinned)
                with nullcontext() if one_context else casting():
                    loss = model(pixel_values=x, input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss / micro_steps
                scaler.scale(loss).backward()
                losses.append(loss.detach())
        scaler.step(optimizer)
        scaler.update()
        log[0] = torch.stack(losses).sum().item()

    return step


# Matting.


def _windowed(self: Any, hidden_state: Tensor, *_: Any, **__: Any) -> tuple[Tensor]:
    """VitDetAttention, with tables that stay on the GPU (`kept`) and with PyTorch's own attention (`sdpa`)."""
    from transformers.models.vitdet.modeling_vitdet import get_rel_pos

    batch, height, width, _width = hidden_state.shape
    qkv = self.qkv(hidden_state).reshape(batch, height * width, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
    if self.kept is None or (height, width) not in self.kept:
        tables = get_rel_pos(height, height, self.rel_pos_h), get_rel_pos(width, width, self.rel_pos_w)
        if self.kept is not None:
            self.kept[height, width] = tables
    else:
        tables = self.kept[height, width]
    q, k, v = qkv.reshape(3, batch * self.num_heads, height * width, -1).unbind(0)
    placed = q.reshape(len(q), height, width, -1)
    down = torch.einsum("bhwc,hkc->bhwk", placed, tables[0]).contiguous()[..., :, None]
    across = torch.einsum("bhwc,wkc->bhwk", placed, tables[1]).contiguous()[..., None, :]
    if self.sdpa:
        bias = (down + across).view(batch, self.num_heads, height * width, height * width)
        out = F.scaled_dot_product_attention(*qkv.unbind(0), attn_mask=bias, scale=self.scale)
    else:
        scores = ((q * self.scale) @ k.transpose(-2, -1)).view(-1, height, width, height, width)
        out = (scores + down + across).view(len(q), height * width, -1).softmax(-1) @ v
    out = out.reshape(batch, self.num_heads, height, width, -1).permute(0, 2, 3, 1, 4)
    return (self.proj(out.reshape(batch, height, width, -1)),)


def vitmatte_pets(
    s: Setup, *, bytes_sent: bool = False, blended: bool = False, sdpa: bool = False, kept: bool = False, **how: Any
) -> Step:
    """ViTMatte cuts a pet out of a photo and puts it before a studio's backdrop; NumPy prepares and blends."""
    from transformers import VitDetConfig, VitMatteConfig, VitMatteForImageMatting

    way, high, wide, layers = How(**how), s.size(768, 64), s.size(1024, 96), s.size(12, 3)
    backbone = VitDetConfig(
        hidden_size=s.size(768, 32), num_hidden_layers=layers, num_attention_heads=s.size(12, 2), num_channels=4,
        image_size=s.size(512, 64), pretrain_image_size=s.size(224, 64), patch_size=16, window_size=s.size(14, 2),
        use_relative_position_embeddings=True,
        window_block_indices=[n for n in range(layers) if n % 3 != 2], residual_block_indices=[n for n in range(layers) if n % 3 == 2],
        out_features=[f"stage{layers}"],
    )  # fmt: skip
    config = VitMatteConfig(
        backbone_config=backbone, hidden_size=s.size(768, 32), convstream_hidden_sizes=[s.size(of, of // 12) for of in (48, 96, 192)],
        fusion_hidden_sizes=[s.size(of, of // 8) for of in (256, 128, 64, 32)],
    )  # fmt: skip
    with s.device:
        model: Any = VitMatteForImageMatting(config)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
        if type(module).__name__ == "VitDetAttention":
            nn.init.normal_(module.rel_pos_h, std=0.02)
            nn.init.normal_(module.rel_pos_w, std=0.02)
            if sdpa or kept:
                module.sdpa, module.kept = sdpa, {} if kept else None
                module.forward = MethodType(_windowed, module)
    model = _placed(s, way, model).eval()
    drawn = np.random.default_rng(0)
    photos = [drawn.integers(0, 256, (high, wide, 3), dtype=np.uint8) for _ in range(3)]
    trimaps = [drawn.choice(np.array([0, 128, 255], np.uint8), (high, wide)) for _ in range(3)]
    backdrop = drawn.random((high, wide, 3), dtype=np.float32) * 255
    backdrop_there, turn = torch.from_numpy(backdrop).to(s.device), 0

    def prepared(photo: Any, trimap: Any) -> Tensor:
        if bytes_sent:
            pixels, marks = (torch.from_numpy(part).to(s.device) for part in (photo, trimap))
            x = torch.cat([(pixels.permute(2, 0, 1).float() / 255 - 0.5) / 0.5, marks[None].float() / 255])[None]
        else:
            pixels = (photo.astype(np.float32) / 255 - 0.5) / 0.5
            both = np.concatenate([pixels, trimap.astype(np.float32)[:, :, None] / 255], -1)
            x = torch.from_numpy(np.ascontiguousarray(both.transpose(2, 0, 1)))[None].to(s.device)
        return x.contiguous(memory_format=torch.channels_last) if way.channels_last else x

    @torch.no_grad()
    def step() -> Any:
        nonlocal turn
        _precision(way)
        photo, trimap = photos[turn % len(photos)], trimaps[turn % len(trimaps)]
        turn += 1
        alpha = model(pixel_values=prepared(photo, trimap)).alphas[0, 0, :, :, None]
        if blended:
            pixels = torch.from_numpy(photo).to(s.device).float()
            return (pixels * alpha + backdrop_there * (1 - alpha)).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
        alpha = alpha.cpu().numpy()
        return np.clip(np.round(photo.astype(np.float32) * alpha + backdrop * (1 - alpha)), 0, 255).astype(np.uint8)

    return step


# Series.


class _Decomposed(nn.Module):
    """DoRA as in peft: the length of each row of the adapted weight is taken anew in each call."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.02)
        self.magnitude = nn.Parameter(base.weight.detach().norm(dim=1) * 1.1)

    def lengths(self) -> Tensor:
        weight = self.base.weight
        own = self.up(self.down(torch.eye(weight.shape[1], device=weight.device, dtype=weight.dtype))).T
        return torch.linalg.vector_norm(weight + self.scale * own, dim=1).to(weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        out, bias = self.base(x), self.base.bias
        ratio = self.magnitude / self.lengths()
        return out + (ratio - 1) * (out - bias) + ratio * self.up(self.down(x)) * self.scale  # type: ignore[no-any-return]

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        weight = self.base.weight + self.scale * self.up.weight @ self.down.weight
        self.base.weight.copy_(weight * (self.magnitude / weight.norm(dim=1))[:, None])
        return self.base


class _Forecaster(nn.Module):
    """A language model's layers between patches of a series and its future, as in Time-LLM."""

    def __init__(self, model: nn.Module, width: int, patch: int, patches: int, ahead: int) -> None:
        super().__init__()
        self.model, self.patch = model, patch
        self.enter, self.leave = nn.Linear(patch, width), nn.Linear(width * patches, ahead)

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(1, keepdim=True), (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        patches = ((x - mean) / std).unfold(1, self.patch, self.patch)
        out = self.model(inputs_embeds=self.enter(patches), use_cache=False).last_hidden_state
        return self.leave(out.flatten(1)).float() * std + mean  # type: ignore[no-any-return]


def phi_tides(
    s: Setup, *, merged: bool = False, halves: bool = False, kept: bool = False, fused: bool = False, attention: str = "eager", **how: Any
) -> Step:
    """Phi with hand-written DoRA is tested on what tide gauges showed: errors of each gauge are read for each batch."""
    from transformers import PhiConfig, PhiModel

    way, gauges, batch = How(**{"autocast": BF16, **how}), s.size(7, 3), s.size(16, 2)
    past, ahead, patch, width = s.size(512, 32), s.size(96, 4), s.size(16, 8), s.size(2048, 32)
    config = PhiConfig(
        vocab_size=16, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=s.size(6, 2), num_attention_heads=s.size(32, 4),
        partial_rotary_factor=0.5, max_position_embeddings=2048, pad_token_id=None, bos_token_id=1, eos_token_id=2,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        inner = PhiModel(config)
        layers = _adapted(inner, ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"), lambda layer: _Decomposed(layer, 16, 32.0))
        model: Any = _Forecaster(inner, width, patch, past // patch, ahead)
    if merged:
        found = {id(layer): layer for layer in layers}
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if id(child) in found:
                    setattr(module, name, child.merged())
    model = _cast(model, BF16 if halves else None).eval()
    run = s.compile(model) if fused else model
    hours = np.arange(s.size(20_000, 200), dtype=np.float32)
    drawn = np.random.default_rng(0)
    waves = sum(
        drawn.uniform(0.1, 2.0, (1, gauges)) * np.sin(2 * math.pi * hours[:, None] / period + drawn.uniform(0, 6, (1, gauges)))
        for period in (12.42, 12.0, 23.93, 25.82)
    )
    levels = (waves + drawn.normal(0, 0.1, (len(hours), gauges))).astype(np.float32)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        at = 0
        while True:
            starts = (at + 24 * np.arange(batch)) % (len(levels) - past - ahead)
            windows = np.stack([levels[start : start + past + ahead].T for start in starts]).reshape(batch * gauges, -1)
            there = torch.from_numpy(windows).to(s.device)
            yield there[:, :past], there[:, past:]
            at += 24 * batch

    windows, seen = batches(), 0
    absolute, squared = ([0.0] * gauges for _ in range(2))
    sums = torch.zeros(2, gauges, device=s.device)

    @torch.no_grad()
    def step() -> Any:
        nonlocal seen
        _precision(way)
        x, y = next(windows)
        with _casting(s, way):
            error = (run(x) - y).view(batch, gauges, ahead)
        seen += 1
        if kept:
            sums.add_(torch.stack([error.abs().mean((0, 2)), error.square().mean((0, 2))]))
            return sums
        for gauge in range(gauges):
            absolute[gauge] += error[:, gauge].abs().mean().item()
            squared[gauge] += error[:, gauge].square().mean().item()
        return absolute, squared

    return step


WORKLOADS = (
    _public(
        "diffllama_riddles", "DiffLlama of transformers samples 12 words for 8 riddles in FP32; said words are punished row by row.",
        diffllama_riddles, {},
        {"sync-stall": {"at_once": True}, "sync-stall/end": {"checked": 6}, "unfused-norm": {"fused_norms": True},
         "unfused-attention": {"attention": SDPA}, "precision/half": {"dtype": BF16}, "launch-gap/batch": {"batch": 32}},
        shared={"launch-gap/batch": 4.0},
    ),
    _public(
        "blip_dishes", "BLIP of transformers learns captions in FP16 by low-rank adapters: 4 micro-steps of 8 pictures, a scaler.",
        blip_dishes, {},
        {"memcpy": {"pinned": True}, "other/frozen": {"frozen": True}, "unfused-attention": {"sdpa": True},
         "launch-gap/batch": {"micro_steps": 1}, "dtype-casts": {"one_context": True}, "amp-scaler-sync": {"fused": True}},
    ),
    _public(
        "vitmatte_pets", "ViTMatte of transformers cuts a pet out of a photo of 1024 x 768 in FP32; NumPy normalises and blends.",
        vitmatte_pets, {},
        {"host-bound": {"bytes_sent": True}, "host-bound/blend": {"blended": True}, "unfused-attention": {"sdpa": True},
         "memcpy": {"kept": True}, "precision/tf32": {"tf32": True}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "phi_tides", "Phi of transformers on patches of tides, tested under BF16 autocast on 16 x 7 series; DoRA's norms are made anew.",
        phi_tides, {},
        {"weight-norm": {"merged": True}, "dtype-casts": {"halves": True}, "unfused-elementwise": {"fused": True},
         "sync-stall": {"kept": True}, "unfused-attention": {"attention": SDPA}, "precision/tf32": {"tf32": True}},
    ),
)  # fmt: skip
