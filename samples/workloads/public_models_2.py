"""More public models of other families: speech, recommenders, detection, a diffusion U-Net. Fixes were chosen by what users try."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step
from .public_models import (
    BF16,
    COMPILED,
    GRAPHS,
    How,
    _graph,
    _images,
    _Output,
    _rms,
    _tokens,
    _vision,
    _workload,
    classifier_inference,
    classifier_training,
    inference,
    training,
)

# Encoders, decoders and sequence to sequence models of transformers.


def distilbert(s: Setup, how: How) -> Step:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    words = s.size(30522, 101)
    config = DistilBertConfig(
        vocab_size=words, n_layers=s.size(6, 1), dim=s.size(768, 32), n_heads=s.size(12, 2), hidden_dim=s.size(3072, 64),
        attn_implementation=how.attention,
    )  # fmt: skip
    ids, labels = _tokens(s, 32, 128, words), torch.randint(2, (s.size(32, 2),), device=s.device)
    return training(s, how, DistilBertForSequenceClassification(config), lambda model: model(input_ids=ids, labels=labels).loss)


def with_fused_rms(model: nn.Module) -> nn.Module:
    """Every RMS norm of a Llama-like model by the fused function."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = _rms.__get__(module)
    return model


def qwen2(s: Setup, how: How) -> Step:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    words = s.size(151936, 101)
    config = Qwen2Config(
        vocab_size=words, num_hidden_layers=s.size(4, 1), hidden_size=s.size(896, 32), intermediate_size=s.size(4864, 64),
        num_attention_heads=s.size(14, 4), num_key_value_heads=s.size(2, 2), attn_implementation=how.attention, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    ids = _tokens(s, 4, 1024, words)
    return training(s, how, with_fused_rms(model) if how.fused_norms else model, lambda m: m(input_ids=ids, labels=ids, use_cache=False).loss)


def bart(s: Setup, how: How) -> Step:
    from transformers import BartConfig, BartForConditionalGeneration

    words = s.size(how.vocabulary or 50265, 101)
    config = BartConfig(
        vocab_size=words, d_model=s.size(768, 32), encoder_layers=s.size(3, 1), decoder_layers=s.size(3, 1),
        encoder_attention_heads=s.size(12, 2), decoder_attention_heads=s.size(12, 2), encoder_ffn_dim=s.size(3072, 64),
        decoder_ffn_dim=s.size(3072, 64), attn_implementation=how.attention,
    )  # fmt: skip
    known = s.size(50265, 101)
    ids, labels = _tokens(s, 16, 512, known), _tokens(s, 16, 128, known)
    return training(s, how, BartForConditionalGeneration(config), lambda model: model(input_ids=ids, labels=labels, use_cache=False).loss)


def albert(s: Setup, how: How) -> Step:
    from transformers import AlbertConfig, AlbertModel

    words = s.size(30000, 101)
    config = AlbertConfig(
        vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(12, 2), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), attn_implementation=how.attention,
    )  # fmt: skip
    return inference(s, how, AlbertModel(config), {"input_ids": _tokens(s, 2, 48, words)})


# Segmentation and detection of torchvision.


def lraspp(s: Setup, how: How) -> Step:
    model = _Output(_vision("lraspp_mobilenet_v3_large", weights_backbone=None))
    images = _images(s, how, 16, 320, dtype=how.dtype)
    labels = torch.randint(21, (images.shape[0], *images.shape[2:]), device=s.device)
    return training(s, how, model, lambda model: F.cross_entropy(model(images), labels), torch.optim.SGD, momentum=0.9)


def retinanet(s: Setup, how: How) -> Step:
    side = s.size(640, 64)
    model = _vision("retinanet_resnet50_fpn", weights_backbone=None, min_size=side, max_size=side)
    return inference(s, how, model, (list(_images(s, how, 4, 640)),))  # type: ignore[arg-type]


