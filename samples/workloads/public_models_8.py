"""Public models of offices, fields, roads and molecules, each fix being what its rule's advice says, by an author who has not read the rules.

About a third of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

import random
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step
from .public_models import (
    BF16,
    COMPILED,
    GRAPHS,
    How,
    _call,
    _casting,
    _images,
    _optimizer,
    _Output,
    _placed,
    _precision,
    _timm,
    _tokens,
    _vision,
    inference,
    training,
)
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public
from .public_models_6 import _forever, _root_mean_square

# Bound by kernels.


def phi3(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """Phi-3 learns pieces of text: queries, keys and values of one product, gate and feed of another."""
    from transformers import Phi3Config, Phi3ForCausalLM

    way, words = How(**how), s.size(32_064, 101)
    config = Phi3Config(
        vocab_size=words, hidden_size=s.size(1024, 32), intermediate_size=s.size(2816, 64), num_hidden_layers=s.size(4, 1), pad_token_id=0,
        num_attention_heads=s.size(16, 4), num_key_value_heads=s.size(8, 2), attn_implementation=way.attention, use_cache=False,
    )  # fmt: skip
    model = Phi3ForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "Phi3RMSNorm":
            module.forward = MethodType(_root_mean_square, module)
    ids = _tokens(s, 4, 1024, words)
    return training(s, way, model, lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


def pvt(s: Setup, **how: Any) -> Step:
    """PVT v2, leaves by illness: keys and values are made fewer by convolutions."""
    from transformers import PvtV2Config, PvtV2ForImageClassification

    config = PvtV2Config(
        image_size=s.size(224, 64), hidden_sizes=[s.size(64, 8), s.size(128, 16), s.size(320, 20), s.size(512, 32)], num_labels=38,
        num_attention_heads=[1, 2, 5, 8], depths=[s.size(2, 1)] * 4,
    )  # fmt: skip
    way = How(**how)
    images, labels = _images(s, way, 80, 224, 64), torch.randint(38, (s.size(80, 2),), device=s.device)
    return training(s, way, PvtV2ForImageClassification(config), lambda model: model(pixel_values=images, labels=labels).loss)


def univnet(s: Setup, **how: Any) -> Step:
    """UnivNet makes sound: kernels that another network writes for each piece of a second."""
    from transformers import UnivNetConfig, UnivNetModel

    batch, frames = s.size(4, 1), s.size(240, 6)
    config = UnivNetConfig(
        model_in_channels=s.size(64, 8), model_hidden_channels=s.size(32, 4), num_mel_bins=s.size(100, 8), kernel_predictor_hidden_channels=s.size(64, 8)
    )
    heard, noise = (torch.randn(batch, frames, wide, device=s.device) for wide in (config.num_mel_bins, config.model_in_channels))
    return inference(s, How(**how), UnivNetModel(config), {"input_features": heard, "noise_sequence": noise})


def efficientvit(s: Setup, **how: Any) -> Step:
    """EfficientViT: depthwise convolutions and attention that is linear in the number of pixels."""
    way = How(**how)
    return inference(s, way, _timm("efficientvit_b1"), (_images(s, way, 128, 224, 64, way.dtype),))


def fcn(s: Setup, *, pinned: bool = False, read: bool = True, **how: Any) -> Step:
    """A course's segmentation of streets: pictures and labels from pageable memory, the share of right pixels read in each step."""
    way, side = How(**how), s.size(320, 64)
    model = _placed(s, way, _Output(_vision("fcn_resnet50", weights_backbone=None, num_classes=19))).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.SGD, momentum=0.9)
    batch = (torch.rand(s.size(12, 2), 3, side, side), torch.randint(19, (s.size(12, 2), side, side)))
    loader = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None
    sums = [0.0, 0.0]

    def step() -> None:
        _precision(way)
        images, labels = loader.next() if loader else (part.to(s.device) for part in batch)
        if way.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        with _casting(s, way):
            scores = model(images)
            loss = F.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        if read:
            sums[0] += loss.item()
            sums[1] += (scores.argmax(1) == labels).float().mean().item()

    return step


# Bound by the host.


