"""Public models of masked photos, stories, shelves, papers, talks, goods, a check of photos and texts that are scored.

Most of them are trained as their libraries' own examples do it; each fix is what its rule's advice says, and some gain nothing.
"""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision, _timm, _tokens, _vision, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public

# Photos.


def beit(s: Setup, *, there: bool = False, listed: bool = False, **how: Any) -> Step:
    """BEiT learns what is behind 75 of the 196 patches of each of 32 photos; each layer has a bias for how far patches are apart."""
    from transformers import BeitConfig, BeitForMaskedImageModeling

    way, count, side, hidden, codes = How(**how), s.size(32, 2), s.size(224, 64), s.size(75, 6), s.size(8192, 51)
    config = BeitConfig(
        vocab_size=codes, hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 2), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), image_size=side, use_mask_token=True, use_relative_position_bias=True,
        attn_implementation=way.attention,
    )  # fmt: skip
    model = BeitForMaskedImageModeling(config)
    patches = (side // config.patch_size) ** 2
    if there:  # which bias is whose stays on the GPU; the library makes it on the host, once, and it is copied by each layer
        for bias in (module for module in model.modules() if type(module).__name__ == "BeitRelativePositionBias"):
            whose = bias.generate_relative_position_index(bias.window_size).to(s.device)
            bias.generate_relative_position_index = lambda _, whose=whose: whose
    photos = torch.randn(count, 3, side, side, device=s.device)
    masked = torch.zeros(count, patches, dtype=torch.bool)
    for row in masked:
        row[torch.randperm(patches)[:hidden]] = True
    at, masked, labels = masked.flatten().nonzero()[:, 0].to(s.device), masked.to(s.device), torch.randint(codes, (count * hidden,), device=s.device)

    def loss(model: Any) -> Tensor:
        if listed:
            return F.cross_entropy(model(photos, bool_masked_pos=masked).logits.flatten(0, 1)[at], labels)
        return model(photos, bool_masked_pos=masked, labels=labels).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


def fcos(s: Setup, **how: Any) -> Step:
    """FCOS learns where the goods are on four photos of shelves, as in torchvision's references: all losses are read, to stop at infinity."""
    way, count, high, wide, goods = How(**how), s.size(4, 1), s.size(640, 64), s.size(800, 64), s.size(24, 3)
    model = _placed(s, way, _vision("fcos_resnet50_fpn", weights_backbone=None, num_classes=s.size(91, 5), min_size=high, max_size=wide)).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.SGD, momentum=0.9, weight_decay=1e-4)
    images, targets = [torch.rand(3, high, wide, device=s.device) for _ in range(count)], list[dict[str, Tensor]]()
    for _ in images:
        corner = torch.rand(goods, 2) * torch.tensor([wide, high]) * 0.6
        boxes = torch.cat([corner, corner + 8.0 + torch.rand(goods, 2) * torch.tensor([wide, high]) * 0.3], 1)
        targets.append({"boxes": boxes.to(s.device), "labels": torch.randint(1, s.size(91, 5), (goods,), device=s.device)})

    def step() -> float:
        _precision(way)
        with _casting(s, way):
            losses: dict[str, Tensor] = model(images, targets)
            loss = torch.stack(list(losses.values())).sum()
        said = loss.item() if way.read_loss else 0.0
        optimizer.zero_grad(set_to_none=not way.zero)
        loss.backward()
        optimizer.step()
        return said

    return step


def resnest(s: Setup, *, pinned: bool = False, read: bool = True, **how: Any) -> Step:
    """ResNeSt is checked on 96 photos that come as floats: how many are right is counted after each batch, as in timm's validate.py."""
    way, count, side = How(**how), s.size(96, 2), s.size(224, 64)
    model = _placed(s, way, _timm("resnest14d" if s.tiny else "resnest50d")).eval()
    run, batch = _call(s, way, model), (torch.randn(count, 3, side, side), torch.randint(1000, (count,)))
    loader, counted = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None, torch.zeros(3, device=s.device)

    @torch.no_grad()
    def step() -> object:
        _precision(way)
        photos, labels = loader.next() if loader else (part.to(s.device) for part in batch)
        if way.channels_last:
            photos = photos.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            scores = run(photos)
        loss = F.cross_entropy(scores.float(), labels)
        right = scores.topk(5).indices == labels[:, None]
        if read:
            return loss.item(), right[:, 0].sum().item(), right.sum().item()
        counted.add_(torch.stack([loss, right[:, 0].sum(), right.sum()]))
        return counted

    return step


