"""Public models whose fixes were timed after advisor's rules were last changed; at least a quarter of the fixes are expected to gain nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Setup, Step
from .public_models import (
    BF16,
    COMPILED,
    GRAPHS,
    How,
    _graph,
    _images,
    _timm,
    _tokens,
    _vision,
    _workload,
    classifier_inference,
    classifier_training,
    inference,
    training,
)
from .public_models_2 import HALF, SDPA, ctc, recommender, unet, with_fused_rms

# Text, of transformers.


def mistral(s: Setup, how: How) -> Step:
    """Reading a prompt, without keeping keys and values."""
    from transformers import MistralConfig, MistralForCausalLM

    words = s.size(32000, 101)
    config = MistralConfig(
        vocab_size=words, num_hidden_layers=s.size(4, 1), hidden_size=s.size(2048, 32), intermediate_size=s.size(7168, 64),
        num_attention_heads=s.size(16, 4), num_key_value_heads=s.size(4, 2), attn_implementation=how.attention, sliding_window=None,
    )  # fmt: skip
    model = MistralForCausalLM(config)
    inputs = {"input_ids": _tokens(s, 2, 2048, words), "use_cache": False, "logits_to_keep": 1}
    return inference(s, how, with_fused_rms(model) if how.fused_norms else model, inputs)  # type: ignore[arg-type]


def opt(s: Setup, how: How) -> Step:
    from transformers import OPTConfig, OPTForCausalLM

    words = s.size(50272, 101)
    config = OPTConfig(
        vocab_size=words, num_hidden_layers=s.size(4, 1), hidden_size=s.size(768, 32), ffn_dim=s.size(3072, 64),
        num_attention_heads=s.size(12, 2), word_embed_proj_dim=s.size(768, 32), attn_implementation=how.attention,
    )  # fmt: skip
    ids = _tokens(s, 8, 512, words)
    return training(s, how, OPTForCausalLM(config), lambda model: model(input_ids=ids, labels=ids, use_cache=False).loss)


def electra(s: Setup, how: How) -> Step:
    from transformers import ElectraConfig, ElectraForSequenceClassification

    words = s.size(30522, 101)
    config = ElectraConfig(
        vocab_size=words, embedding_size=s.size(128, 16), hidden_size=s.size(256, 32), num_hidden_layers=s.size(6, 1),
        num_attention_heads=s.size(4, 2), intermediate_size=s.size(1024, 64), attn_implementation=how.attention,
    )  # fmt: skip
    ids, labels = _tokens(s, 32, 128, words), torch.randint(2, (s.size(32, 2),), device=s.device)
    return training(s, how, ElectraForSequenceClassification(config), lambda model: model(input_ids=ids, labels=labels).loss)


def marian(s: Setup, how: How) -> Step:
    """A short sentence is read and its translation's words are scored."""
    from transformers import MarianConfig, MarianMTModel

    words = s.size(58101, 101)
    config = MarianConfig(
        vocab_size=words, d_model=s.size(512, 32), encoder_layers=s.size(4, 1), decoder_layers=s.size(4, 1), encoder_attention_heads=s.size(8, 2),
        decoder_attention_heads=s.size(8, 2), encoder_ffn_dim=s.size(2048, 64), decoder_ffn_dim=s.size(2048, 64), pad_token_id=words - 1,
        decoder_start_token_id=words - 1, attn_implementation=how.attention,
    )  # fmt: skip
    ids, labels = (torch.randint(words - 1, (1, s.size(32, 8)), device=s.device) for _ in range(2))
    return inference(s, how, MarianMTModel(config), {"input_ids": ids, "decoder_input_ids": labels, "use_cache": False})  # type: ignore[dict-item]


# Pictures and films.


def dinov2(s: Setup, how: How) -> Step:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(
        num_hidden_layers=s.size(6, 1), hidden_size=s.size(768, 32), num_attention_heads=s.size(12, 2), image_size=s.size(224, 56),
        attn_implementation=how.attention,
    )  # fmt: skip
    return inference(s, how, Dinov2Model(config), {"pixel_values": _images(s, how, 64, 224, 56, how.dtype)})


def r3d(s: Setup, how: How) -> Step:
    films = torch.rand(s.size(8, 1), 3, s.size(16, 8), s.size(112, 32), s.size(112, 32), device=s.device)
    return inference(s, how, _vision("r3d_18"), (films,))