# Speech of torchaudio.


def conformer(s: Setup, how: How) -> Step:
    """The encoder alone, each frame classified as one of 256 pieces of words."""
    from torchaudio.models import Conformer

    dim, frames, batch = s.size(256, 16), s.size(500, 20), s.size(16, 2)
    model = Conformer(dim, num_heads=4, ffn_dim=4 * dim, num_layers=s.size(4, 1), depthwise_conv_kernel_size=31, dropout=0.1)
    sound, lengths = torch.randn(batch, frames, dim, device=s.device), torch.full((batch,), frames, device=s.device)
    labels = torch.randint(dim, (batch, frames), device=s.device)
    return training(s, how, model, lambda model: F.cross_entropy(model(sound, lengths)[0].transpose(1, 2), labels))


def ctc(s: Setup, batch: int, frames: int, classes: int) -> Callable[[Tensor], Tensor]:
    """The loss of log-probabilities (frames, batch, classes) against sentences of a tenth as many letters."""
    letters = frames // 10
    targets = torch.randint(1, classes, (batch, letters), device=s.device)
    return lambda scores: F.ctc_loss(scores, targets, (len(scores),) * batch, (letters,) * batch)


def deepspeech(s: Setup, how: How) -> Step:
    from torchaudio.models import DeepSpeech

    batch, frames = s.size(16, 2), s.size(200, 20)
    sound = torch.randn(batch, 1, frames, s.size(494, 8), device=s.device)
    loss = ctc(s, batch, frames, 40)
    return training(s, how, DeepSpeech(sound.shape[-1], s.size(1024, 16)), lambda model: loss(model(sound).transpose(0, 1)), torch.optim.Adam)


# A diffusion model's U-Net, of the blocks that all of them share.


