"""Public models that grade retinas, sort a helpline's questions and learn from letters of allotment holders, by an author of research code."""

from __future__ import annotations

import copy
from functools import cache
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import SDPA
from .public_models_4 import _public

# Vision.


def _fused_token(self: Any, x: Tensor) -> Tensor:
    """CrossAttention of timm with its products in one kernel: only the first token asks."""
    b, n, width = x.shape
    q = self.wq(x[:, :1]).view(b, 1, self.num_heads, -1).transpose(1, 2)
    k, v = (part(x).view(b, n, self.num_heads, -1).transpose(1, 2) for part in (self.wk, self.wv))
    out = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
    return self.proj_drop(self.proj(out.transpose(1, 2).reshape(b, 1, width)))  # type: ignore[no-any-return]


def ordinal_loss(logits: Tensor, levels: Tensor) -> Tensor:
    """CORAL: each output says whether the grade is above one more threshold."""
    above = F.logsigmoid(logits)
    return -(above * levels + (above - logits) * (1.0 - levels)).sum(1).mean()


@torch.no_grad()
def update_mean(mean: nn.Module, model: nn.Module, decay: float, together: bool) -> None:
    kept, now = list(mean.parameters()), list(model.parameters())
    if together:
        torch._foreach_lerp_(kept, now, 1.0 - decay)
        return
    for old, new in zip(kept, now, strict=True):
        old.mul_(decay).add_(new, alpha=1.0 - decay)


