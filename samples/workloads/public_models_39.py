"""Public models of names in obituaries and breeds of pigeons, by an author who follows tutorials."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision, _timm
from .public_models_2 import SDPA
from .public_models_4 import _public

# Obituaries.


def obituary_names(s: Setup, *, late: bool = False, graphed: bool = False, layers: bool = False, **how: Any) -> Step:
    """ELECTRA learns to tag names, places and days in obituaries; two micro-batches make a step, loss and accuracy are logged."""
    from transformers import ElectraConfig, ElectraForTokenClassification

    way, micro, late = How(**{"zero": True, **how}), 2, late or graphed
    batch, length, words, labels = s.size(32, 2), s.size(192, 10), s.size(30522, 101), s.size(9, 3)
    width = s.size(768, 32)
    config = ElectraConfig(
        vocab_size=words, embedding_size=width, hidden_size=width, num_hidden_layers=s.size(12, 2), num_attention_heads=s.size(12, 2),
        intermediate_size=4 * width, num_labels=labels, attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model: Any = ElectraForTokenClassification(config)
    model = _placed(s, way, model).train()
    if layers:
        for layer in model.electra.encoder.layer:
            layer.forward = s.compile(layer.forward, dynamic=False)
    weights = list(model.parameters())
    optimizer = _optimizer(way, weights, weight_decay=0.01, capturable=graphed and s.cuda)
    batches = []
    for _ in range(8):
        long = torch.randint(length // 4, length + 1, (batch, 1))
        there = (torch.arange(length) < long).long()
        truth = torch.randint(labels, (batch, length)).masked_fill((there == 0) | (torch.rand(batch, length) < 0.2), -100)
        batches.append((torch.randint(4, words, (batch, length)) * there, there, truth))
    loader = Prefetcher([tuple(s.pin(part) for part in group) for group in batches], s) if way.pinned else None
    turn, logs, sums = 0, {"loss": 0.0, "accuracy": 0.0, "norm": 0.0}, torch.zeros(4, device=s.device)
    held = [tuple(part.to(s.device) for part in group) for group in batches[:micro]]
    hidden = [torch.zeros(batch, 1, length, length, device=s.device) for _ in held]

    def learn(parts: list[tuple[Tensor, ...]], masks: list[Tensor]) -> None:
        optimizer.zero_grad(set_to_none=not way.zero)
        loss_sum, right, count = 0.0, 0.0, 0.0
        for (ids, _there, truth), mask in zip(parts, masks, strict=True):
            with _casting(s, way):
                out = model(input_ids=ids, attention_mask=mask, labels=truth)
                loss = out.loss / micro
            loss.backward()
            guess, known = out.logits.detach().argmax(-1), truth != -100
            if late:
                sums[:3].add_(torch.stack([loss.detach().float(), ((guess == truth) & known).sum().float(), known.sum().float()]))
            else:
                loss_sum += loss.item()
                right += (guess[known] == truth[known]).sum().item()
                count += known.sum().item()
        norm = nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        if late:
            sums[3].add_(norm)
        else:
            logs.update(loss=loss_sum, accuracy=right / count, norm=norm.item())

    _precision(way)
    replay = capture(lambda: learn(held, hidden), s) if graphed else None
    sums.zero_()

    def step() -> dict[str, float]:
        nonlocal turn
        _precision(way)
        parts = [loader.next() if loader else tuple(part.to(s.device) for part in batches[(micro * turn + at) % 8]) for at in range(micro)]
        turn += 1
        if replay:
            for group, new, mask in zip(held, parts, hidden, strict=True):
                for kept, part in zip(group, new, strict=True):
                    kept.copy_(part)
                mask.copy_(((1.0 - new[1].float()) * torch.finfo(torch.float32).min)[:, None, None].expand_as(mask))
            replay()
        else:
            learn(parts, [there for _ids, there, _truth in parts])
        if late and turn % 50 == 0:
            loss, right, count, norm = sums.tolist()
            logs.update(loss=loss / 50, accuracy=right / count, norm=norm / 50)
            sums.zero_()
        return logs

    return step


# Pigeons.

MEAN, STD, GREY = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), (0.299, 0.587, 0.114)


def _thetas(drawn: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Turns, zooms, flips and shifts as matrices of F.affine_grid."""
    turn, zoom, flip = (drawn[:, 0] - 0.5) * 0.5, 0.6 + 0.4 * drawn[:, 1], np.where(drawn[:, 2] < 0.5, -1.0, 1.0)
    cos, sin = np.cos(turn) * zoom, np.sin(turn) * zoom
    rows = [flip * cos, -sin, (drawn[:, 3] - 0.5) * 0.3, flip * sin, cos, (drawn[:, 4] - 0.5) * 0.3]
    return np.stack(rows, 1).astype(np.float32).reshape(-1, 2, 3)