class _Residual(nn.Module):
    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.time = nn.Linear(time, outside)
        self.norm2, self.conv2 = nn.GroupNorm(8, outside), nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class _PixelAttention(nn.Module):
    def __init__(self, dim: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm, self.qkv, self.out = nn.GroupNorm(8, dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, dim, height, width = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).view(batch, height * width, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(dim // self.heads), -1) @ v
        return x + self.out(y.transpose(1, 2).reshape(batch, height * width, dim)).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """Three resolutions of a latent picture of four channels, attention at the lowest, as diffusion models have it."""

    def __init__(self, dim: int, heads: int, fused: bool) -> None:
        super().__init__()
        widths, time = (dim, 2 * dim, 4 * dim), 4 * dim
        self.dim, self.enter = dim, nn.Conv2d(4, dim, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(dim, time), nn.SiLU(), nn.Linear(time, time))
        self.down = nn.ModuleList(_Residual(widths[max(0, n - 1)], width, time) for n, width in enumerate(widths))
        self.shrink = nn.ModuleList(nn.Conv2d(width, width, 3, stride=2, padding=1) for width in widths[:-1])
        self.middle = nn.ModuleList([_Residual(widths[-1], widths[-1], time), _Residual(widths[-1], widths[-1], time)])
        self.attention = _PixelAttention(widths[-1], heads, fused)
        self.up = nn.ModuleList(_Residual(2 * width, widths[max(0, n - 1)], time) for n, width in enumerate(widths))
        self.grow = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in widths[:-1])
        self.norm, self.leave = nn.GroupNorm(8, dim), nn.Conv2d(dim, 4, 3, padding=1)

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(self.dim // 2, device=x.device) * (-math.log(1e4) / (self.dim // 2)))
        angles = when[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype))
        x, kept = self.enter(x), []
        for n, block in enumerate(self.down):
            x = block(x, time)
            kept.append(x)
            if n < len(self.shrink):
                x = self.shrink[n](x)
        x = self.middle[1](self.attention(self.middle[0](x, time)), time)
        for n in reversed(range(len(self.up))):
            x = self.up[n](torch.cat([x, kept[n]], 1), time)
            if n:
                x = self.grow[n - 1](F.interpolate(x, scale_factor=2.0))
        return self.leave(F.silu(self.norm(x)))


def unet(batch: int, side: int, dim: int, s: Setup, how: How) -> Step:
    """One step of taking noise away."""
    latent = torch.randn(s.size(batch, 1), 4, s.size(side, 8), s.size(side, 8), device=s.device, dtype=how.dtype)
    latent = latent.contiguous(memory_format=torch.channels_last) if how.channels_last else latent
    when = torch.full((len(latent),), 500.0, device=s.device)
    return inference(s, how, UNet(s.size(dim, 16), s.size(8, 2), how.attention == "sdpa"), (latent, when))


# Recommenders and graphs.


class Recommender(nn.Module):
    """Bags of categories beside dense numbers; pairs of the embeddings' products, then a multilayer perceptron, as in DLRM."""

    def __init__(self, tables: int, rows: int, dim: int, dense: int, hidden: int, pairs: bool = True) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU())
        self.pairs = pairs
        inside = dim + (tables + 1) * tables // 2 if pairs else (tables + 1) * dim
        self.top = nn.Sequential(nn.Linear(inside, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1))
        self.register_buffer("picked", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, bags: Tensor) -> Tensor:
        """bags: (table, example, category)."""
        low = self.bottom(dense)
        features = torch.stack([low, *(table(bag).to(low.dtype) for table, bag in zip(self.tables, bags, strict=True))], 1)
        if not self.pairs:
            return self.top(features.flatten(1)).squeeze(1)
        products = (features @ features.transpose(1, 2))[:, self.picked[0], self.picked[1]]
        return self.top(torch.cat([low, products], 1)).squeeze(1)


def recommender(batch: int, tables: int, rows: int, dim: int, hidden: int, pairs: bool, s: Setup, how: How) -> Step:
    count, rows, tables = s.size(batch, 4), s.size(rows, 50), s.size(tables, 3)
    dense = torch.randn(count, 13, device=s.device)
    bags = torch.randint(rows, (tables, count, 4), device=s.device)
    clicked = torch.randint(2, (count,), device=s.device).float()
    model = Recommender(tables, rows, s.size(dim, 8), 13, s.size(hidden, 16), pairs)
    return training(s, how, model, lambda m: F.binary_cross_entropy_with_logits(m(dense, bags).float(), clicked), torch.optim.Adam)


def edge_cnn(s: Setup, how: How) -> Step:
    from torch_geometric.nn.models import EdgeCNN

    x, edge, labels = _graph(s, 20_000, 320_000, 64)
    model = EdgeCNN(x.shape[1], s.size(128, 16), 3, 7)
    return training(s, how, model, lambda model: F.cross_entropy(model(x, edge), labels), torch.optim.Adam)


def _named(name: str) -> Callable[[Setup], Any]:
    return lambda _: _vision(name)


HALF, SDPA = torch.float16, "sdpa"

WORKLOADS = (
    _workload(
        "distilbert_amp", "DistilBERT of transformers, a classifier trained in bf16 autocast on 32 x 128 words.", distilbert,
        How(attention=SDPA, autocast=BF16),
        dtype_casts=How(attention=SDPA, dtype=BF16), unfused_elementwise=How(attention=SDPA, autocast=BF16, compiled=COMPILED),
        optimizer_foreach=How(attention=SDPA, autocast=BF16, optimizer="fused"),
    ),
    _workload(
        "qwen2_bf16", "Qwen2 of transformers, training in bf16 on 4 x 1024 words of 151,936, attention and norms written out.", qwen2,
        How(dtype=BF16),
        unfused_attention=How(dtype=BF16, attention=SDPA), unfused_norm=How(dtype=BF16, fused_norms=True),
        unfused_elementwise=How(dtype=BF16, compiled=COMPILED), optimizer_foreach=How(dtype=BF16, optimizer="fused"),
    ),
    _workload(
        "bart_tf32", "BART of transformers, training with TF32 products, attention written out, 50,265 words.", bart, How(tf32=True),
        precision=How(tf32=True, autocast=BF16), unfused_attention=How(tf32=True, attention=SDPA),
        gemm_alignment=How(tf32=True, vocabulary=50304), optimizer_foreach=How(tf32=True, optimizer="fused"),
    ),
    _workload(
        "albert_serving", "ALBERT base of transformers in fp16 on two short sentences, attention written out.", albert, How(dtype=HALF),
        launch_gap=How(dtype=HALF, compiled=GRAPHS), unfused_attention=How(dtype=HALF, attention=SDPA),
        unfused_elementwise=How(dtype=HALF, compiled=COMPILED),
    ),
    _workload(
        "densenet_fp32", "DenseNet-121 of torchvision, training in FP32 on 32 pictures, NCHW.",
        partial(classifier_training, _named("densenet121"), 32, 224, 64), How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), memory_layout=How(channels_last=True),
        optimizer_foreach=How(optimizer="fused"),
    ),
    _workload(
        "shufflenet_single", "ShuffleNetV2 of torchvision on two pictures, FP32.", partial(classifier_inference, _named("shufflenet_v2_x1_0"), 2, 224, 64),
        How(),
        launch_gap=How(compiled=GRAPHS), graph_candidate=How(graph=True), precision=How(autocast=BF16), memory_layout=How(channels_last=True),
    ),
    _workload(
        "lraspp_amp", "LR-ASPP of torchvision on MobileNetV3, training in bf16 autocast on 16 pictures of 320, NCHW.", lraspp, How(autocast=BF16),
        memory_layout=How(autocast=BF16, channels_last=True), optimizer_foreach=How(autocast=BF16, optimizer="fused"), dtype_casts=How(dtype=BF16),
    ),
    _workload(
        "retinanet_fp32", "RetinaNet of torchvision, detecting in 4 pictures of 640, FP32.", retinanet, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), memory_layout=How(channels_last=True),
    ),
    _workload(
        "conformer_fp32", "Conformer of torchaudio, training in FP32 on 16 x 500 frames.", conformer, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_elementwise=How(compiled=COMPILED),
        optimizer_foreach=How(optimizer="fused"),
    ),
    _workload(
        "deepspeech_fp32", "DeepSpeech of torchaudio, training in FP32: a recurrent layer of 200 frames both ways.", deepspeech, How(),
        precision=How(autocast=HALF), precision__tf32=How(tf32=True), optimizer_foreach=How(optimizer="fused"),
    ),
    _workload(
        "unet_fp16", "A diffusion U-Net in fp16 on 16 latents of 64, NCHW, attention written out over 256 pixels.", partial(unet, 16, 64, 192),
        How(dtype=HALF),
        memory_layout=How(dtype=HALF, channels_last=True), unfused_attention=How(dtype=HALF, attention=SDPA),
        unfused_elementwise=How(dtype=HALF, compiled=COMPILED), graph_candidate=How(dtype=HALF, graph=True),
    ),
    _workload(
        "dlrm_fp32", "A DLRM of 26 tables of 100,000 rows with dense gradients filled with zeros, Adam, FP32.",
        partial(recommender, 4096, 26, 100_000, 64, 512, True), How(zero=True),
        optimizer_foreach=How(zero=True, optimizer="fused"), grad_zeroing=How(), precision=How(zero=True, autocast=BF16),
        precision__tf32=How(zero=True, tf32=True),
    ),
    _workload(
        "edgecnn_fp32", "EdgeCNN of torch_geometric on a graph of 320,000 edges, training in FP32.", edge_cnn, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_elementwise=How(compiled=COMPILED),
        optimizer_foreach=How(optimizer="fused"),
    ),
)  # fmt: skip
