"""ELECTRA of transformers tags 2 x 32 obituaries of 192 words, training in FP32; masks pick, seven reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from workloads.base import Prefetcher, Setup, Step, capture
from workloads.public import BF16, SDPA, How, _casting, _optimizer, _placed, _precision, _public


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


PROGRAM = _public(
    "obituary_names",
    "ELECTRA of transformers tags 2 x 32 obituaries of 192 words, training in FP32; masks pick, seven reads.",
    obituary_names,
    {},
    {
        "precision": {"autocast": BF16},
        "precision/tf32": {"tf32": True},
        "sync-stall": {"late": True},
        "unfused-attention": {"attention": SDPA},
        "memcpy": {"pinned": True},
        "optimizer-foreach": {"optimizer": "fused"},
        "unfused-elementwise": {"layers": True},
        "graph-candidate": {"graphed": True},
    },
)