def deit(s: Setup, how: How) -> Step:
    return classifier_training(lambda s: _timm("deit_tiny_patch16_224", depth=s.size(6, 1), img_size=s.size(224, 64)), 128, 224, 64, s, how)


def _convmixer(s: Setup) -> Any:
    """A quarter of the blocks of convmixer_768_32."""
    from timm.models.convmixer import ConvMixer

    return ConvMixer(dim=s.size(768, 32), depth=s.size(8, 1), kernel_size=7, patch_size=7, act_layer=torch.nn.ReLU)


# Sound, of torchaudio.


def wav2letter(s: Setup, how: How) -> Step:
    from torchaudio.models import Wav2Letter

    batch, frames = s.size(16, 2), s.size(800, 64)
    sound = torch.randn(batch, 80, frames, device=s.device)
    loss = ctc(s, batch, frames // 2, 40)
    return training(s, how, Wav2Letter(40, "mfcc", 80), lambda model: loss(model(sound).permute(2, 0, 1)), torch.optim.SGD, momentum=0.9)


def tasnet(s: Setup, how: How) -> Step:
    """Two speakers are parted; 8 of the 24 blocks of the base model."""
    from torchaudio.models import ConvTasNet

    batch, samples = s.size(8, 1), s.size(24_000, 800)
    model = ConvTasNet(msk_num_layers=s.size(4, 1), msk_num_stacks=s.size(2, 1), msk_activate="relu")
    mixed, parts = torch.randn(batch, 1, samples, device=s.device), torch.randn(batch, 2, samples, device=s.device)
    return training(s, how, model, lambda model: F.l1_loss(model(mixed), parts), torch.optim.Adam)


def tacotron(s: Setup, how: How) -> Step:
    """A few frames of a spectrogram, one after the other, each with the true one before it."""
    from torchaudio.models import Tacotron2

    batch, letters, frames = s.size(16, 2), s.size(60, 6), s.size(24, 4)
    tokens, mel = torch.randint(148, (batch, letters), device=s.device), torch.randn(batch, 80, frames, device=s.device)
    letters_each, frames_each = (torch.full((batch,), count, device=s.device) for count in (letters, frames))
    stop = torch.zeros(batch, frames, device=s.device)

    def loss(model: Any) -> Tensor:
        first, last, gate, _ = model(tokens, letters_each, mel, frames_each)
        return F.mse_loss(first, mel) + F.mse_loss(last, mel) + F.binary_cross_entropy_with_logits(gate, stop)

    return training(s, how, Tacotron2(), loss, torch.optim.Adam)


# Recommending on a graph.


def lightgcn(s: Setup, how: How) -> Step:
    from torch_geometric.nn.models import LightGCN

    x, edge, _ = _graph(s, 100_000, 1_500_000, 1)
    better, worse = torch.randint(len(x), (2, 2, s.size(8192, 16)), device=s.device)
    pairs = torch.cat([better, worse], 1)

    def loss(model: Any) -> Tensor:
        high, low = model(edge, pairs).chunk(2)
        return -F.logsigmoid(high - low).mean()

    return training(s, how, LightGCN(len(x), s.size(64, 16), 3), loss, torch.optim.Adam)


RESNEXT = partial(classifier_inference, lambda _: _vision("resnext50_32x4d"), 64, 224, 64)
CONVMIXER = partial(classifier_inference, _convmixer, 64, 224, 64)
SMALL_UNET = partial(unet, 1, 32, 64)
WIDE_DEEP = partial(recommender, 512, 20, 10_000, 32, 256, False)

WORKLOADS = (
    _workload(
        "mistral_prefill", "Mistral of transformers in bf16 reads 2 x 2048 words, attention and norms written out.", mistral, How(dtype=BF16),
        unfused_attention=How(dtype=BF16, attention=SDPA), unfused_norm=How(dtype=BF16, fused_norms=True),
        unfused_elementwise=How(dtype=BF16, compiled=COMPILED),
    ),
    _workload(
        "opt_fp32", "OPT of transformers, training in FP32, 50,272 words, the loss read in each step.", opt, How(read_loss=True),
        precision=How(read_loss=True, autocast=BF16), precision__tf32=How(read_loss=True, tf32=True),
        unfused_attention=How(read_loss=True, attention=SDPA), optimizer_foreach=How(read_loss=True, optimizer="fused"), sync_stall=How(),
    ),
    _workload(
        "electra_scaler", "ELECTRA small of transformers, training in fp16 with a GradScaler on 32 x 128 words.", electra,
        How(attention=SDPA, autocast=HALF, scaler=True),
        amp_scaler_sync=How(attention=SDPA, autocast=HALF, scaler=True, optimizer="fused"),
        amp_scaler_sync__bf16=How(attention=SDPA, autocast=BF16),
        launch_gap=How(attention=SDPA, autocast=HALF, scaler=True, compiled=COMPILED),
    ),
    _workload(
        "marian_sentence", "Marian of transformers, FP32, one sentence of 32 words, attention written out.", marian, How(),
        launch_gap=How(compiled=GRAPHS), precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_attention=How(attention=SDPA),
    ),
    _workload(
        "dinov2_bf16", "DINOv2 of transformers in bf16 on 64 pictures, attention written out over 257 patches.", dinov2, How(dtype=BF16),
        unfused_attention=How(dtype=BF16, attention=SDPA), unfused_elementwise=How(dtype=BF16, compiled=COMPILED),
        memory_layout=How(dtype=BF16, channels_last=True),
    ),
    _workload(
        "r3d_fp32", "A 3D ResNet-18 of torchvision on 8 films, FP32.", r3d, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_elementwise=How(compiled=COMPILED), graph_candidate=How(graph=True),
    ),
    _workload(
        "resnext_fp16", "ResNeXt-50 of torchvision in fp16 on 64 pictures, NCHW: convolutions of 32 groups.", RESNEXT, How(dtype=HALF),
        memory_layout=How(dtype=HALF, channels_last=True), unfused_elementwise=How(dtype=HALF, compiled=COMPILED),
        graph_candidate=How(dtype=HALF, graph=True),
    ),
    _workload(
        "convmixer_bf16", "ConvMixer of timm in bf16 on 64 pictures, NCHW: depthwise convolutions of 7 x 7.", CONVMIXER, How(dtype=BF16),
        memory_layout=How(dtype=BF16, channels_last=True), unfused_elementwise=How(dtype=BF16, compiled=COMPILED),
        graph_candidate=How(dtype=BF16, graph=True),
    ),
    _workload(
        "deit_amp", "DeiT tiny of timm, training in bf16 autocast on 128 pictures.", deit, How(autocast=BF16),
        unfused_elementwise=How(autocast=BF16, compiled=COMPILED), optimizer_foreach=How(autocast=BF16, optimizer="fused"),
        dtype_casts=How(dtype=BF16),
    ),
    _workload(
        "unet_single", "A small diffusion U-Net on one latent of 32, FP32, attention written out over 64 pixels.", SMALL_UNET, How(),
        launch_gap=How(compiled=GRAPHS), graph_candidate=How(graph=True), precision=How(autocast=BF16), memory_layout=How(channels_last=True),
        unfused_attention=How(attention=SDPA),
    ),
    _workload(
        "wav2letter_fp32", "Wav2Letter of torchaudio, training in FP32 on 16 x 800 frames: convolutions in one dimension.", wav2letter, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_elementwise=How(compiled=COMPILED),
        optimizer_foreach=How(optimizer="fused"),
    ),
    _workload(
        "tasnet_fp32", "Conv-TasNet of torchaudio, training in FP32 on 3 s of two speakers: norms over whole clips.", tasnet, How(),
        precision=How(autocast=BF16), precision__tf32=How(tf32=True), unfused_elementwise=How(compiled=COMPILED),
        optimizer_foreach=How(optimizer="fused"),
    ),
    _workload(
        "tacotron_fp32", "Tacotron 2 of torchaudio, training in FP32: the decoder goes frame by frame.", tacotron, How(),
        precision=How(autocast=HALF), precision__tf32=How(tf32=True), optimizer_foreach=How(optimizer="fused"),
    ),
    _workload(
        "lightgcn_fp32", "LightGCN of torch_geometric on 1.5 million edges, training in FP32 with Adam.", lightgcn, How(),
        precision=How(autocast=BF16), unfused_elementwise=How(compiled=COMPILED), optimizer_foreach=How(optimizer="fused"),
    ),
    _workload(
        "widedeep_small", "A recommender of 20 small tables on 512 examples, gradients filled with zeros, Adam, FP32.", WIDE_DEEP, How(zero=True),
        launch_gap=How(zero=True, compiled=COMPILED), optimizer_foreach=How(zero=True, optimizer="fused"), precision=How(zero=True, autocast=BF16),
        grad_zeroing=How(),
    ),
)  # fmt: skip