# Language.


def _sdpa_of_gpt_neo(self: Any, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """Scores are not scaled; every other layer sees 256 words."""
    parts = [linear(hidden_states) for linear in (self.q_proj, self.k_proj, self.v_proj)]
    q, k, v = (self._split_heads(part, self.num_heads, self.head_dim) for part in parts)
    length, local = q.shape[2], self.attention_type == "local"
    mask, dropped = self.bias[:, :, :length, :length] if local else None, self.attn_dropout.p if self.training else 0.0
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not local, dropout_p=dropped, scale=1.0)
    return self.resid_dropout(self.out_proj(self._merge_heads(seen, self.num_heads, self.head_dim))), None


def gpt_neo(s: Setup, *, words: int = 50_257, **how: Any) -> Step:
    """GPT-Neo is tuned on eight stories of 1024 pieces of words."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    way, length = How(**how), s.size(1024, 16)
    config = GPTNeoConfig(
        vocab_size=s.size(words, 101), hidden_size=s.size(768, 32), num_layers=s.size(6, 2), num_heads=s.size(12, 2), window_size=s.size(256, 4),
        attention_types=[[["global", "local"], s.size(3, 1)]], max_position_embeddings=s.size(2048, 32), bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPTNeoForCausalLM(config)
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "GPTNeoSelfAttention":
            module.forward = MethodType(_sdpa_of_gpt_neo, module)
    ids = _tokens(s, 8, length, s.size(50_257, 101))
    return training(s, way, model, lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


def _norm(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.variance_epsilon)


def exaone(s: Setup, *, emptied: bool = True, read: bool = True, norms: bool = False, **how: Any) -> Step:
    """EXAONE 4 says how likely each of eight texts of 1024 pieces of words is; between two batches the cache of memory is emptied."""
    from transformers import Exaone4Config, Exaone4ForCausalLM

    way, words, texts, layers = How(**how), s.size(102_400, 101), s.size(8, 2), s.size(8, 2)
    config = Exaone4Config(
        vocab_size=words, hidden_size=s.size(2048, 32), intermediate_size=s.size(4096, 64), num_hidden_layers=layers, bos_token_id=1, eos_token_id=2,
        num_attention_heads=s.size(32, 4), num_key_value_heads=s.size(8, 2), sliding_window=None, layer_types=["full_attention"] * layers,
        tie_word_embeddings=True, attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model: Any = _placed(s, way, Exaone4ForCausalLM(config)).eval()
    for module in model.modules():
        if norms and type(module).__name__ == "Exaone4RMSNorm":
            module.forward = MethodType(_norm, module)
    ids, total = _tokens(s, texts, s.size(1024, 12), words), torch.zeros((), device=s.device)

    @torch.no_grad()
    def step() -> object:
        _precision(way)
        with _casting(s, way):
            logits = model(input_ids=ids, use_cache=False).logits
        losses = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1).mean(1)
        said = [loss.item() for loss in losses] if read else total.add_(losses.sum())
        del logits, losses
        if emptied and s.cuda:
            torch.cuda.empty_cache()
        return said

    return step


# Speech.


class _Talks(Dataset[tuple[Tensor, Tensor]]):
    """Five seconds of a talk each, of which the library's extractor makes mel bands as it is read, and what is said in it."""

    def __init__(self, seconds: float, letters: int, said: int) -> None:
        from transformers import SeamlessM4TFeatureExtractor

        draw = np.random.default_rng(0)
        self.extractor, self.letters, self.said = SeamlessM4TFeatureExtractor(), letters, said
        self.sounds = [draw.standard_normal(int(16_000 * seconds), dtype=np.float32) * 0.1 for _ in range(16)]

    def __len__(self) -> int:
        return 1 << 14

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        bands = self.extractor(self.sounds[at % len(self.sounds)], sampling_rate=16_000, return_tensors="pt")["input_features"][0]
        return bands, torch.randint(3, self.letters, (self.said,))


