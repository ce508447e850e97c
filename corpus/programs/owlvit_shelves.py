"""OWL-ViT of transformers, FP32, 40 goods in 4 pageable photos; boxes are read one by one, attention written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.base import Setup, Step
from workloads.public import BF16, SDPA, How, _casting, _placed, _precision, _public


def owlvit(s: Setup, *, bytes_sent: bool = False, together: bool = False, **how: Any) -> Step:
    """OWL-ViT looks for forty goods in four photos of shelves; what it finds is written down box by box, as in the library's example."""
    from transformers import OwlViTConfig, OwlViTForObjectDetection

    way, photos, side, goods, length, found = How(**how), s.size(4, 2), s.size(768, 64), s.size(40, 3), 16, s.size(60, 4)
    text = {
        "vocab_size": s.size(49_408, 101), "hidden_size": s.size(512, 32), "intermediate_size": s.size(2048, 64),
        "num_hidden_layers": s.size(6, 1), "num_attention_heads": s.size(8, 2),
        "max_position_embeddings": length, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    picture = {
        "hidden_size": s.size(768, 32), "intermediate_size": s.size(3072, 64), "num_hidden_layers": s.size(8, 1),
        "num_attention_heads": s.size(12, 2), "image_size": side, "patch_size": 16,
    }  # fmt: skip
    config = OwlViTConfig(text_config=text, vision_config=picture, projection_dim=s.size(512, 32), attn_implementation=way.attention)
    model: Any = _placed(s, way, OwlViTForObjectDetection(config)).eval()
    raw = torch.randint(256, (photos, 3, side, side), dtype=torch.uint8)
    mean, std = (torch.tensor(of).view(3, 1, 1) for of in ((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)))
    ready = (raw.float() / 255 - mean) / std  # by the library's processor, before
    raw, mean_there, std_there = s.pin(raw), mean.to(s.device), std.to(s.device)
    names = [f"good {number}" for number in range(goods)]
    asked = torch.randint(3, s.size(49_408, 101), (goods, length), device=s.device).repeat(photos, 1)
    size = torch.tensor([side, side, side, side], device=s.device)

    def detected(way: How) -> tuple[Tensor, Tensor, Tensor]:
        if bytes_sent:
            pixels = (raw.to(s.device, non_blocking=True).float() / 255 - mean_there) / std_there
        else:
            pixels = ready.to(s.device)
        if way.channels_last:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            out = model(input_ids=asked, pixel_values=pixels)
        scores, labels = out.logits.float().sigmoid().max(-1)
        middle, extent = out.pred_boxes.float().chunk(2, -1)
        return scores, labels, torch.cat([middle - extent / 2, middle + extent / 2], -1) * size

    with torch.no_grad():
        _precision(way)
        enough = float(detected(How(channels_last=way.channels_last))[0].topk(found).values[:, -1].mean())

    @torch.no_grad()
    def step() -> list[list[tuple[str, float, list[float]]]]:
        _precision(way)
        scores, labels, boxes = detected(way)
        if together:
            all_of_them = torch.cat([scores[..., None], labels[..., None].float(), boxes], -1).cpu()
            tables = [each[each[:, 0] > enough].tolist() for each in all_of_them]
            return [[(names[int(row[1])], round(row[0], 3), [round(x, 2) for x in row[2:]]) for row in table] for table in tables]
        results = []
        for score, label, box in zip(scores, labels, boxes, strict=True):
            keep = score > enough
            results.append((score[keep], label[keep], box[keep]))
        said = []
        for of in results:
            rows = zip(*of, strict=True)
            said.append([(names[label.item()], round(score.item(), 3), [round(x, 2) for x in box.tolist()]) for score, label, box in rows])
        return said

    return step


PROGRAM = _public(
    "owlvit_shelves",
    "OWL-ViT of transformers, FP32, 40 goods in 4 pageable photos; boxes are read one by one, attention written out.",
    owlvit,
    {},
    {
        "precision": {"autocast": BF16},
        "precision/tf32": {"tf32": True},
        "unfused-attention": {"attention": SDPA},
        "memcpy": {"bytes_sent": True},
        "sync-stall": {"together": True},
        "memory-layout": {"channels_last": True},
    },
)
