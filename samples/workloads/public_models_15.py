"""Public models of captions, vocabularies, pictures, voices, answers, people, molecules and traffic, by an author who has not read the rules.

Each fix is what its rule's advice says; some of them are what people try first on such a model.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step
from .public_models import BF16, COMPILED, How, _call, _casting, _images, _optimizer, _placed, _precision, _vision, inference, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public
from .public_models_6 import _forever, _root_mean_square

# Bound by kernels.


def siglip(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """SigLIP learns which of 64 captions belongs to which of 64 pictures, by the sigmoid of each pair."""
    from transformers import SiglipConfig, SiglipModel

    pairs, side, words, length = s.size(64, 2), s.size(224, 32), s.size(32_000, 101), s.size(64, 8)
    part: dict[str, Any] = {
        "hidden_size": s.size(768, 32), "intermediate_size": s.size(3072, 64), "num_hidden_layers": s.size(10, 1), "num_attention_heads": s.size(12, 2),
    }  # fmt: skip
    config = SiglipConfig(
        text_config=part
        | {"vocab_size": words, "max_position_embeddings": length, "projection_size": part["hidden_size"], "bos_token_id": 0, "eos_token_id": 1},
        vision_config=part | {"image_size": side, "patch_size": 16},
    )
    with s.device:
        model = SiglipModel(config)
    batch = torch.randn(pairs, 3, side, side), torch.randint(2, words, (pairs, length))
    loader = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        pictures, captions = loader.next() if loader else (part.to(s.device) for part in batch)
        return model(input_ids=captions, pixel_values=pictures, return_loss=True).loss

    return training(s, How(**how), model, loss)


def _norm_of_gemma3(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x.float(), self.weight.shape, 1.0 + self.weight.float(), self.eps).type_as(x)


def gemma3(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """Gemma 3 is tuned on two texts of 1024 words out of 262,144; five layers of six see the last 512 alone."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    way, words = How(**how), s.size(262_144, 101)
    config = Gemma3TextConfig(
        vocab_size=words, hidden_size=s.size(1152, 32), intermediate_size=s.size(6912, 64), num_hidden_layers=s.size(6, 2),
        num_attention_heads=s.size(4, 2), num_key_value_heads=1, head_dim=s.size(256, 16), sliding_window=s.size(512, 8), use_cache=False,
        attn_implementation=way.attention,
    )  # fmt: skip
    with s.device:
        model = Gemma3ForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "Gemma3RMSNorm":
            module.forward = MethodType(_norm_of_gemma3, module)
    ids = torch.randint(3, words, (2, s.size(1024, 16)), device=s.device)
    return training(s, way, model, lambda model: model(input_ids=ids, labels=ids).loss)