def wav2vec2_bert(s: Setup, *, workers: int = 0, pinned: bool = False, **how: Any) -> Step:
    """W2v-BERT is tuned to write down four talks of five seconds (CTC), spans of which are hidden from it."""
    from transformers import Wav2Vec2BertConfig, Wav2Vec2BertForCTC

    way, letters = How(**how), s.size(64, 11)
    config = Wav2Vec2BertConfig(
        vocab_size=letters, hidden_size=s.size(1024, 32), num_hidden_layers=s.size(8, 1), num_attention_heads=s.size(16, 2), layerdrop=0.0,
        intermediate_size=s.size(4096, 64), ctc_loss_reduction="mean", ctc_zero_infinity=True, attn_implementation=SDPA,
    )  # fmt: skip
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "prefetch_factor": 4} if workers and s.cuda else {}
    data = _Talks(5.0 if not s.tiny else 0.5, letters, s.size(40, 3))
    loader = DataLoader(data, s.size(4, 2), shuffle=True, drop_last=True, pin_memory=pinned and s.cuda, **options)
    stream = (batch for _ in iter(int, 1) for batch in loader)

    with s.device:
        model = Wav2Vec2BertForCTC(config)

    def loss(model: Any) -> Tensor:
        bands, said = (part.to(s.device, non_blocking=pinned) for part in next(stream))
        return model(input_features=bands, labels=said).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


# Graphs and goods.


class _Papers(nn.Module):
    """GCNII, as in torch_geometric's own example, of twelve layers."""

    def __init__(self, parts: int, width: int, kinds: int, layers: int) -> None:
        super().__init__()
        from torch_geometric.nn import GCN2Conv

        self.first, self.last = nn.Linear(parts, width), nn.Linear(width, kinds)
        self.layers = nn.ModuleList(GCN2Conv(width, 0.1, 0.5, n + 1, normalize=False) for n in range(layers))

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
        x = start = self.first(F.dropout(x, 0.6, self.training)).relu()
        for layer in self.layers:
            x = layer(F.dropout(x, 0.6, self.training), start, edges, weights).relu()
        return self.last(F.dropout(x, 0.6, self.training)).log_softmax(-1)


