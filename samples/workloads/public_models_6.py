"""Public models of fields that the modules before have not, each fix being what its rule's advice says, by an author who has not read the rules.

About a third of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from .base import Prefetcher, Setup, Step
from .public_models import BF16, COMPILED, GRAPHS, How, _casting, _images, _precision, _timm, _tokens, _vision, inference, training
from .public_models_2 import SDPA
from .public_models_4 import _public

WORKERS: dict[str, Any] = {"num_workers": 8, "persistent_workers": True, "pin_memory": True, "multiprocessing_context": "fork"}


def _forever(s: Setup, workers: bool) -> tuple[dict[str, Any], Callable[[Any], Iterator[Any]]]:
    """The loader's options, and its batches without end."""

    def batches(loader: Any) -> Iterator[Any]:
        while True:
            yield from loader

    return (WORKERS | {"pin_memory": s.cuda} if workers else {}), batches


def _root_mean_square(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


# Bound by kernels.


def _gated_norm(self: Any, x: Tensor, gate: Tensor | None = None) -> Tensor:
    """One group alone, as in the model below."""
    wide = x.float() if gate is None else x.float() * F.silu(gate.float())
    return F.rms_norm(wide, self.weight.shape, None, self.variance_epsilon).to(x.dtype) * self.weight


def mamba2(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """State space duality in chunks of 256 words, without the authors' kernels."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    words, dim = s.size(50_288, 101), s.size(768, 32)
    config = Mamba2Config(
        vocab_size=words, hidden_size=dim, head_dim=s.size(64, 16), num_heads=2 * dim // s.size(64, 16), state_size=s.size(128, 8), n_groups=1,
        num_hidden_layers=s.size(3, 1), chunk_size=s.size(256, 8), use_cache=False,
    )  # fmt: skip
    model = Mamba2ForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ in ("Mamba2RMSNorm", "MambaRMSNormGated"):
            module.forward = MethodType(_root_mean_square if type(module).__name__ == "Mamba2RMSNorm" else _gated_norm, module)
    return inference(s, How(**how), model, {"input_ids": _tokens(s, 2, 512, words), "use_cache": False, "logits_to_keep": 1})  # type: ignore[dict-item]


def _sdpa_of_esmfold(self: Any, q_x: Tensor, kv_x: Tensor, biases: list[Tensor] | None = None, **_: Any) -> Tensor:
    """The library's function on rows as a batch; both biases are added to one mask."""
    q, k, v = self._prep_qkv(q_x, kv_x)
    rows = q.shape[:-3]
    mask = sum(biases or [], torch.zeros((), device=q.device)).expand(*q.shape[:-1], k.shape[-2]).flatten(0, -4)  # type: ignore[union-attr]
    out = F.scaled_dot_product_attention(*(tensor.flatten(0, -4) for tensor in (q, k, v)), attn_mask=mask.to(q.dtype), scale=1.0)
    return self._wrap_up(out.unflatten(0, rows).transpose(-2, -3), q_x)  # type: ignore[no-any-return]


class Trunk(nn.Module):
    """Blocks of ESMFold's trunk: a state for each amino acid and one for each pair of them."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, single: Tensor, pair: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            single, pair = block(single, pair, mask=mask)
        return single, pair


def folding_trunk(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    from transformers.models.esm.modeling_esmfold import EsmFoldTriangularSelfAttentionBlock

    wide, thin, length = s.size(1024, 64), s.size(128, 32), s.size(256, 12)
    config = SimpleNamespace(sequence_state_dim=wide, pairwise_state_dim=thin, sequence_head_width=32, pairwise_head_width=32, dropout=0.0)
    model = Trunk([EsmFoldTriangularSelfAttentionBlock(config) for _ in range(s.size(2, 1))])  # type: ignore[arg-type]
    for module in model.modules():
        if attention == SDPA and type(module).__name__ == "EsmFoldAttention":
            module.forward = MethodType(_sdpa_of_esmfold, module)
    single, pair = torch.randn(1, length, wide, device=s.device), torch.randn(1, length, length, thin, device=s.device)
    return inference(s, How(**how), model, (single, pair, torch.ones(1, length, device=s.device)))


def depth(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """DINOv2 reads pictures of 37 x 37 patches; convolutions make depths of four of its layers."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    dim, layers, side = s.size(384, 32), s.size(8, 4), s.size(518, 56)
    backbone = Dinov2Config(
        hidden_size=dim, num_hidden_layers=layers, num_attention_heads=s.size(6, 2), image_size=side, patch_size=14, reshape_hidden_states=False,
        out_indices=[layers * k // 4 for k in (1, 2, 3, 4)], attn_implementation="eager",
    )  # fmt: skip
    sizes = [s.size(size, 8) for size in (48, 96, 192, 384)]
    config = DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=dim, neck_hidden_sizes=sizes, fusion_hidden_size=s.size(64, 8), head_hidden_size=s.size(32, 8)
    )
    way, model = How(**how), DepthAnythingForDepthEstimation(config)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = attention
    return inference(s, way, model, {"pixel_values": _images(s, way, 8, 518, 56)})


class UViT(nn.Module):
    """U-ViT: latents, time and class are tokens alike; a long skip goes from each early block to a late one."""

    def __init__(self, side: int, dim: int, pairs: int, heads: int, fused: bool) -> None:
        super().__init__()
        from timm.models.vision_transformer import Block

        def block() -> nn.Module:
            made = Block(dim, heads)
            made.attn.fused_attn = fused
            return made

        self.side, self.dim = side // 2, dim
        self.patches, self.classes = nn.Conv2d(4, dim, 2, 2), nn.Embedding(1001, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 2 + self.side**2, dim))
        self.early, self.middle = nn.ModuleList(block() for _ in range(pairs)), block()
        self.late, self.skips = nn.ModuleList(block() for _ in range(pairs)), nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(pairs))
        self.norm, self.decode, self.last = nn.LayerNorm(dim), nn.Linear(dim, 16), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(self.dim // 2, device=x.device) * (-9.21 / (self.dim // 2))) * times[:, None]
        time = torch.cat([rates.cos(), rates.sin()], dim=-1)
        x = torch.cat([time[:, None], self.classes(labels)[:, None], self.patches(x).flatten(2).transpose(1, 2)], dim=1) + self.positions
        kept: list[Tensor] = []
        for block in self.early:
            x = block(x)
            kept.append(x)
        x = self.middle(x)
        for skip, block in zip(self.skips, self.late, strict=True):
            x = block(skip(torch.cat([x, kept.pop()], dim=-1)))
        x = self.decode(self.norm(x))[:, 2:].view(-1, self.side, self.side, 2, 2, 4)
        return self.last(x.permute(0, 5, 1, 3, 2, 4).reshape(-1, 4, 2 * self.side, 2 * self.side))  # type: ignore[no-any-return]


def u_vit(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    way, batch, side = How(**how), s.size(96, 2), s.size(32, 8)
    model = UViT(side, s.size(512, 32), s.size(4, 1), s.size(8, 2), attention == SDPA)
    latents = torch.randn(batch, 4, side, side, device=s.device)
    latents = latents.contiguous(memory_format=torch.channels_last) if way.channels_last else latents
    labels, betas = torch.randint(1000, (batch,), device=s.device), torch.linspace(1e-4, 0.02, 1000, device=s.device)
    kept = torch.cumprod(1.0 - betas, 0)

    def loss(model: Any) -> Tensor:
        times, noise = torch.randint(1000, (batch,), device=s.device), torch.randn_like(latents)
        level = kept[times].view(-1, 1, 1, 1)
        return F.mse_loss(model(level.sqrt() * latents + (1 - level).sqrt() * noise, times, labels), noise)

    return training(s, way, model, loss)


class Padded(nn.Module):
    """A convolution of fast_neural_style: reflected edges, perhaps an enlargement before, perhaps a norm after."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, *, larger: bool = False, norm: bool = True, relu: bool = True) -> None:
        super().__init__()
        self.larger, self.relu = larger, relu
        self.pad, self.conv = nn.ReflectionPad2d(size // 2), nn.Conv2d(inputs, outputs, size, stride)
        self.norm = nn.InstanceNorm2d(outputs, affine=True) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, mode="nearest", scale_factor=2) if self.larger else x
        x = self.norm(self.conv(self.pad(x)))
        return F.relu(x) if self.relu else x


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = Padded(channels, channels, 3), Padded(channels, channels, 3, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + x  # type: ignore[no-any-return]


def _gram(x: Tensor) -> Tensor:
    rows = x.flatten(2)
    return rows.bmm(rows.transpose(1, 2)) / (rows.shape[1] * rows.shape[2])


def style_transfer(s: Setup, *, read: bool = True, **how: Any) -> Step:
    """PyTorch's example fast_neural_style: VGG-16 compares the picture made with the picture and with the style."""
    way, count = How(**how), s.size(4, 1)
    model: nn.Module = nn.Sequential(
        Padded(3, 32, 9), Padded(32, 64, 3, 2), Padded(64, 128, 3, 2), *(Residual(128) for _ in range(s.size(5, 1))),
        Padded(128, 64, 3, larger=True), Padded(64, 32, 3, larger=True), Padded(32, 3, 9, norm=False, relu=False),
    ).to(s.device)  # fmt: skip
    features: Any = _vision("vgg16", init_weights=False).features[:23].to(s.device).requires_grad_(False)  # type: ignore[index]
    if way.channels_last:
        model, features = model.to(memory_format=torch.channels_last), features.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    images, style = 255 * _images(s, way, 4, 256, 32)[:count], 255 * _images(s, way, 4, 256, 32)[:1]
    sums = {"content": 0.0, "style": 0.0}

    def looked_at(x: Tensor) -> list[Tensor]:
        mean, std = x.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1), x.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
        x, seen = (x.div(255.0) - mean) / std, []
        for number, layer in enumerate(features):
            x = layer(x)
            if number in (3, 8, 15, 22):
                seen.append(x)
        return seen

    with torch.no_grad():
        wanted = [_gram(x) for x in looked_at(style)]

    def step() -> None:
        _precision(way)
        optimizer.zero_grad()
        with _casting(s, way):
            made, true = looked_at(model(images)), looked_at(images)
            content = 1e5 * F.mse_loss(made[1], true[1])
            styled = 1e10 * torch.stack([F.mse_loss(_gram(x), gram.expand(count, -1, -1)) for x, gram in zip(made, wanted, strict=True)]).sum()
        (content + styled).backward()
        optimizer.step()
        if read:
            sums["content"] += content.item()
            sums["style"] += styled.item()

    return step


def bloom(s: Setup, **how: Any) -> Step:
    """250,880 words; the library writes GELU and the products with biases out, in Python functions."""
    from transformers import BloomConfig, BloomForCausalLM

    words = s.size(250_880, 101)
    config = BloomConfig(vocab_size=words, hidden_size=s.size(1024, 32), n_layer=s.size(3, 1), n_head=s.size(16, 2), use_cache=False)
    with s.device:
        model = BloomForCausalLM(config)
    ids = _tokens(s, 2, 1024, words)
    return training(s, How(**how), model, lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


def vocoder(s: Setup, **how: Any) -> Step:
    """HiFi-GAN: each of four enlargements is followed by three stacks of six convolutions."""
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    model = SpeechT5HifiGan(SpeechT5HifiGanConfig(upsample_initial_channel=s.size(512, 32)))
    return inference(s, How(**how), model, (torch.randn(s.size(4, 1), s.size(250, 4), 80, device=s.device),))


def inception(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """Pictures as floats come from the host's memory in each step."""
    way, model = How(**how), _vision("inception_v3", init_weights=False, num_classes=s.size(1000, 10))
    side = 299
    images, labels = torch.rand(s.size(64, 2), 3, side, side), torch.randint(s.size(1000, 10), (s.size(64, 2),))
    batch = (s.pin(images), s.pin(labels)) if pinned else (images, labels)
    loader = Prefetcher([batch], s) if pinned else None

    def loss(model: Any) -> Tensor:
        x, y = loader.next() if loader else (batch[0].to(s.device), batch[1].to(s.device))
        x = x.contiguous(memory_format=torch.channels_last) if way.channels_last else x
        out = model(x)
        return F.cross_entropy(out.logits, y) + 0.4 * F.cross_entropy(out.aux_logits, y)

    return training(s, way, model, loss, torch.optim.SGD, momentum=0.9)


class Clips(Dataset[tuple[Tensor, int]]):
    """Ten seconds of sound each; its spectrogram is made when it is asked for."""

    def __init__(self, s: Setup) -> None:
        self.frames, self.bands = s.size(1024, 32), s.size(128, 32)
        self.sound = torch.randn(s.size(64, 8), 160 * self.frames)
        self.window, self.mel = torch.hann_window(400), torch.rand(self.bands, 257)

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        wave = self.sound[index % len(self.sound)]
        power = torch.stft(wave - wave.mean(), 512, 160, 400, self.window, return_complex=True).abs().square()
        mel = (self.mel @ power).clamp(min=1e-10).log()[:, : self.frames]
        return ((mel - mel.mean()) / (2 * mel.std())).T, index % 35


def clip_labels(s: Setup, *, attention: str = "eager", workers: bool = False, **how: Any) -> Step:
    """The Audio Spectrogram Transformer; 1212 patches a clip."""
    from transformers import ASTConfig, ASTForAudioClassification

    data = Clips(s)
    config = ASTConfig(
        hidden_size=s.size(384, 32), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(6, 2), intermediate_size=s.size(1536, 64),
        max_length=data.frames, num_mel_bins=data.bands, num_labels=35, attn_implementation=attention,
    )  # fmt: skip
    options, batches = _forever(s, workers)
    stream = batches(DataLoader(data, batch_size=s.size(12, 2), shuffle=True, drop_last=True, **options))

    def loss(model: Any) -> Tensor:
        mel, labels = (tensor.to(s.device, non_blocking=workers) for tensor in next(stream))
        return model(input_values=mel, labels=labels).loss  # type: ignore[no-any-return]

    return training(s, How(**how), ASTForAudioClassification(config), loss)


# Bound by the host.


def expert_mixture(s: Setup, *, experts: str = "eager", norms: bool = False, attention: str = "eager", dtype: torch.dtype = BF16) -> Step:
    """OLMoE reads a prompt: each of 32 experts finds its own words."""
    from transformers import OlmoeConfig, OlmoeForCausalLM

    words = s.size(50_304, 101)
    config = OlmoeConfig(
        vocab_size=words, hidden_size=s.size(1024, 32), intermediate_size=s.size(1024, 32), num_hidden_layers=s.size(2, 1),
        num_attention_heads=s.size(16, 2), num_key_value_heads=s.size(16, 2), num_experts=s.size(32, 4), num_experts_per_tok=s.size(4, 2),
        attn_implementation=attention, experts_implementation=experts, use_cache=False,
    )  # fmt: skip
    with s.device:
        model = OlmoeForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "OlmoeRMSNorm":
            module.forward = MethodType(_root_mean_square, module)
    return inference(s, How(dtype=dtype), model, {"input_ids": _tokens(s, 1, 1024, words), "use_cache": False, "logits_to_keep": 1})  # type: ignore[dict-item]


class Trajectories:
    """Batches as decision-transformer's experiment.py makes them: piece by piece in NumPy, padded on the left."""

    def __init__(self, length: int) -> None:
        draw = np.random.default_rng(0)
        self.length, self.draw = length, draw
        sizes = draw.integers(300, 900, 100)
        self.states, self.actions, self.rewards = ([draw.standard_normal((n, width)) for n in sizes] for width in (17, 6, 1))

    def batch(self, count: int) -> list[Tensor]:
        rows: list[list[Any]] = [[], [], [], [], [], []]
        for which in self.draw.integers(len(self.states), size=count):
            rewards = self.rewards[which]
            start = int(self.draw.integers(len(rewards) - 1))
            piece = slice(start, start + self.length)
            to_go = np.cumsum(rewards[start:][::-1])[::-1][: self.length, None]
            found = [self.states[which][piece], self.actions[which][piece], rewards[piece], to_go / 1000.0, np.arange(start, start + len(to_go))[:, None]]
            missing = self.length - len(to_go)
            for column, values in zip(rows, [*found, np.ones((len(to_go), 1))], strict=True):
                column.append(np.concatenate([np.zeros((missing, values.shape[1])), values], axis=0)[None])
        return [torch.from_numpy(np.concatenate(column, axis=0)) for column in rows]


def decisions(s: Setup, *, batches_ahead: bool = False, read: bool = True, **how: Any) -> Step:
    """The Decision Transformer of transformers on pieces of 20 moves."""
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    way, count, source = How(**how), s.size(64, 2), Trajectories(s.size(20, 4))
    config = DecisionTransformerConfig(
        state_dim=17, act_dim=6, max_ep_len=1000, hidden_size=s.size(128, 32), n_layer=s.size(3, 1), n_head=1, n_inner=s.size(512, 32),
        activation_function="relu", n_positions=1024, use_cache=False,
    )  # fmt: skip
    model = DecisionTransformerModel(config).to(s.device).train()
    run = s.compile(model, mode=way.compiled) if way.compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
    ahead = [source.batch(count) for _ in range(8)] if batches_ahead else []
    turns, errors = iter(range(10**9)), [0.0]

    def step() -> None:
        _precision(way)
        batch = ahead[next(turns) % len(ahead)] if ahead else source.batch(count)
        states, actions, rewards, to_go = (tensor.to(s.device, torch.float32) for tensor in batch[:4])
        times, mask = (tensor.to(s.device, torch.long).squeeze(-1) for tensor in batch[4:])
        with _casting(s, way):
            guessed = run(states=states, actions=actions, rewards=rewards, returns_to_go=to_go, timesteps=times, attention_mask=mask)[1]
            loss = ((guessed - actions) ** 2 * mask[..., None]).sum() / (6 * mask.sum())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        if read:
            errors[0] = loss.detach().cpu().item()

    return step


class SASRec(nn.Module):
    """The next good of a user's list, as pmixer/SASRec.pytorch has it."""

    def __init__(self, goods: int, dim: int, length: int, blocks: int, how: How, weights: bool) -> None:
        super().__init__()
        self.dim, self.how, self.weights = dim, how, weights
        self.goods, self.places = nn.Embedding(goods + 1, dim, padding_idx=0), nn.Embedding(length + 1, dim, padding_idx=0)
        self.drop = nn.Dropout(0.2)
        self.norms, self.forward_norms = (nn.ModuleList(nn.LayerNorm(dim, eps=1e-8) for _ in range(blocks)) for _ in range(2))
        self.attentions = nn.ModuleList(nn.MultiheadAttention(dim, 1, 0.2) for _ in range(blocks))
        self.forwards = nn.ModuleList(
            nn.Sequential(nn.Conv1d(dim, dim, 1), nn.Dropout(0.2), nn.ReLU(), nn.Conv1d(dim, dim, 1), nn.Dropout(0.2)) for _ in range(blocks)
        )
        self.last = nn.LayerNorm(dim, eps=1e-8)

    def forward(self, seen: Tensor, places: Tensor, good: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
        x = self.drop(self.goods(seen) * self.dim**0.5 + self.places(places))
        mask = ~torch.tril(torch.ones((x.shape[1], x.shape[1]), dtype=torch.bool, device=x.device))
        for norm, attention, forward_norm, forward in zip(self.norms, self.attentions, self.forward_norms, self.forwards, strict=True):
            x = x.transpose(0, 1)
            query = norm(x)
            x = (query + attention(query, x, x, attn_mask=mask, need_weights=self.weights, is_causal=not self.weights)[0]).transpose(0, 1)
            x = forward_norm(x)
            x = x + forward(x.transpose(1, 2)).transpose(1, 2)
        x = self.last(x)
        return (x * self.goods(good)).sum(-1), (x * self.goods(bad)).sum(-1)


def next_goods(s: Setup, *, sampled_ahead: bool = False, on_gpu: bool = False, weights: bool = True, **how: Any) -> Step:
    """Users and goods that they have not bought are drawn in Python, good by good."""
    way, goods, count, length = How(**how), s.size(3416, 50), s.size(128, 4), s.size(100, 10)
    draw = random.Random(0)
    bought = [[draw.randint(1, goods) for _ in range(draw.randint(length // 2, 2 * length))] for _ in range(s.size(2000, 20))]

    def sample() -> tuple[np.ndarray[Any, Any], ...]:
        rows = []
        for _ in range(count):
            user = bought[draw.randrange(len(bought))]
            known, following, place = set(user), user[-1], length - 1
            seen, good, bad = (np.zeros(length, dtype=np.int64) for _ in range(3))
            for each in reversed(user[:-1]):
                seen[place], good[place] = each, following
                other = draw.randint(1, goods)
                while other in known:
                    other = draw.randint(1, goods)
                bad[place], following, place = other, each, place - 1
                if place == -1:
                    break
            rows.append((seen, good, bad))
        return tuple(np.array(column) for column in zip(*rows, strict=True))

    ahead = [sample() for _ in range(8)] if sampled_ahead else []
    ids = torch.arange(1, length + 1, device=s.device)
    model = SASRec(goods, s.size(50, 10), length, 2, way, weights).to(s.device).train()
    optimizer, turns, sums = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98)), iter(range(10**9)), [0.0]

    def step() -> None:
        _precision(way)
        seen, good, bad = ahead[next(turns) % len(ahead)] if ahead else sample()
        if on_gpu:
            seen_there, good_there, bad_there = s.pin(torch.from_numpy(np.stack([seen, good, bad]))).to(s.device, non_blocking=True)
            places = ids * (seen_there != 0)
        else:
            places = torch.LongTensor(np.tile(np.arange(1, length + 1), [count, 1]) * (seen != 0)).to(s.device)
            seen_there, good_there, bad_there = (torch.LongTensor(column).to(s.device) for column in (seen, good, bad))
        with _casting(s, way):
            high, low = model(seen_there, places, good_there, bad_there)
            errors = F.binary_cross_entropy_with_logits(high, torch.ones_like(high), reduction="none")
            errors = errors + F.binary_cross_entropy_with_logits(low, torch.zeros_like(low), reduction="none")
            real = (good_there != 0).float()
            loss = (errors * real).sum() / real.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums[0] += loss.item()

    return step


class Molecules(nn.Module):
    """PyTorch Geometric's PNA on molecules like ZINC's, each summed to one number."""

    def __init__(self, degrees: Tensor, dim: int, layers: int) -> None:
        super().__init__()
        from torch_geometric.nn.models import PNA

        self.atoms, self.bonds = nn.Embedding(21, dim), nn.Embedding(4, dim)
        self.body = PNA(
            dim, dim, layers, aggregators=["mean", "min", "max", "std"], scalers=["identity", "amplification", "attenuation"], deg=degrees,
            edge_dim=dim, norm="batch_norm",
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(dim, dim // 2), nn.ReLU(), nn.Linear(dim // 2, 1))

    def forward(self, data: Any, size: int | None) -> Tensor:
        from torch_geometric.nn import global_add_pool

        x = self.body(self.atoms(data.x.squeeze(-1)), data.edge_index, edge_attr=self.bonds(data.edge_attr))
        return self.head(global_add_pool(x, data.batch, size)).squeeze(-1)  # type: ignore[no-any-return]


def molecules(s: Setup, *, workers: bool = False, read: bool = True, adam: bool | None = None) -> Step:
    """Graphs are joined to batches in this process; the number of graphs and the loss are read from the GPU."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as GraphLoader

    count, graphs = s.size(128, 4), []
    for _ in range(s.size(2000, 20)):
        atoms = int(torch.randint(12, 32, ()))
        start, end = torch.randint(atoms, (2, atoms + 2))
        edges = torch.stack([torch.cat([start, end]), torch.cat([end, start])])
        graphs.append(Data(x=torch.randint(21, (atoms, 1)), edge_index=edges, edge_attr=torch.randint(4, (edges.shape[1],)), y=torch.randn(1)))
    degrees = torch.bincount(torch.cat([torch.bincount(graph.edge_index[1], minlength=graph.num_nodes) for graph in graphs]), minlength=8)
    model = Molecules(degrees, s.size(72, 8), s.size(4, 1)).to(s.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=adam)
    options, batches = _forever(s, workers)
    stream, sums = batches(GraphLoader(graphs, batch_size=count, shuffle=True, drop_last=True, **options)), [0.0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        data = next(stream).to(s.device, non_blocking=workers)
        optimizer.zero_grad()
        loss = (model(data, None if read else count) - data.y).abs().mean()
        loss.backward()
        optimizer.step()
        if read:
            sums[0] += loss.item() * data.num_graphs

    return step


def _gemma_norm(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, 1.0 + self.weight, self.eps)


def griffin(s: Setup, *, norms: bool = False, **how: Any) -> Step:
    """RecurrentGemma of transformers: its linear recurrence goes word by word."""
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    words = s.size(32_000, 101)
    config = RecurrentGemmaConfig(
        vocab_size=words, hidden_size=s.size(768, 32), lru_width=s.size(768, 32), intermediate_size=s.size(2304, 64), num_hidden_layers=3,
        num_attention_heads=s.size(6, 2), num_key_value_heads=1, use_cache=False,
    )  # fmt: skip
    model = RecurrentGemmaForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "RecurrentGemmaRMSNorm":
            module.forward = MethodType(_gemma_norm, module)
    ids = _tokens(s, 2, 96, words)
    mask = torch.full((ids.shape[1], ids.shape[1]), torch.finfo(torch.float32).min, device=s.device).triu(1)[None, None]
    return inference(s, How(**how), model, {"input_ids": ids, "attention_mask": mask, "use_cache": False})  # type: ignore[dict-item]


def mobile_bert(s: Setup, *, attention: str = "eager", **how: Any) -> Step:
    """Thin layers of many parts, a quarter of those of the public model, on one sentence."""
    from transformers import MobileBertConfig, MobileBertModel

    config = MobileBertConfig(num_hidden_layers=s.size(6, 1), attn_implementation=attention)
    ids = torch.randint(30_522, (1, s.size(128, 8)), device=s.device)
    return inference(s, How(**how), MobileBertModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def ghost(s: Setup, **how: Any) -> Step:
    way = How(**how)
    return inference(s, way, _timm("ghostnet_100"), (_images(s, way, 1, 224, 64)[:1],))


def _generator(dim: int) -> nn.Module:
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, 8 * dim, 4, 1, 0, bias=False), nn.BatchNorm2d(8 * dim), nn.ReLU(True)]
    for wide in (8, 4, 2):
        layers += [nn.ConvTranspose2d(wide * dim, wide * dim // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(wide * dim // 2), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(dim, 3, 4, 2, 1, bias=False), nn.Tanh())


def _critic(dim: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, dim, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
    for wide in (1, 2, 4):
        layers += [nn.Conv2d(wide * dim, 2 * wide * dim, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * wide * dim), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*layers, nn.Conv2d(8 * dim, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def dcgan(s: Setup, *, read: bool = True, adam: bool | None = None, **how: Any) -> Step:
    """PyTorch's example dcgan on 64 faces; five numbers are read for the line that is printed."""
    way, dim, count = How(**how), s.size(64, 8), s.size(64, 2)
    nets = [_generator(dim).to(s.device), _critic(dim).to(s.device)]
    if way.channels_last:
        nets = [net.to(memory_format=torch.channels_last) for net in nets]
    makes, judges = nets
    adams = [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=adam) for net in nets]
    faces = 2 * _images(s, way, 64, 64, 64)[:count] - 1
    line: list[float] = []

    def judged(images: Tensor, label: float) -> tuple[Tensor, Tensor]:
        with _casting(s, way):
            out = judges(images)
            return F.binary_cross_entropy_with_logits(out, torch.full((count,), label, dtype=out.dtype, device=s.device)), out.mean()

    def step() -> None:
        _precision(way)
        judges.zero_grad()
        real, mean = judged(faces, 1.0)
        real.backward()
        said = [mean.item()] if read else []
        with _casting(s, way):
            fake = makes(torch.randn(count, 100, 1, 1, device=s.device))
        fooled, mean = judged(fake.detach(), 0.0)
        fooled.backward()
        said += [mean.item()] if read else []
        adams[1].step()
        makes.zero_grad()
        error, mean = judged(fake, 1.0)
        error.backward()
        said += [mean.item()] if read else []
        adams[0].step()
        line[:] = [*said, (real + fooled).item(), error.item()] if read else said

    return step


def autoformer(s: Setup, *, workers: bool = False, **how: Any) -> Step:
    """Autoformer of transformers on windows of hourly counts: correlations with itself by Fourier transforms."""
    from transformers import AutoformerConfig, AutoformerForPrediction

    lags, past, ahead, count = [1, 2, 3, 24], s.size(96, 24), s.size(24, 6), s.size(64, 4)
    config = AutoformerConfig(
        prediction_length=ahead, context_length=past, lags_sequence=lags, num_time_features=2, d_model=s.size(64, 16), encoder_layers=s.size(2, 1),
        decoder_layers=1, encoder_ffn_dim=s.size(128, 16), decoder_ffn_dim=s.size(128, 16), label_length=past // 2, moving_average=5,
        autocorrelation_factor=1,
    )  # fmt: skip
    windows, longer = s.size(4096, 16), past + max(lags)
    data = TensorDataset(torch.rand(windows, longer), torch.rand(windows, longer, 2), torch.rand(windows, ahead), torch.rand(windows, ahead, 2))
    options, batches = _forever(s, workers)
    stream = batches(DataLoader(data, batch_size=count, shuffle=True, drop_last=True, **options))

    def loss(model: Any) -> Tensor:
        values, times, future, future_times = (tensor.to(s.device, non_blocking=workers) for tensor in next(stream))
        return model(  # type: ignore[no-any-return]
            past_values=values, past_time_features=times, past_observed_mask=torch.ones_like(values), future_values=future,
            future_time_features=future_times,
        ).loss  # fmt: skip

    return training(s, How(**how), AutoformerForPrediction(config), loss, torch.optim.AdamW)


class Turn(nn.Module):
    """PointNet's STN: a matrix for each cloud, near the identity, which the public code makes by NumPy in each call."""

    def __init__(self, size: int, on_gpu: bool) -> None:
        super().__init__()
        self.size, self.on_gpu = size, on_gpu
        self.points = nn.ModuleList([nn.Conv1d(size, 64, 1), nn.Conv1d(64, 128, 1), nn.Conv1d(128, 1024, 1)])
        self.lines = nn.ModuleList([nn.Linear(1024, 512), nn.Linear(512, 256)])
        self.norms, self.last = nn.ModuleList(nn.BatchNorm1d(width) for width in (64, 128, 1024, 512, 256)), nn.Linear(256, size * size)

    def forward(self, x: Tensor) -> Tensor:
        count = len(x)
        for layer, norm in zip(self.points, self.norms, strict=False):
            x = F.relu(norm(layer(x)))
        x = x.max(2)[0]
        for layer, norm in zip(self.lines, self.norms[3:], strict=True):
            x = F.relu(norm(layer(x)))
        if self.on_gpu:
            identity = torch.eye(self.size, device=x.device).view(1, -1)
        else:
            identity = torch.from_numpy(np.eye(self.size).flatten().astype(np.float32)).view(1, -1).repeat(count, 1).to(x.device)
        return (self.last(x) + identity).view(-1, self.size, self.size)


class PointNet(nn.Module):
    def __init__(self, classes: int, on_gpu: bool) -> None:
        super().__init__()
        self.turn, self.turn_features = Turn(3, on_gpu), Turn(64, on_gpu)
        self.points = nn.ModuleList([nn.Conv1d(3, 64, 1), nn.Conv1d(64, 128, 1), nn.Conv1d(128, 1024, 1)])
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in (64, 128, 1024))
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256), nn.Dropout(0.4), nn.BatchNorm1d(256), nn.ReLU(),
            nn.Linear(256, classes), nn.LogSoftmax(1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.bmm(x.transpose(2, 1), self.turn(x)).transpose(2, 1)
        x = F.relu(self.norms[0](self.points[0](x)))
        turned = self.turn_features(x)
        x = torch.bmm(x.transpose(2, 1), turned).transpose(2, 1)
        x = F.relu(self.norms[1](self.points[1](x)))
        return self.head(self.norms[2](self.points[2](x)).max(2)[0]), turned


def point_clouds(s: Setup, *, changed_ahead: bool = False, on_gpu: bool = False, read: bool = True) -> Step:
    """Pointnet_Pointnet2_pytorch's train_classification.py: clouds are thinned, scaled and shifted one by one in NumPy."""
    count, points, draw = s.size(24, 4), s.size(1024, 16), np.random.default_rng(0)
    clouds, labels = draw.standard_normal((count, points, 3)).astype(np.float32), torch.randint(40, (count,))

    def changed() -> Tensor:
        data = clouds.copy()
        for cloud in range(count):
            lost = np.where(draw.random(points) <= draw.random() * 0.875)[0]
            if len(lost):
                data[cloud, lost, :] = data[cloud, 0, :]
        scales, shifts = draw.uniform(0.8, 1.25, count), draw.uniform(-0.1, 0.1, (count, 3))
        for cloud in range(count):
            data[cloud, :, :] *= scales[cloud]
        for cloud in range(count):
            data[cloud, :, :] += shifts[cloud, :]
        return torch.from_numpy(data).transpose(2, 1)

    ahead = [changed() for _ in range(8)] if changed_ahead else []
    model = PointNet(40, on_gpu).to(s.device).train()
    optimizer, turns, right = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4), iter(range(10**9)), [0.0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        x, target = (ahead[next(turns) % len(ahead)] if ahead else changed()).to(s.device), labels.to(s.device)
        guessed, turned = model(x)
        identity = torch.eye(64, device=s.device)[None]
        loss = F.nll_loss(guessed, target) + 1e-3 * torch.linalg.matrix_norm(torch.bmm(turned, turned.transpose(2, 1)) - identity).mean()
        loss.backward()
        optimizer.step()
        if read:
            right[0] = guessed.argmax(1).eq(target).cpu().sum().item() / count

    return step


def rt_detr(s: Setup, **how: Any) -> Step:
    """RT-DETR with ResNet-18 on one picture of 640, without its losses."""
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        layer_type="basic", depths=[s.size(2, 1)] * 4, hidden_sizes=[64, 128, 256, 512], embedding_size=64,
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = RTDetrConfig(
        backbone_config=backbone, backbone=None, use_pretrained_backbone=False, use_timm_backbone=False, encoder_in_channels=[128, 256, 512],
        d_model=s.size(256, 32), encoder_hidden_dim=s.size(256, 32), decoder_in_channels=[s.size(256, 32)] * 3, encoder_ffn_dim=s.size(1024, 32),
        decoder_ffn_dim=s.size(1024, 32), decoder_layers=s.size(3, 1), num_queries=s.size(300, 10), encoder_attention_heads=s.size(8, 2),
        decoder_attention_heads=s.size(8, 2), hidden_expansion=0.5,
    )  # fmt: skip
    way = How(**how)
    return inference(s, way, RTDetrForObjectDetection(config), {"pixel_values": _images(s, way, 1, 640, 64, way.dtype)[:1]})


WORKLOADS = (
    _public(
        "mamba2_prefill", "Mamba-2 of transformers in FP32 reads 2 x 512 words by chunks, without the authors' kernels.", mamba2, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "unfused-norm": {"norms": True}, "graph-candidate": {"graph": True}},
    ),
    _public(
        "esmfold_trunk", "Two blocks of ESMFold's trunk of transformers, FP32, one protein of 256: attention over triangles written out.",
        folding_trunk, {},
        {"precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}, "unfused-attention": {"attention": SDPA}},
    ),
    _public(
        "depth_anything", "Depth Anything of transformers on 8 pictures of 518, FP32: attention over 1370 patches written out.", depth, {},
        {"unfused-attention": {"attention": SDPA}, "precision/tf32": {"tf32": True}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "uvit_latents", "U-ViT on blocks of timm, training in bf16 autocast on 96 latents, attention written out.", u_vit, {"autocast": BF16},
        {"unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "style_transfer", "PyTorch's example fast_neural_style with VGG-16, FP32, NCHW: both losses are read in each step.", style_transfer, {},
        {"precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}, "sync-stall": {"read": False}},
    ),
    _public(
        "bloom_vocabulary", "BLOOM of transformers, training in bf16 on 2 x 1024 words of 250,880, gradients filled with zeros.",
        bloom, {"dtype": BF16, "zero": True},
        {"unfused-elementwise": {"compiled": COMPILED}, "optimizer-foreach": {"optimizer": "fused"}, "grad-zeroing": {"zero": False}},
    ),
    _public(
        "hifigan_vocoder", "HiFi-GAN of transformers makes 4 waves of 64,000 samples, FP32.", vocoder, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "precision": {"autocast": BF16}, "graph-candidate": {"graph": True}},
    ),
    _public(
        "inception_amp", "Inception v3 of torchvision, training in bf16 autocast, NCHW: 64 pictures from pageable memory in each step.",
        inception, {"autocast": BF16},
        {"memcpy": {"pinned": True}, "memory-layout": {"channels_last": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "ast_clips", "The Audio Spectrogram Transformer of transformers, training in bf16 autocast: spectrograms are made in this process.",
        clip_labels, {"autocast": BF16},
        {"data-loading": {"workers": True}, "unfused-attention": {"attention": SDPA}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "olmoe_prefill", "OLMoE of transformers in bf16 reads 1024 words: 32 experts one after the other in each layer.", expert_mixture, {},
        {"launch-gap": {"experts": "grouped_mm"}, "unfused-norm": {"norms": True}, "unfused-attention": {"attention": SDPA}},
    ),
    _public(
        "decision_pieces", "The Decision Transformer of transformers, training in FP32: NumPy joins 64 pieces in each step.", decisions, {},
        {"host-bound": {"batches_ahead": True}, "launch-gap": {"compiled": COMPILED}, "sync-stall": {"read": False}},
    ),
    _public(
        "sasrec_lists", "SASRec of 128 users, training in FP32: goods not bought are drawn one by one in Python.", next_goods, {},
        {"host-bound": {"sampled_ahead": True}, "memcpy": {"on_gpu": True}, "unfused-attention": {"weights": False}},
    ),
    _public(
        "pna_molecules", "PNA of torch_geometric on 128 molecules, training in FP32: batches are joined in this process.", molecules, {},
        {"data-loading": {"workers": True}, "sync-stall": {"read": False}, "optimizer-foreach": {"adam": True}},
    ),
    _public(
        "griffin_scan", "RecurrentGemma of transformers in FP32 reads 2 x 96 words, one after the other in its recurrence.", griffin, {},
        {"graph-candidate": {"graph": True}, "unfused-norm": {"norms": True}, "precision": {"autocast": BF16}},
    ),
    _public(
        "mobilebert_sentence", "MobileBERT of transformers on one sentence in bf16 autocast.", mobile_bert, {"autocast": BF16},
        {"launch-gap": {"compiled": GRAPHS}, "dtype-casts": {"autocast": None, "dtype": BF16}, "unfused-attention": {"attention": SDPA}},
    ),
    _public(
        "ghostnet_single", "GhostNet of timm on one picture, FP32: many small convolutions.", ghost, {},
        {"graph-candidate": {"graph": True}, "precision": {"autocast": BF16}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "dcgan_faces", "PyTorch's example dcgan on 64 pictures of 64, FP32: five numbers are read in each step.", dcgan, {},
        {"sync-stall": {"read": False}, "optimizer-foreach": {"adam": True}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "autoformer_hours", "Autoformer of transformers, training in FP32; windows come one by one from tensors in memory.",
        autoformer, {},
        {"optimizer-foreach": {"optimizer": "fused"}, "data-loading": {"workers": True}, "precision/tf32": {"tf32": True}},
    ),
    _public(
        "pointnet_clouds", "PointNet on 24 clouds, training in FP32: NumPy changes each cloud, identities come from the host.", point_clouds, {},
        {"host-bound": {"changed_ahead": True}, "memcpy": {"on_gpu": True}, "sync-stall": {"read": False}},
    ),
    _public(
        "rtdetr_single", "RT-DETR of transformers on one picture of 640 in bf16 autocast.", rt_detr, {"autocast": BF16},
        {"dtype-casts": {"autocast": None, "dtype": BF16}, "graph-candidate": {"graph": True}, "memory-layout": {"channels_last": True}},
    ),
)  # fmt: skip