def pigeon_breeds(
    s: Setup, *, batched: bool = False, averaged: bool = False, late: bool = False, graphed: bool = False, **how: Any
) -> Step:  # fmt: skip
    """MambaOut learns breeds in bf16 autocast; each picture is augmented on the GPU, pairs are mixed, an average is kept."""
    way = How(**{"autocast": BF16, **how})
    batch, stored, side, kinds = s.size(64, 2), s.size(256, 72), s.size(224, 64), s.size(350, 5)
    sizes: dict[str, Any] = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)} if s.tiny else {}
    with s.device:
        model = _timm("mambaout_femto", num_classes=kinds, drop_path_rate=0.05, **sizes)
        mean, std, grey = (torch.tensor(part)[:, None, None] for part in (MEAN, STD, GREY))
        across, down = torch.arange(side), torch.arange(side)[:, None]
        pictures, targets = torch.zeros(batch, 3, side, side), torch.full((batch, kinds), 1.0 / kinds)
        truth, sums = torch.zeros(batch, dtype=torch.long), torch.zeros(2)
    model = _placed(s, way, model).train()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=0.05, capturable=graphed and s.cuda)
    order = torch.channels_last if way.channels_last else torch.contiguous_format
    pictures = pictures.contiguous(memory_format=order)
    files = [(torch.randint(256, (batch, 3, stored, stored), dtype=torch.uint8), torch.randint(kinds, (batch,))) for _ in range(4)]
    loader = Prefetcher([tuple(s.pin(part) for part in group) for group in files], s) if way.pinned else None
    rng, turn, logs = np.random.default_rng(0), 0, {"loss": 0.0, "accuracy": 0.0}

    def augment(picture: Tensor, theta: Tensor, light: Any, contrast: Any, colour: Any) -> Tensor:
        """One picture, or all with a factor each."""
        grid = F.affine_grid(theta, [len(theta), 3, side, side], align_corners=False)
        x = F.grid_sample(picture, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
        x = (x * light).clamp(0, 1)
        middle = (x * grey).sum(1, keepdim=True).mean((2, 3), keepdim=True)
        x = (middle + (x - middle) * contrast).clamp(0, 1)
        plain = (x * grey).sum(1, keepdim=True)
        x = (plain + (x - plain) * colour).clamp(0, 1)
        return (x - mean) / std

    def augmented(raw: Tensor) -> Tensor:
        drawn = rng.random((batch, 10))
        thetas, factors = _thetas(drawn), (0.6 + 0.8 * drawn[:, 5:8]).astype(np.float32)
        holes = (drawn[:, 8:] * (side * 3 // 4)).astype(np.int64)
        if batched:
            there = torch.from_numpy(np.concatenate([thetas.reshape(batch, 6), factors, holes.astype(np.float32)], 1)).to(s.device)
            light, contrast, colour, top, left = there[:, 6:, None, None, None].unbind(1)
            x = augment(raw.float() / 255.0, there[:, :6].view(-1, 2, 3), light, contrast, colour)
            inside = (down >= top) & (down < top + side // 4) & (across >= left) & (across < left + side // 4)
            return x.masked_fill(inside, 0.0)
        done = []
        for picture, theta, (light, contrast, colour), (top, left) in zip(raw, thetas, factors.tolist(), holes.tolist(), strict=True):
            x = augment(picture[None].float() / 255.0, torch.tensor(theta[None], device=s.device), light, contrast, colour)[0]
            x[:, top : top + side // 4, left : left + side // 4] = 0.0
            done.append(x)
        return torch.stack(done)

    def learn(x: Tensor, soft: Tensor, names: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        with _casting(s, way):
            out = run(x)
        loss = -(soft * F.log_softmax(out.float(), -1)).sum(-1).mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), (out.detach().argmax(-1) == names).float().mean()

    kept: list[tuple[Tensor, Tensor]] = []

    def captured() -> None:
        kept[:] = [learn(pictures, targets, truth)]

    _precision(way)
    replay = capture(captured, s) if graphed else None

    def step() -> dict[str, float]:
        nonlocal turn
        _precision(way)
        raw, names = loader.next() if loader else tuple(part.to(s.device) for part in files[turn % 4])
        turn += 1
        with torch.no_grad():
            share = float(rng.beta(0.8, 0.8))
            x = augmented(raw)
            x = (share * x + (1.0 - share) * x.flip(0)).contiguous(memory_format=order)
            soft = F.one_hot(names, kinds).float() * 0.9 + 0.1 / kinds
            soft = share * soft + (1.0 - share) * soft.flip(0)
            main = names if share >= 0.5 else names.flip(0)
        if replay:
            pictures.copy_(x)
            targets.copy_(soft)
            truth.copy_(main)
            replay()
            loss, right = kept[0]
        else:
            loss, right = learn(x, soft, main)
        with torch.no_grad():
            if averaged:
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 2e-4)
            else:
                now = model.state_dict()
                for name, old in average.state_dict().items():
                    old.copy_(old * 0.9998 + now[name] * 0.0002)
        if late:
            sums.add_(torch.stack([loss, right]))
            if turn % 50 == 0:
                logs.update(zip(logs, [value / 50 for value in sums.tolist()], strict=True))
                sums.zero_()
        else:
            logs.update(loss=loss.item(), accuracy=right.item())
        return logs

    return step


WORKLOADS = (
    _public(
        "obituary_names", "ELECTRA of transformers tags 2 x 32 obituaries of 192 words, training in FP32; masks pick, seven reads.",
        obituary_names, {},
        {"precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "sync-stall": {"late": True},
         "unfused-attention": {"attention": SDPA}, "memcpy": {"pinned": True}, "optimizer-foreach": {"optimizer": "fused"},
         "unfused-elementwise": {"layers": True},
         "graph-candidate": {"graphed": True}},
    ),
    _public(
        "pigeon_breeds", "MambaOut of timm, training in bf16 autocast on 64 pictures, augmented one by one; EMA by a loop, two reads.",
        pigeon_breeds, {},
        {"host-bound": {"batched": True}, "optimizer-foreach": {"averaged": True}, "optimizer-foreach/fused": {"optimizer": "fused"},
         "sync-stall": {"late": True}, "memcpy": {"pinned": True}, "memory-layout": {"channels_last": True},
         "unfused-elementwise": {"compiled": COMPILED}, "graph-candidate": {"graphed": True}},
    ),
)  # fmt: skip
