"""Public models that serve (calls, a chat, an index of passages, photos) and public models in training whose host or data matters.

Some of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision, _timm, _tokens, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public
from .public_models_6 import _forever, _root_mean_square

# Serving.


def squim(s: Setup, *, calls: int = 1, together: bool = False, **how: Any) -> Step:
    """SQUIM says how well five seconds of a call are understood: STOI, PESQ and SI-SDR, each of which is read for the operator's screen."""
    from torchaudio.models import squim_objective_base, squim_objective_model

    way = How(**how)
    small = {"feat_dim": 16, "win_len": 16, "d_model": 16, "nhead": 2, "hidden_dim": 16, "num_blocks": 1, "rnn_type": "LSTM", "chunk_size": 11}
    model = _placed(s, way, squim_objective_model(**small) if s.tiny else squim_objective_base()).eval()
    heard = torch.randn(calls, s.size(80_000, 1600)) / 10
    sound = heard.to(s.device)
    scores: list[Tensor] = []

    def rate() -> None:
        _precision(way)
        with _casting(s, way):
            scores[:] = model(sound.to(way.dtype) if way.dtype else sound)

    with torch.no_grad():
        rating = capture(rate, s) if way.graph else rate

    @torch.no_grad()
    def step() -> list[list[float]]:
        sound.copy_(heard)
        rating()
        if together:
            return torch.stack(scores).tolist()  # type: ignore[no-any-return]
        return [score.tolist() for score in scores]

    return step


