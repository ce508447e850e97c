"""Public models of voices, films, molecules, papers, prompts and experts, by an author who has not read the rules.

Each fix is what its rule's advice says; some of them are what people try first on such a model and gain nothing.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, GRAPHS, How, _call, _casting, _placed, _precision, inference, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public
from .public_models_6 import _forever, _root_mean_square

# Bound by kernels.


def vjepa2(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """V-JEPA 2 looks at four films of 16 pictures: every place in time, height and width turns queries and keys."""
    from transformers import VJEPA2Config, VJEPA2Model

    way, frames, side = How(**how), s.size(16, 4), s.size(256, 32)
    config = VJEPA2Config(
        crop_size=side, frames_per_clip=frames, hidden_size=s.size(1024, 32), num_attention_heads=s.size(16, 2),
        num_hidden_layers=s.size(12, 1), pred_hidden_size=s.size(384, 32), pred_num_attention_heads=s.size(12, 2),
        pred_num_hidden_layers=s.size(12, 1), attn_implementation=SDPA,
    )  # fmt: skip
    with s.device:
        model = VJEPA2Model(config)
    run = _call(s, way, _placed(s, way, model).eval())
    films = torch.rand(s.size(4, 2), frames, 3, side, side)
    loader = Prefetcher([(s.pin(films),)], s) if pinned else None
    seen = torch.empty(films.shape, device=s.device)

    @torch.no_grad()
    def features() -> Tensor:
        with _casting(s, way):
            return run(pixel_values_videos=seen, skip_predictor=True).last_hidden_state.mean(1)  # type: ignore[no-any-return]

    look = capture(features, s) if way.graph else features

    def step() -> object:
        _precision(way)
        seen.copy_(loader.next()[0] if loader else films.to(s.device))
        return look()

    return step


def _sdpa_of_layoutlmv3(
    self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *more: Any, rel_pos: Any = None, rel_2d_pos: Any = None, **_: Any
) -> tuple[Tensor, None]:
    rel_pos, rel_2d_pos = more[-2:] or (rel_pos, rel_2d_pos)  # by place or by name, as the version has it
    batch, length, _width = hidden_states.shape
    shape = (batch, length, self.num_attention_heads, self.attention_head_size)
    q, k, v = (linear(hidden_states).view(shape).transpose(1, 2) for linear in (self.query, self.key, self.value))
    bias = (rel_pos + rel_2d_pos) / self.attention_head_size**0.5
    if attention_mask is not None:
        bias = bias.masked_fill(~attention_mask, float("-inf")) if attention_mask.dtype == torch.bool else bias + attention_mask
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=self.dropout.p if self.training else 0.0)
    return seen.transpose(1, 2).reshape(batch, length, -1), None


def layoutlmv3(s: Setup, *, padded: int = 0, pinned: bool = False, **how: Any) -> Step:
    """LayoutLMv3 learns what the words of a form are: 512 words with their places, 196 patches of the page and one more."""
    from transformers import LayoutLMv3Config, LayoutLMv3ForTokenClassification

    way, pages, words, side, more = How(**how), s.size(8, 2), s.size(512, 16), s.size(224, 32), padded
    config = LayoutLMv3Config(
        vocab_size=s.size(50_265, 101), hidden_size=s.size(768, 48), num_hidden_layers=s.size(8, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=514, input_size=side, coordinate_size=s.size(128, 8),
        shape_size=s.size(128, 8), num_labels=7, attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model = LayoutLMv3ForTokenClassification(config)
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "LayoutLMv3SelfAttention":
            module.forward = MethodType(_sdpa_of_layoutlmv3, module)
    ids = torch.randint(3, config.vocab_size, (pages, words))
    corners = torch.randint(900, (pages, words, 2))
    boxes = torch.cat([corners, corners + torch.randint(1, 100, (pages, words, 2))], -1)
    labels = torch.randint(7, (pages, words))
    pictures = torch.randn(pages, 3, side, side)
    batch = (
        F.pad(ids, (0, more), value=1), F.pad(boxes, (0, 0, 0, more)), F.pad(torch.ones_like(ids), (0, more)), F.pad(labels, (0, more), value=-100), pictures,
    )  # fmt: skip
    loader = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        words, places, mask, kinds, page = loader.next() if loader else (part.to(s.device) for part in batch)
        return model(input_ids=words, bbox=places, attention_mask=mask, pixel_values=page, labels=kinds).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


# Bound by the host, or by both.


def _spline_without_masks(x: Tensor, widths: Tensor, heights: Tensor, slopes: Tensor, bound: float, least: float = 1e-3) -> Tensor:
    """The inverse of transformers' _unconstrained_rational_quadratic_spline: all values go through the bins, where() picks those inside."""

    def edges_of(raw: Tensor) -> Tensor:
        shares = least + (1 - least * raw.shape[-1]) * raw.softmax(-1)
        places = 2 * bound * F.pad(shares.cumsum(-1), (1, 0)) - bound
        places[..., 0], places[..., -1] = -bound, bound
        return places

    inside, limited = (x >= -bound) & (x <= bound), x.clamp(-bound, bound)
    across, up = edges_of(widths), edges_of(heights)
    slope = least + F.softplus(F.pad(slopes, (1, 1), value=float(np.log(np.exp(1 - least) - 1))))
    wide, high = across.diff(dim=-1), up.diff(dim=-1)
    limits = torch.cat([up[..., :-1], up[..., -1:] + 1e-6], -1)
    at = (limited[..., None] >= limits).sum(-1, keepdim=True) - 1
    left, width, bottom, height, steep, first, second = (
        part.gather(-1, at)[..., 0] for part in (across, wide, up, high, high / wide, slope, slope[..., 1:])
    )
    above, bend = limited - bottom, first + second - 2 * steep
    a, b, c = height * (steep - first) + above * bend, height * first - above * bend, -steep * above
    root = 2 * c / (-b - (b * b - 4 * a * c).clamp_min(0).sqrt())
    return torch.where(inside, root * width + left, x)


