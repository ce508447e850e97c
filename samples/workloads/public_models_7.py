"""Public models of further tasks and ways of use, each fix being what its rule's advice says, by an author who has not read the rules.

About a third of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

import math
import random
import unicodedata
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step
from .public_models import BF16, COMPILED, GRAPHS, How, _call, _casting, _images, _placed, _precision, _timm, _tokens, inference, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public
from .public_models_6 import _forever, _gemma_norm

# Bound by kernels.


def modern_bert(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """ModernBERT: two of three layers see 128 words only; the library's eager attention computes all of them."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    words = s.size(50_368, 128)
    config = ModernBertConfig(
        vocab_size=words, hidden_size=s.size(768, 32), intermediate_size=s.size(1152, 64), num_hidden_layers=s.size(6, 2), pad_token_id=0,
        num_attention_heads=s.size(12, 2), local_attention=s.size(128, 4), eos_token_id=1, bos_token_id=2, cls_token_id=2, sep_token_id=1,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model = ModernBertForMaskedLM(config)
    ids = _tokens(s, 8, 512, words)
    labels = torch.where(torch.rand(ids.shape, device=s.device) < 0.3, ids, -100)
    return training(s, How(**how), model, lambda model: model(input_ids=ids, labels=labels).loss)


def _fused_cosine_attention(self: Any, x: Tensor, attention_mask: Tensor | None = None, _: bool | None = False) -> tuple[Tensor]:
    """The library's function with the bias and the mask, which this model adds twice, as one mask."""
    count, length, dim = x.shape
    q, k, v = (layer(x).view(count, length, self.num_attention_heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))
    q = F.normalize(q, dim=-1) * torch.clamp(self.logit_scale, max=math.log(100.0)).exp()
    bias = self.continuous_position_bias_mlp(self.relative_coords_table).view(-1, self.num_attention_heads)
    bias = 16 * torch.sigmoid(bias[self.relative_position_index.view(-1)].view(length, length, -1).permute(2, 0, 1))[None]
    if attention_mask is not None:
        bias = (bias + 2 * attention_mask[:, None]).repeat(count // len(attention_mask), 1, 1, 1)
    out = F.scaled_dot_product_attention(q, F.normalize(k, dim=-1), v, attn_mask=bias.to(v.dtype), scale=1.0)
    return (out.transpose(1, 2).reshape(count, length, dim),)


def super_resolution(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """Swin2SR: cosine attention in windows of 8 x 8 pixels, in six heads of 30."""
    from transformers import Swin2SRConfig, Swin2SRForImageSuperResolution

    config = Swin2SRConfig(
        image_size=s.size(128, 16), embed_dim=s.size(180, 12), depths=[s.size(4, 2)] * 2, num_heads=[s.size(6, 2)] * 2, window_size=s.size(8, 4)
    )
    model = Swin2SRForImageSuperResolution(config)
    for module in model.modules():
        if attention == SDPA and type(module).__name__ == "Swin2SRSelfAttention":
            module.forward = MethodType(_fused_cosine_attention, module)
    way = How(**how)
    return inference(s, way, model, {"pixel_values": _images(s, way, 4, 128, 16)})


def masked_pictures(s: Setup, *, pinned: bool = False, attention: str = "eager", **how: Any) -> Step:
    """A masked autoencoder sees a quarter of each picture; pictures as floats come from the host's memory in each step."""
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    side = s.size(224, 64)
    config = ViTMAEConfig(
        hidden_size=s.size(768, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(12, 2), intermediate_size=s.size(3072, 64),
        image_size=side, decoder_hidden_size=s.size(512, 32), decoder_num_hidden_layers=s.size(4, 1), norm_pix_loss=True,
        decoder_num_attention_heads=s.size(16, 2), decoder_intermediate_size=s.size(2048, 64), attn_implementation=attention,
    )  # fmt: skip
    images = torch.rand(s.size(128, 2), 3, side, side)
    loader = Prefetcher([(s.pin(images),)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        return model(pixel_values=loader.next()[0] if loader else images.to(s.device)).loss  # type: ignore[no-any-return]

    return training(s, How(**how), ViTMAEForPreTraining(config), loss)


def street_scenes(s: Setup, **how: Any) -> Step:
    """UperNet on ConvNeXt: a wide pyramid of convolutions after blocks that turn NCHW for their linear layers."""
    from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation

    backbone = ConvNextConfig(
        hidden_sizes=[s.size(96, 8) * 2**k for k in range(4)], depths=[s.size(3, 1), s.size(3, 1), s.size(6, 1), s.size(3, 1)],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = UperNetConfig(backbone_config=backbone, hidden_size=s.size(512, 16), use_auxiliary_head=False, num_labels=150)
    way = How(**how)
    return inference(s, way, UperNetForSemanticSegmentation(config), {"pixel_values": _images(s, way, 4, 512, 64)})


class Scorer(nn.Module):
    """How likely each text is; the masks of words to come and of words out of the window are made once."""

    def __init__(self, model: nn.Module, masks: dict[str, Tensor]) -> None:
        super().__init__()
        self.model, self.masks = model, masks

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.model(input_ids=ids, attention_mask=self.masks, use_cache=False).logits[:, :-1]
        return logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)  # type: ignore[no-any-return]


def gemma2(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """Gemma 2 bounds attention's scores and the scores of 256,000 words by tanh."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    words = s.size(256_000, 101)
    config = Gemma2Config(
        vocab_size=words, hidden_size=s.size(1024, 32), intermediate_size=s.size(4096, 64), num_hidden_layers=s.size(6, 2), use_cache=False,
        num_attention_heads=s.size(8, 4), num_key_value_heads=s.size(4, 2), head_dim=s.size(128, 8), query_pre_attn_scalar=s.size(128, 8),
        sliding_window=s.size(256, 4), attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model = Gemma2ForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "Gemma2RMSNorm":
            module.forward = MethodType(_gemma_norm, module)
    way, ids = How(**how), _tokens(s, 2, 512, words)
    places = torch.arange(ids.shape[1], device=s.device)
    back = places[:, None] - places
    seen = {"full_attention": back >= 0, "sliding_attention": (back >= 0) & (back < config.sliding_window)}
    masks = {kind: torch.zeros(mask.shape, dtype=way.dtype, device=s.device).masked_fill(~mask, -1e9)[None, None] for kind, mask in seen.items()}
    return inference(s, way, Scorer(model, masks), (ids,))


def _library_norm(self: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, self.weight.shape, self.weight, None, self.variance_epsilon)


def cohere(s: Setup, *, norms: bool = False, attention: str = "eager", **how: Any) -> Step:
    """Cohere's decoder: attention and MLP side by side after one layer norm without bias, which the library writes out."""
    from transformers import CohereConfig, CohereForCausalLM

    words = s.size(32_000, 101)
    config = CohereConfig(
        vocab_size=words, hidden_size=s.size(1024, 32), intermediate_size=s.size(2816, 64), num_hidden_layers=s.size(4, 1), use_cache=False,
        num_attention_heads=s.size(16, 4), num_key_value_heads=s.size(4, 2), eos_token_id=1, attn_implementation=attention,
    )  # fmt: skip
    model = CohereForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "CohereLayerNorm":
            module.forward = MethodType(_library_norm, module)
    ids = _tokens(s, 4, 1024, words)
    return training(s, How(**how), model, lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


def codec_waves(s: Setup, **how: Any) -> Step:
    """The decoder of DAC: after each convolution a snake, x + sin(ax)^2 / a, written out."""
    from transformers import DacConfig, DacModel

    model: nn.Module = DacModel(DacConfig(decoder_hidden_size=s.size(1536, 64), encoder_hidden_size=s.size(64, 4))).decoder
    return inference(s, How(**how), model, (torch.randn(s.size(4, 1), s.size(1024, 64), s.size(86, 3), device=s.device),))


def splade(s: Setup, *, read: bool = True, attention: str = "eager", **how: Any) -> Step:
    """SPLADE puts documents in an index: the largest score of each word over a document, and a dict of the few that are not zero."""
    from transformers import BertConfig, BertForMaskedLM

    way, words = How(**how), s.size(30_522, 101)
    config = BertConfig(
        num_hidden_layers=s.size(6, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2), intermediate_size=s.size(3072, 64),
        vocab_size=words, attn_implementation=attention,
    )  # fmt: skip
    model = BertForMaskedLM(config)
    with torch.no_grad():
        model.cls.predictions.decoder.bias.fill_(-2.0)
    model = model.to(s.device, BF16).eval()
    ids = _tokens(s, 64, 192, words)
    mask = (torch.arange(ids.shape[1], device=s.device) < torch.randint(ids.shape[1] // 2, ids.shape[1], (len(ids), 1), device=s.device)).long()

    def largest(logits: Tensor, mask: Tensor) -> Tensor:
        return torch.max(torch.log(1 + torch.relu(logits)) * mask.unsqueeze(-1), dim=1).values

    pooled = s.compile(largest) if way.compiled else largest
    index: dict[int, dict[int, float]] = {}

    @torch.no_grad()
    def step() -> Tensor:
        vectors: Tensor = pooled(model(input_ids=ids, attention_mask=mask).logits, mask)
        if read:
            for document, vector in enumerate(vectors):
                found = vector.nonzero().squeeze(-1)
                index[document] = dict(zip(found.tolist(), vector[found].tolist(), strict=True))
        return vectors

    return step


class Triplets(nn.Module):
    """PyTorch Geometric's RotatE as a module whose call is its loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, head: Tensor, kind: Tensor, tail: Tensor) -> Tensor:
        return self.model.loss(head, kind, tail)  # type: ignore[no-any-return]


def triplets(s: Setup, *, workers: bool = False, read: bool = True, **how: Any) -> Step:
    """The library's example kge_fb15k_237.py with RotatE of the paper's width: its loader picks rows by a list of numbers."""
    from torch_geometric.nn import RotatE

    way, nodes, kinds, facts = How(**how), s.size(14_541, 40), s.size(237, 5), s.size(272_115, 200)
    model = RotatE(nodes, kinds, s.size(1000, 16), margin=9.0)
    head, kind, tail = (torch.randint(high, (facts,)) for high in (nodes, kinds, nodes))
    options, batches = _forever(s, workers)
    stream = batches(model.loader(head, kind, tail, batch_size=s.size(16_384, 20), shuffle=True, drop_last=True, **options))
    net = Triplets(model).to(s.device).train()
    run, optimizer, sums = _call(s, way, net), torch.optim.Adam(net.parameters(), lr=1e-3), [0.0]

    def step() -> None:
        _precision(way)
        batch = [tensor.to(s.device, non_blocking=workers) for tensor in next(stream)]
        optimizer.zero_grad()
        loss = run(*batch)
        loss.backward()
        optimizer.step()
        if read:
            sums[0] += float(loss.detach()) * len(batch[0])

    return step


def res2net(s: Setup, **how: Any) -> Step:
    """Res2Net, two blocks a stage: each takes its channels in four parts, one after the other."""
    way, model = How(**how), _timm("res2net50_26w_4s", layers=(s.size(2, 1),) * 4, base_width=s.size(26, 4), num_classes=s.size(1000, 10))
    images = _images(s, way, 96, 224, 32)
    labels = torch.randint(s.size(1000, 10), (len(images),), device=s.device)
    return training(s, way, model, lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


# Bound by the host.


def musicgen(s: Setup, *, read: bool = True, attention: str = "eager", **how: Any) -> Step:
    """MusicGen's decoder goes on after a piece: four frames of four codes, with and without the text, drawn from the best 250."""
    from transformers import MusicgenDecoderConfig, MusicgenForCausalLM

    way, codes, dim = How(**how), s.size(2048, 32), s.size(1024, 32)
    config = MusicgenDecoderConfig(
        vocab_size=codes, hidden_size=dim, num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(16, 2), ffn_dim=4 * dim, dropout=0.0,
        pad_token_id=codes, bos_token_id=codes, attn_implementation=attention,
    )  # fmt: skip
    model = _placed(s, way, MusicgenForCausalLM(config)).eval()
    piece = torch.randint(codes, (4, s.size(50, 6)), device=s.device)
    text = torch.cat([torch.randn(1, 12, dim, device=s.device), torch.zeros(1, 12, dim, device=s.device)]).to(way.dtype or torch.float32)

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        heard, cache, made = piece, None, []
        for _ in range(4):
            with _casting(s, way):
                out = model(input_ids=heard.repeat(2, 1), encoder_hidden_states=text, past_key_values=cache, use_cache=True)
            guided, free = out.logits[:, -1].float().chunk(2)
            best = (free + 3.0 * (guided - free)).topk(s.size(250, 10))
            heard = best.indices.gather(-1, torch.multinomial(best.values.softmax(-1), 1))
            cache = out.past_key_values
            made.append(heard)
            if read and (heard == codes).all().item():
                break
        return torch.cat(made, -1)

    return step


class Motion(nn.Module):
    """The motion diffusion model: a frame's pose is a word, the text and the time are one more in front of them."""

    def __init__(self, poses: int, dim: int, layers: int, frames: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.1, "gelu")
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.poses, self.last, self.text = nn.Linear(poses, dim), nn.Linear(dim, poses), nn.Linear(512, dim)
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        rates = torch.arange(1000.0)[:, None] * torch.exp(torch.arange(0.0, dim, 2) * (-math.log(10_000.0) / dim))
        self.register_buffer("places", torch.stack([rates.sin(), rates.cos()], -1).flatten(1)[:, None])

    def forward(self, x: Tensor, times: Tensor, text: Tensor) -> Tensor:
        places: Any = self.places
        first = self.time(places[times].transpose(0, 1)) + self.text(text)[None]
        x = torch.cat([first, self.poses(x.permute(3, 0, 1, 2).flatten(2))])
        x = self.last(self.body(x + places[: len(x)])[1:])
        return x[..., None].permute(1, 2, 3, 0).contiguous()


class Guided(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, times: Tensor, text: Tensor) -> Tensor:
        free = self.model(x, times, torch.zeros_like(text))
        return free + 2.5 * (self.model(x, times, text) - free)  # type: ignore[no-any-return]


def motion_diffusion(s: Setup, *, on_gpu: bool = False, **how: Any) -> Step:
    """Four of fifty steps as in guided-diffusion: each coefficient is looked up in a table of NumPy that is copied to the GPU for it."""
    way, count, poses, frames = How(**how), s.size(2, 1), s.size(263, 12), s.size(196, 6)
    model = _placed(s, way, Guided(Motion(poses, s.size(512, 32), s.size(6, 1), frames))).eval()
    run = _call(s, way, model)
    kept = np.cos((np.arange(51) / 50 + 0.008) / 1.008 * np.pi / 2) ** 2
    betas = np.minimum(1 - kept[1:] / kept[:-1], 0.999)
    products = np.cumprod(1 - betas)
    before = np.append(1.0, products[:-1])
    variance = betas * (1 - before) / (1 - products)
    tables = {
        "start": betas * np.sqrt(before) / (1 - products), "now": (1 - before) * np.sqrt(1 - betas) / (1 - products),
        "log_variance": np.log(np.append(variance[1], variance[1:])),
    }  # fmt: skip
    there = {name: torch.from_numpy(table).to(s.device) for name, table in tables.items()}
    turns = {turn: torch.full((count,), turn, device=s.device) for turn in range(4)}
    text = torch.randn(count, 512, device=s.device)

    def coefficient(name: str, times: Tensor) -> Tensor:
        table = there[name] if on_gpu else torch.from_numpy(tables[name]).to(times.device)
        return table[times].float()[:, None, None, None]

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        x = torch.randn(count, poses, 1, frames, device=s.device)
        for turn in reversed(range(s.size(4, 2))):
            times = turns[turn] if on_gpu else torch.tensor([turn] * count, device=s.device)
            with _casting(s, way):
                clean = run(x, times, text).float()
            noise = torch.randn_like(x) * (times != 0).float()[:, None, None, None]
            x = coefficient("start", times) * clean + coefficient("now", times) * x + torch.exp(0.5 * coefficient("log_variance", times)) * noise
        return x

    return step


class Sensors(Dataset[tuple[Any, ...]]):
    """Windows of seven series and of what is known of their hours, as Time-Series-Library has them."""

    def __init__(self, length: int, past: int, ahead: int) -> None:
        draw = np.random.default_rng(0)
        self.past, self.ahead, self.values, self.hours = past, ahead, draw.standard_normal((length, 7)), draw.standard_normal((length, 4))

    def __len__(self) -> int:
        return len(self.values) - self.past - self.ahead + 1

    def __getitem__(self, start: int) -> tuple[Any, ...]:
        middle = start + self.past
        end = middle + self.ahead
        return self.values[start:middle], self.values[middle:end], self.hours[start:middle], self.hours[middle:end]


def sensor_forecast(s: Setup, *, workers: bool = False, **how: Any) -> Step:
    """PatchTSMixer: gated MLPs across patches, features and channels."""
    from transformers import PatchTSMixerConfig, PatchTSMixerForPrediction

    past, ahead = s.size(512, 32), s.size(96, 8)
    config = PatchTSMixerConfig(
        context_length=past, prediction_length=ahead, patch_length=8, patch_stride=8, num_input_channels=7, d_model=s.size(48, 8),
        num_layers=s.size(3, 1), mode="mix_channel",
    )  # fmt: skip
    options, batches = _forever(s, workers)
    data = Sensors(s.size(17_420, 200), past, ahead)
    stream = batches(DataLoader(data, batch_size=s.size(64, 4), shuffle=True, drop_last=True, **options))

    def loss(model: Any) -> Tensor:
        values, future = (tensor.float().to(s.device, non_blocking=workers) for tensor in next(stream)[:2])
        return model(past_values=values, future_values=future).loss  # type: ignore[no-any-return]

    return training(s, How(**how), PatchTSMixerForPrediction(config), loss)


class Encoder(nn.Module):
    def __init__(self, wide: int, thin: int) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.first, self.mean, self.spread = GCNConv(wide, 2 * thin, cached=True), GCNConv(2 * thin, thin, cached=True), GCNConv(2 * thin, thin, cached=True)

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x, edges).relu()
        return self.mean(x, edges), self.spread(x, edges)


def missing_links(s: Setup, *, sampled_ahead: bool = False, read: bool = True, adam: bool | None = None) -> Step:
    """The library's example autoencoder.py --variational: Python and NumPy draw pairs of papers that do not cite each other."""
    from torch_geometric.nn import VGAE
    from torch_geometric.utils import negative_sampling

    papers, half = s.size(3327, 30), s.size(3870, 40)
    model = VGAE(Encoder(s.size(3703, 20), 16)).to(s.device).train()
    x = (torch.rand(papers, s.size(3703, 20), device=s.device) < 0.01).float()
    one, other = torch.randint(papers, (2, half), device=s.device)
    edges = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
    ahead = [negative_sampling(edges, papers) for _ in range(8)] if sampled_ahead else []
    optimizer, turns, losses = torch.optim.Adam(model.parameters(), lr=0.01, fused=adam), iter(range(10**9)), [0.0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        z = model.encode(x, edges)
        loss = model.recon_loss(z, edges, ahead[next(turns) % len(ahead)] if ahead else None) + model.kl_loss() / papers
        loss.backward()
        optimizer.step()
        if read:
            losses[0] = float(loss.detach())

    return step


def levit(s: Setup, **how: Any) -> Step:
    """LeViT on one picture: small products, a batch norm after each."""
    way = How(**how)
    return inference(s, way, _timm("levit_192"), (_images(s, way, 1, 224, 224, way.dtype)[:1],))


def characters(s: Setup, *, written_ahead: bool = False, **how: Any) -> Step:
    """CANINE reads messages by characters, in which Python makes typing errors in each step."""
    from transformers import CanineConfig, CanineForSequenceClassification

    draw, count, length = random.Random(0), s.size(32, 2), s.size(384, 32)
    letters = "abcdefghijklmnopqrstuvwxyz    éüß"
    messages = ["".join(draw.choices(letters, k=draw.randint(length * 3 // 4, length * 5 // 4))) for _ in range(s.size(512, 8))]

    def typed(text: str) -> list[int]:
        codes = [0xE000]
        for letter in unicodedata.normalize("NFKC", text).lower():
            luck = draw.random()
            if luck < 0.02:
                continue
            if luck < 0.04:
                letter = draw.choice(letters)
            codes.append(ord(letter))
            if luck > 0.98:
                codes.append(ord(letter))
        codes = [*codes[: length - 1], 0xE001]
        return codes + [0] * (length - len(codes))

    def batch() -> Tensor:
        return torch.tensor([typed(text) for text in draw.sample(messages, count)])

    config = CanineConfig(
        hidden_size=s.size(384, 32), num_hidden_layers=2, num_attention_heads=s.size(6, 2), intermediate_size=s.size(1536, 64),
        local_transformer_stride=s.size(128, 8), num_hash_buckets=s.size(16_384, 64), num_labels=6,
    )  # fmt: skip
    labels = torch.randint(6, (count,), device=s.device)
    ahead, turns = [batch() for _ in range(8)] if written_ahead else [], iter(range(10**9))

    def loss(model: Any) -> Tensor:
        ids = (ahead[next(turns) % len(ahead)] if ahead else batch()).to(s.device)
        return model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels).loss  # type: ignore[no-any-return]

    return training(s, How(**how), CanineForSequenceClassification(config), loss)


WORKLOADS = (
    _public(
        "modernbert_masked", "ModernBERT of transformers, training in FP32 on 8 x 512 words, attention written out.", modern_bert, {},
        {"precision": {"autocast": BF16}, "unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "swin2sr_pictures", "Swin2SR of transformers doubles 4 pictures of 128, FP32: cosine attention in windows written out.", super_resolution, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "precision/tf32": {"tf32": True}, "unfused-attention": {"attention": SDPA}},
    ),
    _public(
        "vitmae_pretrain", "A masked autoencoder of transformers, training in bf16 autocast on 128 pictures from pageable memory, attention written out.",
        masked_pictures, {"autocast": BF16},
        {"memcpy": {"pinned": True}, "unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "upernet_scenes", "UperNet on ConvNeXt of transformers, 4 pictures of 512, FP32, NCHW.", street_scenes, {},
        {"memory-layout": {"channels_last": True}, "precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}},
    ),
    _public(
        "gemma2_scoring", "Gemma 2 of transformers in bf16 says how likely 2 x 512 words of 256,000 are; norms and tanh written out.",
        gemma2, {"dtype": BF16},
        {"unfused-elementwise": {"compiled": COMPILED}, "unfused-norm": {"norms": True}, "graph-candidate": {"graph": True}},
    ),
    _public(
        "cohere_pieces", "Cohere's decoder of transformers, training in bf16 on 4 x 1024 words, layer norms and attention written out.",
        cohere, {"dtype": BF16},
        {"unfused-norm": {"norms": True}, "unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "dac_waves", "The decoder of DAC of transformers makes 4 waves of 44,032 samples, FP32.", codec_waves, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "precision": {"autocast": BF16}},
    ),
    _public(
        "splade_index", "SPLADE on BERT of transformers in bf16: 64 documents of 192 words, whose words are read one document after another.",
        splade, {},
        {"sync-stall": {"read": False}, "unfused-elementwise": {"compiled": COMPILED}, "unfused-attention": {"attention": SDPA}},
    ),
    _public(
        "rotate_facts", "RotatE of torch_geometric, training in FP32 on batches of 16,384 facts, picked in this process; the loss is read.", triplets, {},
        {"data-loading": {"workers": True}, "unfused-elementwise": {"compiled": COMPILED}, "sync-stall": {"read": False}},
    ),
    _public(
        "res2net_scaler", "Res2Net of timm, training in fp16 with a GradScaler on 96 pictures, NCHW.", res2net, {"autocast": HALF, "scaler": True},
        {"memory-layout": {"channels_last": True}, "amp-scaler-sync": {"autocast": BF16, "scaler": False},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "musicgen_frames", "MusicGen's decoder of transformers in bf16 autocast, four frames, with a reading after each.", musicgen, {"autocast": BF16},
        {"dtype-casts": {"autocast": None, "dtype": BF16}, "sync-stall": {"read": False}, "unfused-attention": {"attention": SDPA}},
    ),
    _public(
        "motion_diffusion", "The motion diffusion model on two motions of 196 frames, FP32: four steps with tables copied for each number.",
        motion_diffusion, {},
        {"launch-gap": {"compiled": GRAPHS}, "memcpy": {"on_gpu": True}, "precision": {"autocast": BF16}},
    ),
    _public(
        "patchtsmixer_sensors", "PatchTSMixer of transformers, training in FP32 on 64 windows of seven series, cut in this process.",
        sensor_forecast, {},
        {"launch-gap": {"compiled": COMPILED}, "data-loading": {"workers": True}, "precision/tf32": {"tf32": True}},
    ),
    _public(
        "vgae_citations", "A variational graph autoencoder of torch_geometric on 3,327 papers, FP32: pairs without a link are drawn on the host.",
        missing_links, {},
        {"host-bound": {"sampled_ahead": True}, "sync-stall": {"read": False}, "optimizer-foreach": {"adam": True}},
    ),
    _public(
        "levit_single", "LeViT of timm on one picture in bf16 autocast.", levit, {"autocast": BF16},
        {"graph-candidate": {"graph": True}, "dtype-casts": {"autocast": None, "dtype": BF16}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "canine_messages", "CANINE of transformers, training with TF32 products on 32 messages of 384 characters that Python changes.",
        characters, {"tf32": True},
        {"host-bound": {"written_ahead": True}, "precision": {"tf32": True, "autocast": BF16}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
)  # fmt: skip