def _sdpa_of_swin_v2(self: Any, x: Tensor) -> Tensor:
    """torchvision's shifted_window_attention with the cosines' scale in the queries; bias and mask are one mask."""
    batch, height, width, dim = x.shape
    tall, broad = self.window_size
    x = F.pad(x, (0, 0, 0, -width % broad, 0, -height % tall))
    high, wide = x.shape[1:3]
    down, right = 0 if tall >= high else self.shift_size[0], 0 if broad >= wide else self.shift_size[1]
    if down + right:
        x = torch.roll(x, (-down, -right), (1, 2))
    rows, columns, places = high // tall, wide // broad, tall * broad
    x = x.view(batch, rows, tall, columns, broad, dim).permute(0, 1, 3, 2, 4, 5).reshape(-1, places, dim)
    bias_of_qkv = self.qkv.bias.clone()
    bias_of_qkv[dim : 2 * dim].zero_()
    q, k, v = F.linear(x, self.qkv.weight, bias_of_qkv).reshape(len(x), places, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
    q = F.normalize(q, dim=-1) * self.logit_scale.clamp(max=float(np.log(100.0))).exp()
    bias = self.get_relative_position_bias()
    if down + right:
        part = x.new_zeros((high, wide))
        for r, across in enumerate((slice(0, -tall), slice(-tall, -down), slice(-down, None))):
            for c, along in enumerate((slice(0, -broad), slice(-broad, -right), slice(-right, None))):
                part[across, along] = 3 * r + c
        part = part.view(rows, tall, columns, broad).permute(0, 2, 1, 3).reshape(rows * columns, places)
        apart = (part[:, None] != part[:, :, None]).to(bias.dtype) * -100.0
        bias = (bias + apart[:, None]).repeat(batch, 1, 1, 1)
    seen = F.scaled_dot_product_attention(q.to(v.dtype), F.normalize(k, dim=-1).to(v.dtype), v, attn_mask=bias.to(v.dtype), scale=1.0)
    x = F.linear(seen.transpose(1, 2).reshape(len(x), places, dim), self.proj.weight, self.proj.bias)
    x = x.view(batch, rows, columns, tall, broad, dim).permute(0, 1, 3, 2, 4, 5).reshape(batch, high, wide, dim)
    if down + right:
        x = torch.roll(x, (down, right), (1, 2))
    return x[:, :height, :width].contiguous()


def swin_v2(s: Setup, **how: Any) -> Step:
    """Swin V2 sorts 64 pictures of 256: cosines of queries and keys in windows, their bias by a small network."""
    way, model = How(**how), _vision("swin_v2_t")
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "ShiftedWindowAttentionV2":
            module.forward = MethodType(_sdpa_of_swin_v2, module)
    return inference(s, way, model, (_images(s, way, 64, 256, 64, way.dtype),))


def _attention_without_weights(self: Any, hidden_states: Tensor, attention_mask: Tensor | None, gated_position_bias: Tensor) -> tuple[Tensor, None]:
    """WavLM's call of PyTorch's attention, which is the fused one where nobody asks for weights."""
    x = hidden_states.transpose(0, 1)
    seen, _ = F.multi_head_attention_forward(
        x, x, x, self.embed_dim, self.num_heads, torch.empty([0]), torch.cat((self.q_proj.bias, self.k_proj.bias, self.v_proj.bias)),
        None, None, False, self.dropout, self.out_proj.weight, self.out_proj.bias, self.training,
        None if attention_mask is None else attention_mask.ne(1), need_weights=False, attn_mask=gated_position_bias,
        use_separate_proj_weight=True, q_proj_weight=self.q_proj.weight, k_proj_weight=self.k_proj.weight, v_proj_weight=self.v_proj.weight,
    )  # fmt: skip
    return seen.transpose(0, 1), None


def _kept_bias(self: Any, query_length: int, key_length: int) -> Tensor:
    """WavLM's compute_bias; which bucket a distance is in lies on the device since the first call."""
    if getattr(self, "buckets", None) is None:
        between = torch.arange(key_length)[None] - torch.arange(query_length)[:, None]
        self.buckets = self._relative_positions_bucket(between).to(self.rel_attn_embed.weight.device)
    return self.rel_attn_embed(self.buckets).permute(2, 0, 1)


def wavlm(s: Setup, *, kept: bool = False, ears_compiled: bool = False, **how: Any) -> Step:
    """WavLM tells voices apart: a vector for each of 16 recordings of six seconds, which is fetched."""
    from transformers import WavLMConfig, WavLMForXVector

    way = How(**how)
    small: dict[str, Any] = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "conv_dim": (16,) * 7,
        "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "tdnn_dim": (16, 16, 16, 16, 32), "xvector_output_dim": 16,
    }  # fmt: skip
    model: Any = _placed(s, way, WavLMForXVector(WavLMConfig(**(small if s.tiny else {})))).eval()
    for module in model.modules():
        if type(module).__name__ == "WavLMAttention":
            if way.attention == SDPA:
                module.torch_multi_head_self_attention = MethodType(_attention_without_weights, module)
            if kept:
                module.compute_bias = MethodType(_kept_bias, module)
    if ears_compiled:
        model.wavlm.feature_extractor.forward = s.compile(model.wavlm.feature_extractor.forward)
    waves = torch.randn(s.size(16, 2), s.size(96_000, 12_000), device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        with _casting(s, way):
            return F.normalize(model(input_values=waves).embeddings.float(), dim=-1).cpu()

    return step


# Bound by the host, or by both.


def smollm3(s: Setup, *, batch: int = 1, stream: bool = True, norms: bool = False, **how: Any) -> Step:
    """SmolLM3 says six words after a prompt of 256 that it has read; each is shown as soon as it is there."""
    from transformers import DynamicCache, SmolLM3Config, SmolLM3ForCausalLM

    way, words, said, length = How(**how), s.size(128_256, 101), s.size(6, 3), s.size(256, 8)
    config = SmolLM3Config(
        vocab_size=words, hidden_size=s.size(2048, 32), intermediate_size=s.size(11_008, 64), num_hidden_layers=s.size(18, 2),
        num_attention_heads=s.size(16, 4), num_key_value_heads=s.size(4, 2), pad_token_id=0, bos_token_id=1, eos_token_id=2,
        attn_implementation=SDPA,
    )  # fmt: skip
    with s.device:
        model: Any = SmolLM3ForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "SmolLM3RMSNorm":
            module.forward = MethodType(_root_mean_square, module)
    model = _placed(s, way, model).eval()
    asked = torch.randint(3, words, (batch, length), device=s.device)
    cache = DynamicCache(config=config)
    with torch.no_grad():
        model(input_ids=asked[:, :-1], past_key_values=cache, use_cache=True)
    run = _call(s, way, model)

    @torch.no_grad()
    def step() -> list[Any]:
        _precision(way)
        word, text = asked[:, -1:], []
        for _ in range(said):
            word = run(input_ids=word, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            text.append(word.tolist() if stream else word)
        cache.crop(-said)
        return text if stream else torch.cat(text, 1).tolist()

    return step


def mask_rcnn(s: Setup, **how: Any) -> Step:
    """torchvision's tutorial on finding people: Mask R-CNN learns from two pictures, with a box and a mask for each person."""
    way, side, people = How(**how), s.size(480, 64), s.size(4, 2)
    small = {"rpn_pre_nms_top_n_train": 50, "rpn_post_nms_top_n_train": 50, "box_batch_size_per_image": 16} if s.tiny else {}
    model = _vision("maskrcnn_resnet50_fpn", weights_backbone=None, num_classes=2, min_size=side, max_size=s.size(640, 96), **small)
    model = _placed(s, way, model).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.SGD, momentum=0.9, weight_decay=5e-4)
    pictures = [torch.rand(3, side, s.size(640, 96)) for _ in range(2)]
    targets = []
    for picture in pictures:
        high, wide = picture.shape[1:]
        corner = torch.rand(people, 2) * torch.tensor([wide, high]) / 2
        boxes = torch.cat([corner, corner + torch.tensor([wide, high]) * (0.15 + 0.3 * torch.rand(people, 2))], 1)
        rows, columns = torch.arange(high)[None, :, None], torch.arange(wide)[None, None]
        left, top, right, low = (edge[:, None, None] for edge in boxes.unbind(1))
        masks = ((columns >= left) & (columns < right) & (rows >= top) & (rows < low)).to(torch.uint8)
        targets.append({"boxes": boxes, "labels": torch.ones(people, dtype=torch.long), "masks": masks})

    def step() -> float:
        _precision(way)
        tuned, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False  # how many people are found differs
        seen = [picture.to(s.device) for picture in pictures]
        known = [{name: part.to(s.device) for name, part in target.items()} for target in targets]
        with _casting(s, way):
            loss = sum(model(seen, known).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.backends.cudnn.benchmark = tuned
        return loss.item() if way.read_loss else 0.0

    return step


class EdgeNet(nn.Module):
    """The network of torch_geometric's example qm9_nn_conv."""

    def __init__(self, features: int, edges: int, dim: int) -> None:
        from torch_geometric.nn import NNConv, Set2Set

        super().__init__()
        self.first = nn.Linear(features, dim)
        weights = nn.Sequential(nn.Linear(edges, 128), nn.ReLU(), nn.Linear(128, dim * dim))
        self.conv, self.gru = NNConv(dim, dim, weights, aggr="mean"), nn.GRU(dim, dim)
        self.pool, self.second, self.last = Set2Set(dim, processing_steps=3), nn.Linear(2 * dim, dim), nn.Linear(dim, 1)

    def forward(self, data: Any) -> Tensor:
        out = F.relu(self.first(data.x))
        hidden = out.unsqueeze(0)
        for _ in range(3):
            message = F.relu(self.conv(out, data.edge_index, data.edge_attr))
            out, hidden = self.gru(message.unsqueeze(0), hidden)
            out = out.squeeze(0)
        return self.last(F.relu(self.second(self.pool(out, data.batch)))).view(-1)


def _complete_molecules(count: int) -> list[Any]:
    """Molecules of QM9's sizes, each atom bound to each other, with the kind of bond and the distance."""
    from torch_geometric.data import Data

    made = []
    for _ in range(count):
        atoms = int(torch.randint(12, 24, ()))
        edges = (1 - torch.eye(atoms)).nonzero().T.contiguous()
        made.append(Data(x=torch.rand(atoms, 11), edge_index=edges, edge_attr=torch.rand(edges.shape[1], 5), y=torch.randn(1)))
    return made


def edge_networks(s: Setup, *, workers: bool = False, kept: bool = False, **how: Any) -> Step:
    """torch_geometric's example of neural message passing on QM9: 64 molecules a step, joined in this process; the loss is added up."""
    from torch_geometric.loader import DataLoader as GraphLoader

    way = How(**how)
    options, batches = _forever(s, workers and s.cuda)
    stream = batches(GraphLoader(_complete_molecules(s.size(1024, 8)) * s.size(8, 1), s.size(64, 2), shuffle=True, **options))
    model = _placed(s, way, EdgeNet(11, 5, s.size(64, 8))).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.Adam)
    total: Any = torch.zeros((), device=s.device) if kept else 0.0

    def step() -> object:
        nonlocal total
        _precision(way)
        data = next(stream).to(s.device, non_blocking=workers)
        optimizer.zero_grad()
        loss: Any = F.mse_loss(model(data), data.y)
        loss.backward()
        total += (loss.detach() if kept else loss.item()) * data.num_graphs
        optimizer.step()
        return total

    return step


class Windows(Dataset[tuple[Tensor, ...]]):
    """Hourly counts of cars on many roads, cut as GluonTS cuts them: values, features of time, what was seen, and the same ahead."""

    def __init__(self, roads: int, hours: int, past: int, ahead: int, count: int, prepared: bool) -> None:
        draw = np.random.default_rng(0)
        self.counts = draw.random((roads, hours), dtype=np.float32)
        self.counts[draw.random((roads, hours)) < 0.02] = np.nan
        self.past, self.ahead, self.begin = past, ahead, datetime(2024, 1, 1)
        self.cuts = list(zip(draw.integers(roads, size=count).tolist(), draw.integers(hours - past - ahead, size=count).tolist(), strict=True))
        self.ready = [self.cut(*cut) for cut in self.cuts] if prepared else []

    def cut(self, road: int, at: int) -> tuple[Tensor, ...]:
        values = self.counts[road, at : at + self.past + self.ahead]
        seen = ~np.isnan(values)
        hours = [self.begin + timedelta(hours=at + hour) for hour in range(len(values))]
        times = np.array([[hour.hour / 23 - 0.5, hour.weekday() / 6 - 0.5, (hour.timetuple().tm_yday - 1) / 365 - 0.5] for hour in hours], np.float32)
        age = np.log10(2.0 + np.arange(at, at + len(values), dtype=np.float32))[:, None]
        known = np.concatenate([times, age], 1)
        parts = np.where(seen, values, 0.0).astype(np.float32), known, seen.astype(np.float32)
        before, after = [part[: self.past] for part in parts], [part[self.past :] for part in parts]
        return (*(torch.from_numpy(part) for part in (*before, *after)), torch.tensor([road]))

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.ready[index] if self.ready else self.cut(*self.cuts[index])


def informer(s: Setup, *, workers: bool = False, prepared: bool = False, **how: Any) -> Step:
    """Informer of transformers learns the traffic of the next two days on 64 roads; windows are cut when they are asked for."""
    from transformers import InformerConfig, InformerForPrediction

    lags, past, ahead, roads = [1, 2, 3, 24, 168], s.size(96, 24), s.size(48, 6), s.size(862, 5)
    config = InformerConfig(
        prediction_length=ahead, context_length=past, lags_sequence=lags, num_time_features=4, num_static_categorical_features=1, cardinality=[roads],
        embedding_dimension=[s.size(16, 4)], d_model=s.size(64, 16), encoder_layers=s.size(4, 1), decoder_layers=s.size(4, 1),
        encoder_ffn_dim=s.size(256, 16), decoder_ffn_dim=s.size(256, 16),
    )  # fmt: skip
    data = Windows(roads, s.size(2000, 300), past + max(lags), ahead, s.size(4096, 16), prepared)
    options, batches = _forever(s, workers and s.cuda)
    stream = batches(DataLoader(data, batch_size=s.size(64, 4), shuffle=True, drop_last=True, **options))

    def loss(model: Any) -> Tensor:
        values, times, seen, future, future_times, future_seen, road = (part.to(s.device, non_blocking=workers) for part in next(stream))
        return model(
            past_values=values, past_time_features=times, past_observed_mask=seen, static_categorical_features=road, future_values=future,
            future_time_features=future_times, future_observed_mask=future_seen,
        ).loss  # fmt: skip

    return training(s, How(**how), InformerForPrediction(config), loss)


WORKLOADS = (
    _public(
        "siglip_captions", "SigLIP of transformers, training in bf16 autocast on 64 pictures from pageable memory and their captions; the loss is read.",
        siglip, {"autocast": BF16, "read_loss": True},
        {"memcpy": {"pinned": True}, "unfused-elementwise": {"compiled": COMPILED}, "sync-stall": {"read_loss": False},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "gemma3_tuning", "Gemma 3 of transformers, training in bf16 on 2 x 1024 words out of 262,144, attention and norms written out.", gemma3,
        {"dtype": BF16},
        {"unfused-attention": {"attention": SDPA}, "unfused-norm": {"norms": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "swinv2_pictures", "Swin V2 of torchvision on 64 pictures of 256, FP32, NCHW: attention by cosines in windows is written out.", swin_v2, {},
        {"precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}, "unfused-attention": {"attention": SDPA},
         "graph-candidate": {"graph": True}},
    ),
    _public(
        "wavlm_voices", "WavLM of transformers, FP32, makes vectors of 16 recordings of 6 seconds; attention is asked for its weights.", wavlm, {},
        {"precision": {"autocast": HALF}, "unfused-attention": {"attention": SDPA}, "memcpy": {"kept": True},
         "unfused-elementwise": {"ears_compiled": True}},
    ),
    _public(
        "smollm3_answer", "SmolLM3 of transformers, bf16, says six words after 256, norms written out; each word is read as soon as it is there.", smollm3,
        {"dtype": BF16},
        {"low-arithmetic-intensity": {"batch": 8}, "sync-stall": {"stream": False}, "unfused-norm": {"norms": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "maskrcnn_people", "Mask R-CNN of torchvision, training in FP32 with TF32 convolutions on 2 pictures of 640 x 480, NCHW; the loss is read.",
        mask_rcnn, {"read_loss": True},
        {"sync-stall": {"read_loss": False}, "precision": {"autocast": BF16}, "memory-layout": {"channels_last": True},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "nnconv_molecules", "NNConv of torch_geometric, training in FP32 on 64 molecules that are joined in this process; the loss is read.", edge_networks,
        {}, {"data-loading": {"workers": True}, "sync-stall": {"kept": True}, "precision": {"tf32": True}},
    ),
    _public(
        "informer_traffic", "Informer of transformers, training in FP32 on 64 windows of roads' traffic that are cut in this process.", informer, {},
        {"host-bound": {"prepared": True}, "data-loading": {"workers": True}, "precision": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
)  # fmt: skip