def _flow_without_masks(
    self: Any, inputs: Tensor, padding_mask: Tensor, global_conditioning: Tensor | None = None, reverse: bool = False
) -> tuple[Tensor, None]:
    """VitsConvFlow in the direction of speech."""
    first, second = torch.split(inputs, [self.half_channels] * 2, dim=1)
    hidden = self.conv_proj(self.conv_dds(self.conv_pre(first), padding_mask, global_conditioning)) * padding_mask
    batch, channels, length = first.shape
    hidden = hidden.reshape(batch, channels, -1, length).permute(0, 1, 3, 2)
    bins, root = self.num_bins, self.filter_channels**0.5
    second = _spline_without_masks(second, hidden[..., :bins] / root, hidden[..., bins : 2 * bins] / root, hidden[..., 2 * bins :], self.tail_bound)
    return torch.cat([first, second], 1) * padding_mask, None


def vits(s: Setup, *, batch: int = 1, masks: bool = True, **how: Any) -> Step:
    """VITS says one sentence of 60 letters, the same way each time, and the wave is fetched."""
    from transformers import VitsConfig, VitsModel

    way = How(**how)
    small: dict[str, Any] = {
        "hidden_size": 32, "num_hidden_layers": 1, "ffn_dim": 32, "flow_size": 32, "upsample_initial_channel": 32, "spectrogram_bins": 33,
        "posterior_encoder_num_wavenet_layers": 1,
    }  # fmt: skip
    model: Any = _placed(s, way, VitsModel(VitsConfig(**(small if s.tiny else {})))).eval()
    for module in model.modules():
        if not masks and type(module).__name__ == "VitsConvFlow":
            module.forward = MethodType(_flow_without_masks, module)
    if way.compiled:
        model.decoder.forward = s.compile(model.decoder.forward, mode=way.compiled)
    letters = torch.randint(1, 38, (batch, s.size(60, 8)), device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        torch.manual_seed(555)
        with _casting(s, way):
            return model(input_ids=letters).waveform.float().cpu()  # type: ignore[no-any-return]

    return step


def _molecules(count: int) -> list[Any]:
    """Trees with a few rings, of 10 to 50 atoms, with the features of atoms and bonds that the paper has."""
    from torch_geometric.data import Data

    made = []
    for _ in range(count):
        atoms = int(torch.randint(10, 50, ()))
        parents = (torch.rand(atoms - 1) * torch.arange(1, atoms)).long()
        bonds = torch.cat([torch.stack([parents, torch.arange(1, atoms)]), torch.randint(atoms, (2, 3))], 1)
        edges = torch.cat([bonds, bonds.flip(0)], 1)
        made.append(Data(x=torch.rand(atoms, 39), edge_index=edges, edge_attr=torch.rand(edges.shape[1], 10), y=torch.randn(1, 1)))
    return made


def attentive_fp(s: Setup, *, workers: bool = False, kept: bool = False, **how: Any) -> Step:
    """torch_geometric's example of AttentiveFP: how well molecules dissolve, 200 at a time, joined in this process."""
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn.models import AttentiveFP

    way, batch = How(**how), s.size(200, 4)
    options, batches = _forever(s, workers and s.cuda)
    stream = batches(GraphLoader(_molecules(s.size(2000, 16)) * s.size(8, 1), batch, shuffle=True, **options))
    model = _placed(s, way, AttentiveFP(39, s.size(200, 16), 1, 10, num_layers=2, num_timesteps=2, dropout=0.2)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=10**-2.5, weight_decay=1e-5, fused=way.optimizer == "fused" or None)
    total: Any = torch.zeros((), device=s.device) if kept else 0.0

    def step() -> object:
        nonlocal total
        _precision(way)
        data = next(stream).to(s.device, non_blocking=workers)
        optimizer.zero_grad()
        with _casting(s, way):
            guess = model(data.x, data.edge_index, data.edge_attr, data.batch)
            loss = F.mse_loss(guess, data.y)
        loss.backward()
        optimizer.step()
        total += (loss.detach() if kept else loss.item()) * data.num_graphs
        return total

    return step


def _layer_norm_of_heads(self: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=self.eps).flatten(-2) * self.weight  # type: ignore[no-any-return]


def _rms_norm_of_xlstm(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


def xlstm(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """xLSTM reads a prompt of 1024 words in sixteen pieces: a loop carries the matrix memory from one to the next in each layer."""
    from transformers import xLSTMConfig, xLSTMForCausalLM

    way, words = How(**how), s.size(50_304, 101)
    config = xLSTMConfig(
        vocab_size=words, hidden_size=s.size(1024, 64), num_hidden_layers=s.size(6, 1), num_heads=s.size(4, 2), chunk_size=s.size(64, 16), use_cache=False,
    )  # fmt: skip
    with s.device:
        model: Any = xLSTMForCausalLM(config)
    fused = {"xLSTMRMSNorm": _rms_norm_of_xlstm, "xLSTMMultiHeadLayerNorm": _layer_norm_of_heads} if norms else {}
    for module in model.modules():
        if type(module).__name__ in fused:
            module.forward = MethodType(fused[type(module).__name__], module)
    for block in model.backbone.blocks:
        if way.compiled:
            block.forward = s.compile(block.forward, mode=way.compiled)
    ids = torch.randint(words, (1, s.size(1024, 32)), device=s.device)
    return inference(s, How(tf32=way.tf32, graph=way.graph), model, {"input_ids": ids, "use_cache": False})  # type: ignore[dict-item]


def _every_expert(self: Any, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor, **_: Any) -> Tensor:
    """All experts on all words; a weight of zero masks those that a word did not choose."""
    words = hidden_states.reshape(-1, hidden_states.shape[-1])
    chosen = routing_weights
    if chosen.shape[-1] != self.num_experts:  # those of the chosen experts alone, as the version has it
        chosen = chosen.new_zeros(len(words), self.num_experts).scatter(1, router_indices, chosen)
    inner = torch.bmm(words.expand(self.num_experts, -1, -1), self.gate_up_proj) + self.gate_up_proj_bias[:, None]
    gate, up = inner[..., ::2].clamp(max=self.limit), inner[..., 1::2].clamp(-self.limit, self.limit)
    out = torch.bmm((up + 1) * gate * torch.sigmoid(gate * self.alpha), self.down_proj) + self.down_proj_bias[:, None]
    return (out * chosen.T[..., None]).sum(0).view_as(hidden_states)  # type: ignore[no-any-return]


def gpt_oss(s: Setup, *, everywhere: bool = False, norms: bool = False, **how: Any) -> Step:
    """gpt-oss is tuned on a text of 1024 words: each of 32 experts looks for its own, one after the other."""
    from transformers import GptOssConfig, GptOssForCausalLM

    way, words = How(**how), s.size(201_088, 101)
    config = GptOssConfig(
        num_hidden_layers=s.size(3, 1), num_local_experts=s.size(32, 4), num_experts_per_tok=s.size(4, 2), vocab_size=words,
        hidden_size=s.size(1024, 32), intermediate_size=s.size(1024, 32), head_dim=s.size(64, 16), num_attention_heads=s.size(16, 2),
        num_key_value_heads=s.size(4, 1), attn_implementation="eager", experts_implementation="eager", use_cache=False,
    )  # fmt: skip
    with s.device:
        model = GptOssForCausalLM(config)
    for module in model.modules():
        if everywhere and type(module).__name__ == "GptOssExperts":
            module.forward = MethodType(_every_expert, module)
        if norms and type(module).__name__ == "GptOssRMSNorm":
            module.forward = MethodType(_root_mean_square, module)
    ids = torch.randint(words, (1, s.size(1024, 16)), device=s.device)
    return training(s, way, model, lambda model: model(input_ids=ids, labels=ids).loss)


WORKLOADS = (
    _public(
        "vjepa2_films", "V-JEPA 2 of transformers in bf16 autocast on 4 films of 16 pictures from pageable memory.", vjepa2, {"autocast": BF16},
        {"unfused-elementwise": {"compiled": COMPILED}, "memcpy": {"pinned": True}, "dtype-casts": {"dtype": BF16}, "graph-candidate": {"graph": True}},
    ),
    _public(
        "layoutlmv3_forms", "LayoutLMv3 of transformers, training in bf16 autocast on 8 pages of 512 + 197 places from pageable memory, attention written out.",
        layoutlmv3, {"autocast": BF16},
        {"unfused-attention": {"attention": SDPA}, "gemm-alignment": {"padded": 3}, "unfused-elementwise": {"compiled": COMPILED},
         "memcpy": {"pinned": True}},
    ),
    _public(
        "vits_sentence", "VITS of transformers, FP32, says a sentence of 60 letters: boolean masks pick what goes through the splines.", vits, {},
        {"sync-stall": {"masks": False}, "launch-gap": {"compiled": GRAPHS}, "precision": {"autocast": HALF}, "low-arithmetic-intensity": {"batch": 8}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "attentivefp_solubility", "AttentiveFP of torch_geometric, training in FP32 on 200 molecules that are joined in this process; the loss is read.",
        attentive_fp, {},
        {"data-loading": {"workers": True}, "sync-stall": {"kept": True}, "optimizer-foreach": {"optimizer": "fused"},
         "precision": {"autocast": BF16}},
    ),
    _public(
        "xlstm_prompt", "xLSTM of transformers, FP32, reads 1024 words in pieces of 64, norms written out.", xlstm, {},
        {"graph-candidate": {"graph": True}, "launch-gap": {"compiled": COMPILED}, "unfused-norm": {"norms": True}, "precision": {"tf32": True}},
    ),
    _public(
        "gptoss_tuning", "gpt-oss of transformers, training in bf16 on 1024 words: 32 experts one after the other in each layer, norms written out.",
        gpt_oss, {"dtype": BF16},
        {"sync-stall": {"everywhere": True}, "unfused-norm": {"norms": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
)  # fmt: skip