def retina_grades(s: Setup, *, fused: bool = False, ahead: bool = False, kept: bool = False, together: bool = False, **how: Any) -> Step:
    """CrossViT learns five ordered grades of a disease; normalised floats come from the host, patches are erased one by one, a mean model follows."""
    import timm

    way = How(**how)
    images, side, grades = s.size(64, 2), 240, 5
    name = "crossvit_tiny_240" if s.tiny else "crossvit_small_240"
    model: Any = timm.create_model(name, pretrained=False, num_classes=grades - 1)
    for module in model.modules():
        if fused and type(module).__name__ == "CrossAttention":
            module.forward = MethodType(_fused_token, module)
    model = _placed(s, way, model).train()
    mean = copy.deepcopy(model).eval().requires_grad_(False)
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=0.05)
    drawn, thresholds = np.random.default_rng(0), torch.arange(grades - 1)
    pile = []
    for _ in range(4):
        grade = torch.randint(grades, (images,))
        pile.append((torch.randn(images, 3, side, side), grade, (grade[:, None] > thresholds).float()))
    loader = Prefetcher([tuple(s.pin(part) for part in batch) for batch in pile], s) if ahead else None
    sums, turn = torch.zeros(2, device=s.device), 0
    log = {"loss": 0.0, "right": 0.0}

    def step() -> dict[str, float]:
        nonlocal turn
        _precision(way)
        x, grade, levels = loader.next() if loader else (part.to(s.device) for part in pile[turn % len(pile)])
        turn += 1
        if way.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        corners = drawn.integers(0, side - 48, (images, 2)).tolist()
        for image, (top, left) in zip(x, corners, strict=True):
            image[:, top : top + 48, left : left + 48] = 0.0
        optimizer.zero_grad()
        with _casting(s, way):
            logits = run(x)
        logits = logits.float()
        loss = ordinal_loss(logits, levels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        update_mean(mean, model, 0.999, together)
        right = ((logits.detach() > 0).sum(1) == grade).float().mean()
        if kept:
            sums.add_(torch.stack([loss.detach(), right]))
            if turn % 50 == 0:
                log["loss"], log["right"] = (sums / 50).tolist()
                sums.zero_()
        else:
            log["loss"] = loss.item()
            log["right"] = right.item()
        return log

    return step


# Language, served.


@cache
def _stock() -> tuple[Any, Any, Any]:
    """What I-BERT's module has before anything is put in its place."""
    from transformers.models.ibert import quant_modules

    return quant_modules.batch_frexp, quant_modules.symmetric_linear_quantization_params, quant_modules.SymmetricQuantFunction.forward


def _frexp(inputs: Tensor, max_bit: int = 31) -> tuple[Tensor, Tensor]:
    """batch_frexp by tensor ops, half rounded away from zero; the mantissas are whole numbers of up to 31 bits, which a double holds."""
    mantissa, exponent = torch.frexp(inputs)
    scaled = mantissa * 2.0**max_bit
    return scaled.sign() * (scaled.abs() + 0.5).floor(), max_bit - exponent.double()


@torch.no_grad()
def _range(bits: int, low: Tensor, high: Tensor, per_channel: bool = False) -> Tensor:
    """symmetric_linear_quantization_params without a question to the GPU: Python's max() of two tensors asks which is larger."""
    return torch.maximum(low.abs(), high.abs()).clamp(min=1e-8) / (2 ** (bits - 1) - 1)


def _quantised(ctx: Any, x: Tensor, k: int, percentile_mode: bool, scale: Tensor) -> Tensor:
    """SymmetricQuantFunction.forward, its zero point made where it is used."""
    from transformers.models.ibert.quant_modules import linear_quantize

    n = 2 ** (k - 1) - 1
    ctx.scale = scale
    return torch.clamp(linear_quantize(x, scale, torch.zeros((), device=scale.device), inplace=False), -n, n - 1)  # type: ignore[no-any-return]


def helpline_intents(
    s: Setup, *, batch: int = 1, on_gpu: bool = False, unasked: bool = False, there: bool = False, graphed: bool = False,
    gelus: bool = False, **how: Any,
) -> Step:  # fmt: skip
    """I-BERT in its integer mode says what a caller wants, a question of one bucket of lengths a call; its scales are taken apart by NumPy and Decimal."""
    from transformers import IBertConfig, IBertForSequenceClassification
    from transformers.models.ibert import quant_modules

    way, words, length, intents, width = How(**how), s.size(50_265, 101), s.size(64, 8), s.size(77, 5), s.size(256, 32)
    config = IBertConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=s.size(2, 1), num_attention_heads=s.size(4, 2), intermediate_size=4 * width,
        max_position_embeddings=514, type_vocab_size=1, num_labels=intents, quant_mode=True,
    )  # fmt: skip
    frexp, ranged, quantised = _stock()
    model: Any = IBertForSequenceClassification(config)
    for module in model.modules():
        if isinstance(module, quant_modules.IntLayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
    model = _placed(s, way, model)
    queue = [torch.randint(3, words, (batch, length)) for _ in range(8)]
    ids, answer, turn = queue[0].to(s.device), torch.zeros(batch, dtype=torch.long, device=s.device), 0

    def settle() -> None:
        _precision(way)
        quant_modules.batch_frexp = _frexp if on_gpu or graphed else frexp
        quant_modules.symmetric_linear_quantization_params = _range if unasked or graphed else ranged
        quant_modules.SymmetricQuantFunction.forward = staticmethod(_quantised if there or graphed else quantised)

    def classify() -> Tensor:
        hidden, scale = model.ibert.embeddings(input_ids=ids)
        seen = model.ibert.encoder(hidden, scale, attention_mask=None, return_dict=True).last_hidden_state
        return model.classifier(seen).float().softmax(-1).max(-1).indices  # type: ignore[no-any-return]

    settle()
    with torch.no_grad():
        model.train()
        for _ in range(2):  # so that the ranges of the activations are known
            classify()
        model.eval()
        for module in model.modules():
            if gelus and isinstance(module, quant_modules.IntGELU):
                module.forward = s.compile(module.forward)
        serve = capture(lambda: answer.copy_(classify()), s) if graphed else None

    @torch.no_grad()
    def step() -> list[int]:
        nonlocal turn
        settle()
        ids.copy_(queue[turn % len(queue)])
        turn += 1
        if serve:
            serve()
            return answer.tolist()
        return classify().tolist()

    return step


# Language, tuned.


def answer_loss(logits: Tensor, targets: Tensor, weight: Tensor, smoothing: float = 0.1, z_weight: float = 1e-4) -> Tensor:
    """Cross-entropy with label smoothing and the z-loss of PaLM, over the words of answers."""
    top = logits.max(-1, keepdim=True).values.detach()
    log_z = (logits - top).exp().sum(-1).log() + top.squeeze(-1)
    hit = log_z - logits.gather(-1, targets[..., None]).squeeze(-1)
    smooth = log_z - logits.mean(-1)
    each = (1.0 - smoothing) * hit + smoothing * smooth + z_weight * log_z.square()
    return (each * weight).sum() / weight.sum()


def allotment_letters(
    s: Setup, *, attention: str = "eager", rows: int = 50_003, ahead: bool = False, kept: bool = False, fused_loss: bool = False, **how: Any
) -> Step:  # fmt: skip
    """Persimmon learns to answer letters, in FP32: only words of answers count, AdamW goes parameter by parameter, two numbers are read."""
    from transformers import PersimmonConfig, PersimmonForCausalLM

    way = How(**{"optimizer": "loop", **how})
    letters, length, words, width = s.size(4, 2), s.size(512, 16), s.size(50_003, 101), s.size(1024, 32)
    config = PersimmonConfig(
        vocab_size=s.size(rows, 101 if rows == 50_003 else 128), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=s.size(8, 2),
        num_attention_heads=s.size(16, 2), max_position_embeddings=2048, attn_implementation=attention, use_cache=False,
    )  # fmt: skip
    with s.device:
        model: Any = PersimmonForCausalLM(config)
    model = _placed(s, way, model).train()
    run, criterion = _call(s, way, model), s.compile(answer_loss) if fused_loss else answer_loss
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = _optimizer(way, [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], betas=(0.9, 0.95))
    pile = []
    for _ in range(8):
        begin = torch.randint(length // 4, length // 2, (letters, 1))
        pile.append((torch.randint(3, words, (letters, length)), (torch.arange(length) >= begin).float()))
    loader = Prefetcher([tuple(s.pin(part) for part in batch) for batch in pile], s) if ahead else None
    sums, turn, history = torch.zeros(2, device=s.device), 0, []  # type: tuple[Tensor, int, list[list[float]]]

    def step() -> list[float]:
        nonlocal turn
        _precision(way)
        ids, answer = loader.next() if loader else (part.to(s.device) for part in pile[turn % len(pile)])
        turn += 1
        optimizer.zero_grad(set_to_none=True)
        with _casting(s, way):
            logits = run(input_ids=ids).logits
        loss = criterion(logits[:, :-1, :words].float(), ids[:, 1:], answer[:, 1:])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if kept:
            sums.add_(torch.stack([loss.detach(), norm]))
            if turn % 50 == 0:
                history.append((sums / 50).tolist())
                sums.zero_()
        else:
            history.append([loss.item(), norm.item()])
        return history[-1] if history else []

    return step


WORKLOADS = (
    _public(
        "retina_grades", "CrossViT of timm, training in FP32 on 64 pageable pictures that are erased one by one, NCHW; a mean model in a loop, two reads.",
        retina_grades, {},
        {"precision": {"autocast": BF16}, "memcpy": {"ahead": True}, "unfused-elementwise": {"compiled": COMPILED},
         "optimizer-foreach": {"optimizer": "fused"}, "optimizer-foreach/mean": {"together": True}, "unfused-attention": {"fused": True},
         "memory-layout": {"channels_last": True}, "sync-stall": {"kept": True}},
    ),
    _public(
        "helpline_intents", "A small I-BERT of transformers in integer mode, a question a call: NumPy and Decimal take scales apart, max() asks.",
        helpline_intents, {},
        {"host-bound": {"on_gpu": True}, "graph-candidate": {"graphed": True}, "low-arithmetic-intensity": {"batch": 16},
         "sync-stall": {"unasked": True}, "memcpy": {"there": True}, "unfused-elementwise": {"gelus": True}, "precision": {"tf32": True}},
        shared={"low-arithmetic-intensity": 16.0},
    ),
    _public(
        "allotment_letters", "Persimmon of transformers, training in FP32 on 4 x 512 of 50,003 words, attention and loss written out; AdamW by a loop, reads.",
        allotment_letters, {},
        {"precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}, "unfused-attention": {"attention": SDPA},
         "unfused-elementwise": {"fused_loss": True}, "optimizer-foreach": {"optimizer": "fused"}, "gemm-alignment": {"rows": 50_048},
         "sync-stall": {"kept": True}, "memcpy": {"ahead": True}},
    ),
)  # fmt: skip