def layoutlm(s: Setup, *, prepared: bool = False, **how: Any) -> Step:
    """LayoutLM finds an invoice's fields: words with boxes in pixels become pieces with boxes in thousandths, by Python in each step."""
    from transformers import LayoutLMConfig, LayoutLMForTokenClassification

    way, words, length, count = How(**how), s.size(30_522, 101), s.size(512, 32), s.size(8, 2)
    config = LayoutLMConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(12, 2), num_labels=13,
        intermediate_size=s.size(3072, 64), attn_implementation=way.attention,
    )  # fmt: skip
    draw, syllables = random.Random(0), ["in", "voi", "ce", "to", "tal", "amt", "net", "due", "7", "19", "%", "eur"]
    pieces = {syllable: 10 + place for place, syllable in enumerate(syllables)}
    pages: list[list[tuple[str, tuple[int, int, int, int], int]]] = []
    for _ in range(4 * count):
        corners = [(draw.randrange(1500), draw.randrange(2200)) for _ in range(length)]
        pages.append(
            [
                ("".join(draw.choices(syllables, k=draw.randint(1, 4))), (x, y, x + draw.randint(8, 150), y + draw.randint(8, 40)), draw.randrange(13))
                for x, y in corners
            ]
        )

    def page_of(page: list[tuple[str, tuple[int, int, int, int], int]]) -> tuple[list[int], list[list[int]], list[int]]:
        ids, boxes, labels = [1], [[0, 0, 0, 0]], [-100]
        for word, (left, top, right, bottom), label in page:
            box = [min(1000, max(0, int(1000 * edge / whole))) for edge, whole in ((left, 1654), (top, 2339), (right, 1654), (bottom, 2339))]
            start, first = 0, True
            while start < len(word):
                for end in range(min(len(word), start + 4), start, -1):
                    if word[start:end] in pieces:
                        break
                ids.append(pieces.get(word[start:end], 3))
                boxes.append(box)
                labels.append(label if first else -100)
                start, first = end, False
            if len(ids) >= length - 1:
                break
        ids, boxes, labels = [*ids[: length - 1], 2], [*boxes[: length - 1], [1000] * 4], [*labels[: length - 1], -100]
        short = length - len(ids)
        return ids + [0] * short, boxes + [[0] * 4] * short, labels + [-100] * short

    def batch(turn: int) -> tuple[Tensor, Tensor, Tensor]:
        made = [page_of(pages[(turn * count + place) % len(pages)]) for place in range(count)]
        ids, boxes, labels = (torch.tensor(part) for part in zip(*made, strict=True))
        return ids, boxes, labels

    ahead, turns = [batch(turn) for turn in range(4)] if prepared else [], iter(range(10**9))

    def loss(model: Any) -> Tensor:
        turn = next(turns)
        ids, boxes, labels = (part.to(s.device) for part in (ahead[turn % 4] if ahead else batch(turn)))
        return model(input_ids=ids, bbox=boxes, attention_mask=(ids != 0).long(), labels=labels).loss  # type: ignore[no-any-return]

    return training(s, way, LayoutLMForTokenClassification(config), loss)


def yolos(s: Setup, **how: Any) -> Step:
    """YOLOS tiny, with eight of its twelve layers, looks for things in one picture."""
    from transformers import YolosConfig, YolosForObjectDetection

    way, side = How(**how), s.size(384, 64)
    config = YolosConfig(
        hidden_size=s.size(192, 32), num_hidden_layers=s.size(8, 1), num_attention_heads=s.size(3, 2), intermediate_size=s.size(768, 64),
        image_size=[side, side], num_detection_tokens=s.size(100, 5), use_mid_position_embeddings=False, attn_implementation=way.attention,
    )  # fmt: skip
    return inference(s, way, YolosForObjectDetection(config), {"pixel_values": torch.rand(1, 3, side, side, device=s.device, dtype=way.dtype)})


