"""Public models of further families and tasks, each fix being what its rule's advice says and nothing else, by an author who has not read the rules.

About a third of the fixes are expected to gain nothing.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step
from .public_models import BF16, COMPILED, How, _images, _timm, _vision, inference, training
from .public_models_2 import SDPA
from .public_models_4 import _public

# Bound by kernels.


def proteins(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """Hidden amino acids are guessed; positions are rotations of queries and keys."""
    from transformers import EsmConfig, EsmForMaskedLM

    config = EsmConfig(
        vocab_size=33, mask_token_id=32, pad_token_id=1, hidden_size=s.size(480, 32), num_hidden_layers=s.size(5, 1),
        num_attention_heads=s.size(20, 2), intermediate_size=s.size(1920, 64), position_embedding_type="rotary", token_dropout=True,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation=attention,
    )  # fmt: skip
    acids = torch.randint(4, 24, (s.size(12, 2), s.size(512, 16)), device=s.device)
    hidden = torch.rand(acids.shape, device=s.device) < 0.15
    ids, labels = acids.masked_fill(hidden, 32), acids.masked_fill(~hidden, -100)
    mask = torch.ones_like(ids)
    return training(s, How(**how), EsmForMaskedLM(config), lambda model: model(input_ids=ids, attention_mask=mask, labels=labels).loss)


def _sdpa_of_mvit(self: Any, x: Tensor, thw: tuple[int, int, int]) -> tuple[Tensor, tuple[int, int, int]]:
    """torchvision's attention over pooled keys, by the library's function."""
    batch, patches, _ = x.shape
    q, k, v = self.qkv(x).reshape(batch, patches, 3, self.num_heads, self.head_dim).transpose(1, 3).unbind(2)
    k = k if self.pool_k is None else self.pool_k(k, thw)[0]
    v = v if self.pool_v is None else self.pool_v(v, thw)[0]
    if self.pool_q is not None:
        q, thw = self.pool_q(q, thw)
    out = F.scaled_dot_product_attention(q, k, v, scale=self.scaler)
    return self.project(out.transpose(1, 2).reshape(batch, -1, self.output_dim)), thw


def films(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    from torchvision.models.video.mvit import MSBlockConfig, MultiscaleAttention, MViT

    if s.tiny:
        block = MSBlockConfig(1, 16, 16, [], [3, 3, 3], [], [1, 2, 2])
        model: nn.Module = MViT((32, 32), 4, [block, block], False, True, False, False, num_classes=10)
    else:
        model = _vision("mvit_v1_b")
    for module in model.modules():
        if attention == SDPA and isinstance(module, MultiscaleAttention):
            module.forward = MethodType(_sdpa_of_mvit, module)
    side = s.size(224, 32)
    return inference(s, How(**how), model, (torch.rand(s.size(4, 1), 3, s.size(16, 4), side, side, device=s.device),))


def _positions_on_gpu(self: Any, q_size: int, k_size: int, rel_pos: Tensor) -> Tensor:
    """transformers makes this index on the host in each call."""
    resized = F.interpolate(rel_pos.T[None], size=2 * max(q_size, k_size) - 1, mode="linear")[0].T
    q, k = (torch.arange(size, device=rel_pos.device) for size in (q_size, k_size))
    return resized[q[:, None] - k + k_size - 1]


def segment_anything(s: Setup, *, attention: str = "eager", on_gpu: bool = False, **how: Any) -> Step:
    """The picture encoder: two layers look through windows, one at all of 4096 patches, each with positions by row and column."""
    from transformers import SamVisionConfig, SamVisionModel

    layers = s.size(3, 2)
    config = SamVisionConfig(
        hidden_size=s.size(768, 32), num_hidden_layers=layers, num_attention_heads=s.size(12, 2), image_size=s.size(1024, 128),
        window_size=s.size(14, 3), global_attn_indexes=[layers - 1], mlp_dim=s.size(3072, 64), output_channels=s.size(256, 16),
        attn_implementation=attention, initializer_range=0.02,
    )  # fmt: skip
    model = SamVisionModel(config)
    for name, parameter in model.named_parameters():
        if "rel_pos" in name:
            nn.init.normal_(parameter, std=0.02)
    for module in model.modules():
        if on_gpu and hasattr(module, "get_rel_pos"):
            module.get_rel_pos = MethodType(_positions_on_gpu, module)
    way = How(**how)
    return inference(s, way, model, {"pixel_values": _images(s, way, 2, 1024, 128)})


def _gemma_norm(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, 1.0 + self.weight, self.eps)


def gemma(s: Setup, *, norms: bool = False, attention: str = "eager", **how: Any) -> Step:
    """A narrow model with 256,000 words, whose head is the embedding."""
    from transformers import GemmaConfig, GemmaForCausalLM

    words = s.size(256_000, 101)
    config = GemmaConfig(
        vocab_size=words, hidden_size=s.size(768, 32), intermediate_size=s.size(4096, 64), num_hidden_layers=s.size(4, 1),
        num_attention_heads=s.size(4, 2), num_key_value_heads=1, head_dim=s.size(256, 16), attn_implementation=attention, use_cache=False,
    )  # fmt: skip
    model = GemmaForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_gemma_norm, module)
    ids = torch.randint(words, (s.size(2, 1), s.size(768, 8)), device=s.device)
    return training(s, How(**how), model, lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


def free_of_norms(s: Setup, **how: Any) -> Step:
    """No batch norm: each weight is standardised in each call."""
    way = How(**how)
    small: Any = {"depths": (1, 1, 1, 1), "channels": (256, 256, 256, 256)} if s.tiny else {}
    model = _timm("eca_nfnet_l0", num_classes=s.size(1000, 10), **small)
    images = _images(s, way, 64, 224, 32)
    labels = torch.randint(s.size(1000, 10), (len(images),), device=s.device)
    return training(s, way, model, lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


# Bound by the host.


def _pyramid_on_gpu(self: Any, centroids_coords: Tensor) -> Tensor:
    """torchvision makes these neighbours on the host in each update."""
    batch, _, height, width = centroids_coords.shape
    near = torch.linspace(-self.radius, self.radius, 2 * self.radius + 1, device=centroids_coords.device)
    delta = torch.stack(torch.meshgrid(near, near, indexing="ij"), dim=-1)[None]
    centres, found = centroids_coords.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2), []
    for volume in self.corr_pyramid:
        rows, columns = volume.shape[-2:]
        x, y = (centres + delta).split([1, 1], dim=-1)
        grid = torch.cat([2 * x / (columns - 1) - 1, 2 * y / (rows - 1) - 1], dim=-1)
        found.append(F.grid_sample(volume, grid, mode="bilinear", align_corners=True).view(batch, height, width, -1))
        centres = centres / 2
    return torch.cat(found, dim=-1).permute(0, 3, 1, 2).contiguous()


def optical_flow(s: Setup, *, on_gpu: bool = False, **how: Any) -> Step:
    """Twelve updates of the motion between two pictures."""
    from torchvision.models.optical_flow.raft import raft_small

    way, model = How(**how), raft_small()
    if on_gpu:
        model.corr_block.index_pyramid = MethodType(_pyramid_on_gpu, model.corr_block)
    images = _images(s, way, 2, 256, 128)
    return inference(s, way, model, (images[:1], images[1:], s.size(12, 2)))  # type: ignore[arg-type]


class Relations(nn.Module):
    """PyTorch Geometric's example rgcn.py: entities have no features but their number."""

    def __init__(self, kind: Any, entities: int, relations: int, classes: int) -> None:
        super().__init__()
        self.first = kind(entities, 16, relations, num_bases=30)
        self.second = kind(16, classes, relations, num_bases=30)

    def forward(self, edges: Tensor, types: Tensor) -> Tensor:
        return F.log_softmax(self.second(F.relu(self.first(None, edges, types)), edges, types), dim=1)