def glm(s: Setup, *, batch: int = 1, stream: bool = True, norms: bool = False, **how: Any) -> Step:
    """GLM says six words after a prompt of 512 that it has read, the likeliest each time; each is shown as soon as it is there."""
    from transformers import DynamicCache, GlmConfig, GlmForCausalLM

    way, words, said = How(**how), s.size(59_264, 101), s.size(6, 3)
    config = GlmConfig(
        vocab_size=words, hidden_size=s.size(2048, 32), intermediate_size=s.size(6144, 64), num_hidden_layers=s.size(12, 2),
        num_attention_heads=s.size(16, 4), num_key_value_heads=s.size(4, 2), head_dim=s.size(128, 8), pad_token_id=0, eos_token_id=1,
        attn_implementation=SDPA,
    )  # fmt: skip
    with s.device:
        model: Any = GlmForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "GlmRMSNorm":
            module.forward = MethodType(_root_mean_square, module)
    model = _placed(s, way, model).eval()
    asked = torch.randint(2, words, (batch, s.size(512, 8)), device=s.device)
    cache, answer = DynamicCache(config=config), torch.zeros(batch, said, dtype=torch.long, device=s.device)
    with torch.no_grad():
        model(input_ids=asked[:, :-1], past_key_values=cache, use_cache=True)
    prompt = [(layer.keys, layer.values) for layer in cache.layers]

    def reply(shown: bool = False) -> list[Any]:
        word, text = asked[:, -1:], []
        for at in range(said):
            word = model(input_ids=word, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            if shown:
                text.append(word.tolist())
            answer[:, at : at + 1] = word
        for layer, (keys, values) in zip(cache.layers, prompt, strict=True):
            layer.keys, layer.values = keys, values  # back to the prompt
        return text

    with torch.no_grad():
        replying = capture(reply, s) if way.graph else reply

    @torch.no_grad()
    def step() -> Any:
        if stream:
            return reply(shown=True)
        replying()
        return answer.tolist()

    return step


def _sdpa_of_roformer(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, sinusoidal_pos: Any = None, *_: Any, **__: Any) -> Any:
    heads = (*hidden_states.shape[:-1], -1, self.attention_head_size)
    q, k, v = (linear(hidden_states).view(heads).transpose(1, 2) for linear in (self.query, self.key, self.value))
    q, k = self.apply_rotary_position_embeddings(sinusoidal_pos, q, k)
    mask = None if attention_mask is None else attention_mask.to(v.dtype)
    context = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
    return context.transpose(1, 2).flatten(2), None


def roformer(s: Setup, *, more: int = 1, **how: Any) -> Step:
    """RoFormer makes the vectors of 32 passages of 256 letters for an index of a search: the mean over the letters that there are."""
    from transformers import RoFormerConfig, RoFormerModel

    way, letters, passages, length = How(**how), s.size(50_000, 101), more * s.size(32, 2), s.size(256, 16)
    config = RoFormerConfig(
        vocab_size=letters, hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=s.size(1536, 32),
    )  # fmt: skip
    model = RoFormerModel(config)
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "RoFormerSelfAttention":
            module.forward = MethodType(_sdpa_of_roformer, module)
    model = _placed(s, way, model).eval()  # type: ignore[assignment]
    run = _call(s, way, model)
    ids = torch.randint(letters, (passages, length), device=s.device)
    mask = (torch.arange(length, device=s.device) < torch.randint(length // 2, length, (passages, 1), device=s.device)).long()

    @torch.no_grad()
    def step() -> Any:
        _precision(way)
        with _casting(s, way):
            found = run(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        return F.normalize((found * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1).cpu().numpy()

    return step


def tiny_vit(s: Setup, *, there: bool = False, **how: Any) -> Step:
    """TinyViT says what is in eight photos of 1024 x 768 that users sent: each is made small and normalised, then the five likeliest are listed."""
    way, count, side, kinds = How(**how), s.size(8, 2), s.size(224, 224), s.size(1000, 10)
    model = _timm("tiny_vit_11m_224", num_classes=kinds)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = way.attention == SDPA
    model = _placed(s, way, model).eval()
    photos = torch.randint(256, (count, 3, s.size(768, 96), s.size(1024, 128)), dtype=torch.uint8)
    seen = torch.zeros(count, 3, side, side, device=s.device)
    statistics = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], device=s.device if there else None)
    mean, deviation = statistics[:, :, None, None]
    likeliest: list[Tensor] = []

    def made_small(some: Tensor) -> Tensor:
        small = F.interpolate(some.float() / 255, (side, side), mode="bicubic", antialias=True, align_corners=False)
        return (small.clamp(0, 1) - mean) / deviation

    def look() -> None:
        _precision(way)
        with _casting(s, way):
            likeliest[:] = model(seen).float().softmax(-1).topk(5)

    with torch.no_grad():
        looking = capture(look, s) if way.graph else look

    @torch.no_grad()
    def step() -> list[Any]:
        if there:
            seen.copy_(made_small(photos.to(s.device)))
        else:
            seen.copy_(torch.cat([made_small(photo[None]) for photo in photos]))
        looking()
        return [part.tolist() for part in likeliest]

    return step


# Training.

Kind = tuple[str, str, str]


def _of_each_kind(self: Any, keys: dict[str, Tensor], values: dict[str, Tensor], edges: dict[Kind, Tensor]) -> tuple[Tensor, Tensor, dict[Kind, int]]:
    """Each kind of edge has its own matrices, one for each head: one product for each kind."""
    heads, kinds, at = self.heads, len(self.edge_types), 0
    by_key, by_value = (part.weight.view(heads, kinds, *part.weight.shape[1:]) for part in (self.k_rel, self.v_rel))
    k, v, offsets = [], [], {}
    for kind in edges:
        number, source = self.edge_types_map[kind], kind[0]
        k.append(torch.einsum("nhd,hde->nhe", keys[source], by_key[:, number]))
        v.append(torch.einsum("nhd,hde->nhe", values[source], by_value[:, number]))
        offsets[kind] = at
        at += len(keys[source])
    return torch.cat(k), torch.cat(v), offsets


class _Transformer(nn.Module):
    """torch_geometric's example hgt_dblp."""

    def __init__(self, widths: dict[str, int], kinds: list[Kind], hidden: int, heads: int, layers: int, classes: int) -> None:
        from torch_geometric.nn import HGTConv

        super().__init__()
        self.into = nn.ModuleDict({name: nn.Linear(width, hidden) for name, width in widths.items()})
        self.convs = nn.ModuleList([HGTConv(hidden, hidden, (list(widths), kinds), heads) for _ in range(layers)])
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: dict[str, Tensor], edges: dict[Kind, Tensor]) -> Tensor:
        x = {name: self.into[name](part).relu() for name, part in x.items()}
        for conv in self.convs:
            x = conv(x, edges)
        return self.out(x["author"])  # type: ignore[no-any-return]


def hgt(s: Setup, *, batched: bool = False, kept: bool = False, **how: Any) -> Step:
    """A heterogeneous graph transformer sorts DBLP's authors by field; how many of it are right is printed after each step, as in the example."""
    way = How(**how)
    sizes = {"author": s.size(4057, 30), "paper": s.size(14_328, 60), "term": s.size(7723, 40), "conference": s.size(20, 4)}
    widths = {"author": s.size(334, 12), "paper": s.size(4231, 16), "term": 50, "conference": 1}
    links = {("author", "paper"): s.size(19_645, 90), ("paper", "term"): s.size(85_810, 200), ("paper", "conference"): s.size(14_328, 60)}
    x = {name: torch.rand(size, widths[name], device=s.device) for name, size in sizes.items()}
    edges: dict[Kind, Tensor] = {}
    for (source, target), count in links.items():
        pairs = torch.stack([torch.randint(sizes[source], (count,)), torch.randint(sizes[target], (count,))]).to(s.device)
        edges |= {(source, "to", target): pairs, (target, "to", source): pairs.flip(0)}
    model: Any = _Transformer(widths, list(edges), s.size(64, 16), 2, 2, 4)
    for conv in model.convs if batched else ():
        conv._construct_src_node_feat = MethodType(_of_each_kind, conv)
    model = _placed(s, way, model).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.Adam, weight_decay=1e-3)
    labels = torch.randint(4, (sizes["author"],), device=s.device)
    known = torch.rand(sizes["author"], device=s.device) < 0.1
    learnt, rest = (part.nonzero()[:, 0] if kept else part for part in (known, ~known))

    def step() -> object:
        _precision(way)
        optimizer.zero_grad()
        with _casting(s, way):
            scores = model(x, edges)
        loss = F.cross_entropy(scores[learnt].float(), labels[learnt])
        loss.backward()
        optimizer.step()
        right = (scores.argmax(-1) == labels).float()
        shares = [right[part].mean() for part in (learnt, rest)]
        return (loss.detach(), *shares) if kept else (loss.item(), *(share.item() for share in shares))

    return step


def _patches(pictures: Tensor, size: int, most: int) -> Tensor:
    """Pix2Struct's own way: as many whole patches as may be, each after its row and its column."""
    high, wide = pictures.shape[-2:]
    scale = math.sqrt(most * (size / high) * (size / wide))
    rows, columns = int(scale * high / size), int(scale * wide / size)
    small = F.interpolate(pictures.float(), (rows * size, columns * size), mode="bilinear", antialias=True, align_corners=False)
    small = (small - small.mean((1, 2, 3), keepdim=True)) / small.std((1, 2, 3), keepdim=True).clamp(min=1 / math.sqrt(small[0].numel()))
    cut = F.unfold(small, size, stride=size).transpose(1, 2)
    at = torch.arange(rows * columns, device=pictures.device)
    places = torch.stack([at // columns + 1, at % columns + 1], -1).float().expand(len(pictures), -1, -1)
    return F.pad(torch.cat([places, cut], -1), (0, 0, 0, most - rows * columns))


class Charts(Dataset[tuple[Tensor, Tensor]]):
    """Charts with what their tables say; they are cut into patches as they are read, or left as they are."""

    def __init__(self, count: int, high: int, wide: int, most: int, length: int, words: int, cut: bool) -> None:
        self.charts = torch.randint(256, (16, 3, high, wide), dtype=torch.uint8)
        self.tables = torch.randint(3, words, (64, length))
        self.count, self.most, self.cut = count, most, cut

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        chart = self.charts[at % len(self.charts)]
        return _patches(chart[None], 16, self.most)[0] if self.cut else chart, self.tables[at % len(self.tables)]


def pix2struct(s: Setup, *, workers: bool = False, there: bool = False, **how: Any) -> Step:
    """Pix2Struct learns to write a chart's table down: eight charts of 1024 x 1280 as 1024 patches of 16, and 64 pieces of words."""
    from transformers import Pix2StructConfig, Pix2StructForConditionalGeneration

    way, words, most, dim, inner = How(**how), s.size(50_244, 101), s.size(1024, 12), s.size(768, 32), s.size(2048, 64)
    layers, heads = s.size(6, 1), s.size(12, 2)
    config = Pix2StructConfig(
        vision_config={
            "hidden_size": dim, "patch_embed_hidden_size": 768, "d_ff": inner, "d_kv": dim // heads, "num_hidden_layers": layers,
            "num_attention_heads": heads, "seq_len": s.size(4096, 64),
        },
        text_config={
            "vocab_size": words, "hidden_size": dim, "d_kv": dim // heads, "d_ff": inner, "num_layers": layers, "num_heads": heads,
            "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "use_cache": False,
        },
    )  # fmt: skip
    config.decoder_start_token_id, config.pad_token_id = 0, 0
    options, batches = _forever(s, workers and s.cuda)
    data = Charts(s.size(1 << 14, 64), s.size(1024, 96), s.size(1280, 128), most, s.size(64, 6), words, not there)
    stream = batches(DataLoader(data, s.size(8, 2), shuffle=True, drop_last=True, **options))

    def loss(model: Any) -> Tensor:
        charts, tables = (part.to(s.device, non_blocking=workers) for part in next(stream))
        patches = _patches(charts, 16, most) if there else charts
        return model(flattened_patches=patches, attention_mask=(patches.sum(-1) != 0).float(), labels=tables).loss  # type: ignore[no-any-return]

    return training(s, way, Pix2StructForConditionalGeneration(config), loss)


def _adafactor(s: Setup, parameters: Any, kept: bool, together: bool) -> Any:
    """transformers' Adafactor as its page recommends it: each parameter's step is relative to how large the parameter is."""
    from transformers.optimization import Adafactor

    class Kept(Adafactor):  # type: ignore[misc]
        """No parameter's size is looked at on the host."""

        @staticmethod
        def _get_lr(group: dict[str, Any], state: dict[str, Any]) -> Tensor:
            rate = min(1e-6 * state["step"], 1 / math.sqrt(state["step"]))
            return state["RMS"].clamp(min=group["eps"][1]) * rate  # type: ignore[no-any-return]

    class Together(Adafactor):  # type: ignore[misc]
        """The same for all parameters at once, where foreach has it."""

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            group = self.param_groups[0]
            taught = [p for p in group["params"] if p.grad is not None]
            grads: list[Tensor] = [p.grad for p in taught]
            first = not self.state
            for p in taught if first else ():
                rows, columns = p.new_zeros(p.shape[:-1]), p.new_zeros((*p.shape[:-2], p.shape[-1]))
                self.state[p] = {"row": rows, "column": columns} if p.dim() > 1 else {"square": torch.zeros_like(p)}
            if first:
                self.steps, self.roots = 0, torch.tensor([math.sqrt(p.numel()) for p in taught], device=taught[0].device)
            self.steps += 1
            keep = 1 - self.steps ** group["decay_rate"]
            sizes = (torch.stack(torch._foreach_norm(taught)) / self.roots).clamp(min=group["eps"][1])
            squares = torch._foreach_mul(grads, grads)
            torch._foreach_add_(squares, group["eps"][0])
            flat = [at for at, p in enumerate(taught) if p.dim() < 2]
            wide = [at for at, p in enumerate(taught) if p.dim() > 1]
            rows, columns = ([self.state[taught[at]][name] for at in wide] for name in ("row", "column"))
            for states, dim in ((rows, -1), (columns, -2)):
                torch._foreach_lerp_(states, [squares[at].mean(dim) for at in wide], 1 - keep)
            by_row = torch._foreach_div(rows, [row.mean(-1, keepdim=True) for row in rows])
            torch._foreach_sqrt_(by_row)
            by_column = torch._foreach_sqrt(columns)
            for at, row, column in zip(wide, by_row, by_column, strict=True):
                torch.mul(row.reciprocal_().unsqueeze(-1), column.reciprocal_().unsqueeze(-2), out=squares[at])
            means = [self.state[taught[at]]["square"] for at in flat]
            torch._foreach_lerp_(means, [squares[at] for at in flat], 1 - keep)
            inverse = torch._foreach_sqrt(means)
            torch._foreach_reciprocal_(inverse)
            torch._foreach_copy_([squares[at] for at in flat], inverse)
            torch._foreach_mul_(squares, grads)
            large = (torch.stack(torch._foreach_norm(squares)) / self.roots / group["clip_threshold"]).clamp(min=1.0)
            rates = sizes * min(1e-6 * self.steps, 1 / math.sqrt(self.steps)) / large
            torch._foreach_mul_(squares, list(rates.unbind()))
            torch._foreach_sub_(taught, squares)

    kind = Together if together else Kept if kept else Adafactor
    return kind(parameters, scale_parameter=True, relative_step=True, warmup_init=True, lr=None)


def mt5(s: Setup, *, kept: bool = False, together: bool = False, norms: bool = False, **how: Any) -> Step:
    """mT5 learns to shorten 16 news of 128 pieces of words to 48, by Adafactor."""
    from transformers import MT5Config, MT5ForConditionalGeneration

    way, words = How(**how), s.size(250_112, 101)
    config = MT5Config(
        vocab_size=words, d_model=s.size(512, 32), d_ff=s.size(1024, 64), d_kv=s.size(64, 16), num_heads=s.size(6, 2), num_layers=s.size(6, 1),
        num_decoder_layers=s.size(6, 1), decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    with s.device:
        model = MT5ForConditionalGeneration(config)
    for module in model.modules():
        if norms and type(module).__name__ == "MT5LayerNorm":
            module.forward = MethodType(_root_mean_square, module)
    news, short = _tokens(s, 16, 128, words), _tokens(s, 16, 48, words)

    def optimizer(parameters: Any, lr: float) -> Any:
        return _adafactor(s, parameters, kept, together)

    return training(s, way, model, lambda model: model(input_ids=news, labels=short, use_cache=False).loss, optimizer)


def regnet(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """RegNetY learns from 64 pictures of leaves that come as floats."""
    way, count, side = How(**how), s.size(64, 2), s.size(224, 64)
    batch = torch.rand(count, 3, side, side), torch.randint(100, (count,))
    loader = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None

    def loss(model: Callable[[Tensor], Tensor]) -> Tensor:
        pictures, labels = loader.next() if loader else (part.to(s.device) for part in batch)
        return F.cross_entropy(model(pictures.contiguous(memory_format=torch.channels_last) if way.channels_last else pictures), labels)

    return training(s, way, _timm("regnety_002", num_classes=100), loss, torch.optim.SGD, momentum=0.9, weight_decay=5e-5)


WORKLOADS = (
    _public(
        "squim_calls", "SQUIM of torchaudio, FP32, rates five seconds of one call; its three scores are read one by one.", squim, {},
        {"low-arithmetic-intensity": {"calls": 8}, "graph-candidate": {"graph": True}, "sync-stall": {"together": True},
         "precision": {"dtype": BF16}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "glm_reply", "GLM of transformers in bf16 says six words after a prompt of 512; each is read as soon as it is there.", glm, {"dtype": BF16},
        {"graph-candidate": {"stream": False, "graph": True}, "low-arithmetic-intensity": {"batch": 8}, "sync-stall": {"stream": False},
         "unfused-norm": {"norms": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "roformer_index", "RoFormer of transformers in bf16 autocast makes vectors of 32 passages; attention written out, vectors fetched.",
        roformer, {"autocast": BF16},
        {"unfused-attention": {"attention": SDPA}, "dtype-casts": {"autocast": None, "dtype": BF16}, "unfused-elementwise": {"compiled": COMPILED},
         "low-arithmetic-intensity": {"more": 8}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "tiny_vit_uploads", "TinyViT of timm, FP32, on 8 photos that the host makes small one by one; attention written out.", tiny_vit, {},
        {"host-bound": {"there": True}, "graph-candidate": {"graph": True}, "unfused-attention": {"attention": SDPA}},
    ),
    _public(
        "hgt_fields", "HGT of torch_geometric, training on DBLP as a whole: kinds of edges are sorted on the host; loss and shares are read.",
        hgt, {},
        {"host-bound": {"batched": True}, "sync-stall": {"kept": True}, "optimizer-foreach": {"optimizer": "fused"}, "precision": {"autocast": BF16}},
    ),
    _public(
        "pix2struct_charts", "Pix2Struct of transformers, training in FP32 on 8 charts that this process cuts up; the loss is read.",
        pix2struct, {"read_loss": True},
        {"data-loading": {"workers": True}, "host-bound": {"there": True}, "sync-stall": {"read_loss": False}, "precision": {"autocast": BF16}},
    ),
    _public(
        "mt5_adafactor", "mT5 of transformers, in training by the library's Adafactor, TF32: each parameter's size is looked at on the host.",
        mt5, {"tf32": True},
        {"sync-stall": {"kept": True}, "optimizer-foreach": {"together": True}, "unfused-norm": {"norms": True}, "precision": {"autocast": BF16}},
    ),
    _public(
        "regnet_leaves", "RegNetY of timm, training in fp16 with a GradScaler on 64 pictures from pageable memory, NCHW; gradients are zeroed.",
        regnet, {"autocast": HALF, "scaler": True, "zero": True},
        {"memcpy": {"pinned": True}, "amp-scaler-sync": {"autocast": BF16, "scaler": False}, "grad-zeroing": {"zero": False},
         "launch-gap": {"compiled": COMPILED}, "memory-layout": {"channels_last": True}},
    ),
)  # fmt: skip