def gps_molecules(s: Setup, *, workers: bool = False, read: bool = True, **how: Any) -> Step:
    """The library's example graph_gps.py: molecules are put together in the training process, the loss is added up on the host."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINEConv, GPSConv, global_add_pool

    width = s.size(64, 8)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.atoms, self.bonds, self.walks = nn.Embedding(28, width - 4), nn.Embedding(4, width), nn.Linear(20, 4)
            self.layers = nn.ModuleList(
                GPSConv(width, GINEConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))), heads=4, attn_type="multihead")
                for _ in range(s.size(3, 1))
            )
            self.head = nn.Sequential(nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 1))

        def forward(self, x: Tensor, walks: Tensor, edges: Tensor, kinds: Tensor, owner: Tensor) -> Tensor:
            x, bonds = torch.cat([self.atoms(x), self.walks(walks)], 1), self.bonds(kinds)
            for layer in self.layers:
                x = layer(x, edges, owner, edge_attr=bonds)
            return self.head(global_add_pool(x, owner))[:, 0]  # type: ignore[no-any-return]

    def molecule(number: int) -> Data:
        atoms = 15 + number % 17
        one = torch.arange(atoms - 1)
        edges = torch.cat([torch.stack([one, one + 1]), torch.randint(atoms, (2, 3))], 1)
        edges = torch.cat([edges, edges.flip(0)], 1)
        parts = {"x": torch.randint(28, (atoms,)), "walks": torch.rand(atoms, 20), "kinds": torch.randint(4, (edges.shape[1],))}
        return Data(edge_index=edges, y=torch.randn(1), **parts)

    way = How(**how)
    options, batches = _forever(s, workers and s.cuda)
    molecules = [molecule(number) for number in range(s.size(4096, 16))] * s.size(8, 1)
    stream = batches(DataLoader(molecules, batch_size=s.size(192, 4), shuffle=True, drop_last=True, **options))
    model = Net().to(s.device).train()
    run, optimizer, sums = _call(s, way, model), _optimizer(way, model.parameters(), torch.optim.Adam, weight_decay=1e-5), [0.0]

    def step() -> None:
        _precision(way)
        batch = next(stream).to(s.device, non_blocking=workers)
        optimizer.zero_grad()
        with _casting(s, way):
            guess = run(batch.x, batch.walks, batch.edge_index, batch.kinds, batch.batch)
        loss = (guess.float() - batch.y).abs().mean()
        loss.backward()
        optimizer.step()
        if read:
            sums[0] += loss.item() * batch.num_graphs

    return step


WORKLOADS = (
    _public(
        "phi3_pieces", "Phi-3 of transformers, training in bf16 autocast on 4 x 1024 words, attention and norms written out.", phi3, {"autocast": BF16},
        {"unfused-attention": {"attention": SDPA}, "unfused-norm": {"norms": True}, "dtype-casts": {"autocast": None, "dtype": BF16}},
    ),
    _public(
        "pvt_leaves", "PVT v2 of transformers, training in FP32 on 80 pictures, the loss read in each step.", pvt, {"read_loss": True},
        {"precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "univnet_voices", "UnivNet of transformers makes four voices of 61,440 samples, FP32.", univnet, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "precision": {"autocast": BF16}, "graph-candidate": {"graph": True}},
    ),
    _public(
        "efficientvit_photos", "EfficientViT of timm on 128 pictures, bf16 autocast over FP32 weights and pictures, NCHW.", efficientvit,
        {"autocast": BF16},
        {"dtype-casts": {"autocast": None, "dtype": BF16}, "memory-layout": {"channels_last": True}, "graph-candidate": {"graph": True}},
    ),
    _public(
        "fcn_streets", "FCN of torchvision, training in bf16 autocast on 12 pictures of 320 from pageable memory, NCHW; two numbers are read in each step.",
        fcn, {"autocast": BF16},
        {"memory-layout": {"channels_last": True}, "memcpy": {"pinned": True}, "sync-stall": {"read": False}},
    ),
    _public(
        "layoutlm_invoices", "LayoutLM of transformers, training with TF32 products on 8 pages, whose words and boxes Python prepares.",
        layoutlm, {"tf32": True},
        {"host-bound": {"prepared": True}, "precision": {"autocast": BF16}},
    ),
    _public(
        "yolos_single", "YOLOS tiny of transformers in fp16 on one picture of 384, attention written out.", yolos, {"dtype": HALF},
        {"launch-gap": {"compiled": GRAPHS}, "graph-candidate": {"graph": True}, "unfused-attention": {"attention": SDPA}},
    ),
    _public(
        "gps_molecules", "A graph transformer of torch_geometric, training in FP32 on 192 molecules put together in this process; Adam(foreach=False).",
        gps_molecules, {"optimizer": "loop"},
        {"data-loading": {"workers": True}, "optimizer-foreach": {"optimizer": "fused"}, "precision": {"autocast": BF16}},
    ),
)  # fmt: skip