def knowledge_graph(s: Setup, *, fast: bool = False, **how: Any) -> Step:
    """Edges are chosen by a mask for each relation and layer."""
    from torch_geometric.nn import FastRGCNConv, RGCNConv

    entities, count, relations = s.size(8285, 60), s.size(58_086, 300), s.size(30, 4)
    edges, types = torch.randint(entities, (2, count), device=s.device), torch.randint(relations, (count,), device=s.device)
    train, labels = torch.randperm(entities, device=s.device)[:140], torch.randint(4, (min(140, entities),), device=s.device)
    model = Relations(FastRGCNConv if fast else RGCNConv, entities, relations, 4)
    return training(s, How(**how), model, lambda model: F.nll_loss(model(edges, types)[train], labels), torch.optim.Adam)


class Plans:
    """The random blocks of a layer's heads, which are the same in each step since each step seeds them anew."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.plans = draw, None

    def __call__(self, **options: Any) -> Any:
        self.plans = self.plans or self.draw(**options)
        return self.plans


def long_text(s: Setup, *, plans_once: bool = False, **how: Any) -> Step:
    """Each head of each layer sees blocks that NumPy draws in each call."""
    from transformers import BigBirdConfig, BigBirdForMaskedLM

    words, length, heads, block = s.size(50_358, 101), s.size(3584, 256), s.size(12, 2), s.size(64, 16)
    config = BigBirdConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(2, 1), num_attention_heads=heads, intermediate_size=s.size(3072, 64),
        max_position_embeddings=length, attention_type="block_sparse", block_size=block, num_random_blocks=s.size(3, 1), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BigBirdForMaskedLM(config)
    for module in model.modules():
        if plans_once and hasattr(module, "_bigbird_block_rand_mask_with_head"):
            module._bigbird_block_rand_mask_with_head = Plans(module._bigbird_block_rand_mask_with_head)
    ids = torch.randint(words, (1, length), device=s.device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=s.device) > 0.15, -100)
    return training(s, How(**how), model, lambda model: model(input_ids=ids, labels=labels).loss)


def high_resolution(s: Setup, **how: Any) -> Step:
    """Four resolutions side by side, mixed with one another again and again: hundreds of small convolutions."""
    way = How(**how)
    return inference(s, way, _timm("hrnet_w18_small"), (_images(s, way, 1, 224, 64)[:1],))


WORKLOADS = (
    _public(
        "esm_proteins", "ESM-2 of transformers, training in FP32 to guess hidden amino acids of 12 proteins of 512; attention written out.",
        proteins, {},
        {"precision/tf32": {"tf32": True}, "unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "mvit_films", "MViT of torchvision, inference on 4 films with TF32 products: attention over pooled keys written out.", films, {"tf32": True},
        {"unfused-attention": {"attention": SDPA}, "precision": {"autocast": BF16}, "graph-candidate": {"graph": True}},
    ),
    _public(
        "sam_encoder", "SAM's picture encoder of transformers, FP32, two pictures of 1024: positions' indices are made on the host in each layer.",
        segment_anything, {},
        {"unfused-attention": {"attention": SDPA}, "precision/tf32": {"tf32": True}, "memcpy": {"on_gpu": True}},
    ),
    _public(
        "gemma_vocabulary", "Gemma of transformers, training in bf16 on 2 x 768 words of 256,000, attention and norms written out.",
        gemma, {"dtype": BF16},
        {"unfused-elementwise": {"compiled": COMPILED}, "unfused-norm": {"norms": True}, "unfused-attention": {"attention": SDPA},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "nfnet_amp", "NFNet of timm, training in bf16 autocast on 64 pictures, NCHW, gradients filled with zeros.",
        free_of_norms, {"autocast": BF16, "zero": True},
        {"memory-layout": {"channels_last": True}, "grad-zeroing": {"zero": False}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "raft_pair", "RAFT of torchvision on one pair of pictures, FP32: twelve updates, each with a small table from the host.", optical_flow, {},
        {"memcpy": {"on_gpu": True}, "precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "rgcn_relations", "RGCN of torch_geometric on 30 relations, training in FP32: a mask for each relation.", knowledge_graph, {},
        {"launch-gap": {"fast": True}, "optimizer-foreach": {"optimizer": "fused"}, "precision/tf32": {"tf32": True}},
    ),
    _public(
        "bigbird_plans", "BigBird of transformers, training with TF32 products on 3584 words: NumPy draws each head's blocks in each step.",
        long_text, {"tf32": True, "read_loss": True},
        {"host-bound": {"plans_once": True}, "optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"read_loss": False}},
    ),
    _public(
        "hrnet_single", "HRNet of timm on one picture, FP32: hundreds of small convolutions.", high_resolution, {},
        {"graph-candidate": {"graph": True}, "precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}},
    ),
)  # fmt: skip