def gcn2(s: Setup, *, read: bool = True, graphed: bool = False, **how: Any) -> Step:
    """GCNII sorts 2708 papers; after each step all papers are sorted, and the loss and three shares of right ones are printed."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    way, papers, cited, parts, kinds = How(**how), s.size(2708, 60), s.size(10_556, 200), s.size(1433, 16), 7
    edges, weights = gcn_norm(torch.randint(papers, (2, cited), device=s.device), None, papers, False, True)
    x, labels, order = torch.rand(papers, parts, device=s.device), torch.randint(kinds, (papers,), device=s.device), torch.randperm(papers)
    learnt, checked, tested = (rows.to(s.device) for rows in order.tensor_split([s.size(140, 20), s.size(640, 40)]))
    model = _placed(s, way, _Papers(parts, s.size(64, 8), kinds, s.size(12, 2)))
    run, fused = _call(s, way, model), way.optimizer == "fused"
    groups = [{"params": model.layers.parameters(), "weight_decay": 0.01}]  # type: ignore[operator, union-attr]
    groups.append({"params": [*model.first.parameters(), *model.last.parameters()], "weight_decay": 5e-4})  # type: ignore[operator, union-attr]
    optimizer = torch.optim.Adam(groups, lr=0.01, fused=fused or None, capturable=graphed and s.cuda)

    def epoch() -> Tensor:
        _precision(way)
        model.train()
        optimizer.zero_grad()
        with _casting(s, way):
            loss = F.nll_loss(run(x, edges, weights)[learnt], labels[learnt])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad(), _casting(s, way):
            right = (run(x, edges, weights).argmax(-1) == labels).float()
        return torch.stack([loss.detach(), *(right[rows].mean() for rows in (learnt, checked, tested))])

    said = torch.zeros(4, device=s.device)

    def kept() -> None:
        said.copy_(epoch())

    turn = capture(kept, s) if graphed else kept

    def step() -> object:
        turn()
        return [value.item() for value in said] if read else said

    return step


def complex_goods(s: Setup, *, drawn: bool = False, **how: Any) -> Step:
    """ComplEx learns which of 300,000 customers, goods and brands of a shop belong together, 16,384 triplets at a time."""
    from torch_geometric.nn import ComplEx

    way, things, kinds, facts, count = How(**how), s.size(300_000, 60), s.size(24, 3), s.size(2_000_000, 100), s.size(16_384, 10)
    model: Any = ComplEx(things, kinds, s.size(128, 8))
    one, other = torch.randint(things, (2, facts), device=s.device)
    kind = torch.randint(kinds, (facts,), device=s.device)
    loader = model.loader(one, kind, other, batch_size=count, shuffle=True, drop_last=True)
    stream = (batch for _ in iter(int, 1) for batch in loader)

    def loss(model: Any) -> Tensor:
        if drawn:
            at = torch.randint(facts, (count,), device=s.device)
            return model.loss(one[at], kind[at], other[at])  # type: ignore[no-any-return]
        return model.loss(*next(stream))  # type: ignore[no-any-return]

    return training(s, way, model, loss, partial(torch.optim.Adam, weight_decay=1e-6))


WORKLOADS = (
    _public(
        "beit_patches",
        "BEiT of transformers, masked patches of 32 photos, training in bf16 autocast; attention written out, biases indexed from the host.",
        beit, {"autocast": BF16},
        {"unfused-attention": {"attention": SDPA}, "memcpy": {"there": True}, "sync-stall": {"listed": True},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "gptneo_stories",
        "GPT-Neo of transformers, tuned in fp16 with a GradScaler on 8 x 1024 of 50257 pieces of words; attention written out, loss read.",
        gpt_neo, {"autocast": HALF, "scaler": True, "read_loss": True},
        {"unfused-attention": {"attention": SDPA}, "amp-scaler-sync": {"autocast": BF16, "scaler": False}, "gemm-alignment": {"words": 50_304},
         "sync-stall": {"read_loss": False}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "fcos_goods",
        "FCOS of torchvision, training in FP32 on four photos of 640 x 800, NCHW; the loss is read before the backward pass.",
        fcos, {"read_loss": True},
        {"precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}, "sync-stall": {"read_loss": False},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "gcn2_papers",
        "GCNII of torch_geometric, twelve layers, training in FP32 on a graph of Cora's size; loss and shares are read each epoch.",
        gcn2, {},
        {"graph-candidate": {"graphed": True}, "launch-gap": {"compiled": COMPILED}, "sync-stall": {"read": False}, "precision": {"autocast": BF16},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "w2vbert_talks",
        "W2v-BERT of transformers, tuned in FP32 on four talks whose mel bands NumPy makes in this process.",
        wav2vec2_bert, {},
        {"data-loading": {"workers": 10, "pinned": True}, "precision": {"autocast": BF16}, "memcpy": {"pinned": True},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "complex_goods",
        "ComplEx of torch_geometric, 300,000 things, Adam on all of them, gradients filled with zeros, triplets listed in Python, loss read.",
        complex_goods, {"zero": True, "read_loss": True},
        {"optimizer-foreach": {"optimizer": "fused"}, "grad-zeroing": {"zero": False}, "host-bound": {"drawn": True},
         "sync-stall": {"read_loss": False}, "precision": {"autocast": BF16}},
    ),
    _public(
        "resnest_check",
        "ResNeSt-50 of timm, FP32, is checked on 96 photos from pageable memory, NCHW; loss and right ones are read.",
        resnest, {},
        {"memcpy": {"pinned": True}, "memory-layout": {"channels_last": True}, "precision": {"autocast": BF16},
         "unfused-elementwise": {"compiled": COMPILED}, "sync-stall": {"read": False}},
    ),
    _public(
        "exaone_scores",
        "EXAONE 4 of transformers scores 8 texts of 1024: FP32 weights in bf16 autocast, norms written out, memory freed after each batch.",
        exaone, {"autocast": BF16, "attention": SDPA},
        {"allocator": {"emptied": False}, "dtype-casts": {"autocast": None, "dtype": BF16}, "unfused-norm": {"norms": True},
         "sync-stall": {"read": False}},
    ),
)  # fmt: skip
