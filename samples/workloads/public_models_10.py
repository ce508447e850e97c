"""Public models of languages, clips, papers and sales, each fix being what its rule's advice says, by an author who has not read the rules.

About a third of the fixes are expected to gain nothing: they are what people try first on such a model.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, GRAPHS, How, _call, _casting, _images, _placed, _precision, _timm, _tokens, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public
from .public_models_6 import _forever, _root_mean_square

# Bound by kernels.


def mbart(s: Setup, **how: Any) -> Step:
    """mBART learns to translate short sentences; its 250,027 words, of 25 languages, are most of it."""
    from transformers import MBartConfig, MBartForConditionalGeneration

    way, spoken = How(**how), s.size(250_027, 101)
    config = MBartConfig(
        vocab_size=s.size(way.vocabulary or spoken, 104 if way.vocabulary else spoken), d_model=s.size(1024, 32), encoder_layers=s.size(3, 1),
        decoder_layers=s.size(3, 1), encoder_ffn_dim=s.size(4096, 64), decoder_ffn_dim=s.size(4096, 64), encoder_attention_heads=s.size(16, 2),
        decoder_attention_heads=s.size(16, 2), attn_implementation=way.attention, use_cache=False,
    )  # fmt: skip
    ids, labels = _tokens(s, 24, 64, spoken), _tokens(s, 24, 64, spoken)
    mask = torch.ones_like(ids)
    with s.device:
        model = MBartForConditionalGeneration(config)
    return training(s, way, model, lambda model: model(input_ids=ids, attention_mask=mask, labels=labels).loss)


def inception_next(s: Setup, **how: Any) -> Step:
    """InceptionNeXt: a part of the channels passes a square, a wide and a high depthwise convolution, the rest passes none."""
    way = How(**how)
    model = _timm("inception_next_atto" if s.tiny else "inception_next_tiny", num_classes=200, drop_path_rate=0.1)
    images, labels = _images(s, way, 64, 224, 64), torch.randint(200, (s.size(64, 2),), device=s.device)
    return training(s, way, model, lambda model: F.cross_entropy(model(images), labels, label_smoothing=0.1), weight_decay=0.05)


def _sdpa_of_timesformer(self: Any, hidden_states: Tensor, output_attentions: bool = False) -> tuple[Tensor]:
    batch, length, width = hidden_states.shape
    q, k, v = self.qkv(hidden_states).view(batch, length, 3, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4)
    return (F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2).reshape(batch, length, width),)


def timesformer(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """TimeSformer names what is done in eight clips: words see those of the same place, then those of the same moment."""
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    way, frames, side = How(**how), s.size(8, 2), s.size(224, 32)
    config = TimesformerConfig(
        image_size=side, num_frames=frames, hidden_size=s.size(768, 32), num_hidden_layers=s.size(8, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), num_labels=400,
    )  # fmt: skip
    model = _placed(s, way, TimesformerForVideoClassification(config)).eval()
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "TimesformerSelfAttention":
            module.forward = MethodType(_sdpa_of_timesformer, module)
    clips = torch.rand(s.size(8, 2), frames, 3, side, side)
    loader = Prefetcher([(s.pin(clips),)], s) if pinned else None
    seen = torch.empty(clips.shape, device=s.device, dtype=way.dtype)

    @torch.no_grad()
    def named() -> Tensor:
        return model(pixel_values=seen).logits.argmax(-1)  # type: ignore[no-any-return]

    run = capture(named, s) if way.graph else named

    @torch.no_grad()
    def step() -> object:
        _precision(way)
        seen.copy_(loader.next()[0] if loader else clips.to(s.device))
        return run()

    return step


def sgformer(s: Setup, *, cached: bool = False, numbered: bool = False, **how: Any) -> Step:
    """SGFormer sorts papers by field: linear attention of all nodes beside a graph convolution, on the whole graph."""
    from torch_geometric.nn.models import SGFormer

    way, nodes, edges, features, fields = How(**how), s.size(169_343, 60), s.size(1_166_243, 240), s.size(128, 8), s.size(40, 4)
    x, y = torch.randn(nodes, features, device=s.device), torch.randint(fields, (nodes,), device=s.device)
    one_way = torch.randint(nodes, (2, edges), device=s.device)
    edge = torch.cat([one_way, one_way.flip(0)], 1)
    owner = torch.zeros(nodes, dtype=torch.long, device=s.device)  # one graph
    known = torch.rand(nodes, device=s.device) < 0.54
    picked = known.nonzero()[:, 0] if numbered else known
    model = SGFormer(features, s.size(128, 16), fields, trans_num_layers=1, gnn_num_layers=3)
    for conv in model.graph_conv.convs:
        conv.cached = cached
    return training(s, way, model, lambda model: F.nll_loss(model(x, edge, owner)[picked], y[picked]), torch.optim.Adam, weight_decay=5e-4)


# Bound by the host, or by both.


class Utterances(Dataset[tuple[Tensor, Tensor]]):
    """Stored waves; as each is read a piece of it becomes the logarithm of a spectrum, and some of that is masked."""

    def __init__(self, count: int, frames: int, bins: int, words: int) -> None:
        self.count, self.frames, self.bins, self.words = count, frames, bins, words
        self.waves = [torch.randn(160 * frames + 8000) / 10 for _ in range(16)]
        self.window, self.filters = torch.hann_window(400), torch.rand(bins, 257)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        start = int(torch.randint(8000, ()))
        wave = self.waves[at % len(self.waves)][start : start + 160 * (self.frames - 1)]
        power = torch.stft(wave, 512, 160, 400, self.window, return_complex=True).abs() ** 2
        heard = (self.filters @ power + 1e-6).log().T
        heard = (heard - heard.mean(0)) / heard.std(0)
        masked = int(torch.randint(self.frames * 9 // 10, ()))
        heard[masked : masked + self.frames // 10] = 0
        return heard, torch.randint(self.words - 1, (self.frames // 24 + 1,))


def parakeet(s: Setup, *, workers: bool = False, **how: Any) -> Step:
    """Parakeet, a fast Conformer, learns to write speech down: relative places in attention, CTC over pieces of words."""
    from transformers import ParakeetCTCConfig, ParakeetEncoderConfig, ParakeetForCTC

    way, words, bins = How(**how), s.size(1025, 33), s.size(80, 16)
    encoder = ParakeetEncoderConfig(
        hidden_size=s.size(1024, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(8, 2), intermediate_size=s.size(4096, 64),
        subsampling_conv_channels=s.size(256, 8), num_mel_bins=bins, layerdrop=0.0,
    )  # fmt: skip
    config = ParakeetCTCConfig(encoder_config=encoder, vocab_size=words, pad_token_id=words - 1, attn_implementation=way.attention)
    options, batches = _forever(s, workers and s.cuda)
    data = Utterances(s.size(1 << 14, 64), s.size(1200, 96), bins, words)
    stream = batches(DataLoader(data, s.size(8, 2), shuffle=True, drop_last=True, **options))

    def loss(model: Any) -> Tensor:
        heard, labels = (part.to(s.device, non_blocking=workers) for part in next(stream))
        mask = torch.ones(heard.shape[:2], dtype=torch.long, device=s.device)
        return model(input_features=heard, attention_mask=mask, labels=labels).loss  # type: ignore[no-any-return]

    return training(s, way, ParakeetForCTC(config), loss)


def deformable_detr(s: Setup, *, pinned: bool = False, packed: bool = False, **how: Any) -> Step:
    """Deformable DETR finds things in the pictures that a processor has prepared; what is likely enough is listed, picture by picture."""
    from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection, ResNetConfig

    way, count, high, wide = How(**how), s.size(2, 2), s.size(800, 64), s.size(1056, 64)
    trunk = ResNetConfig(
        embedding_size=s.size(64, 8), hidden_sizes=[s.size(256, 8), s.size(512, 16), s.size(1024, 16), s.size(2048, 32)],
        depths=[s.size(depth, 1) for depth in (3, 4, 6, 3)], layer_type="bottleneck", out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = DeformableDetrConfig(
        backbone_config=trunk, d_model=s.size(256, 32), encoder_layers=s.size(6, 1), decoder_layers=s.size(6, 2), encoder_ffn_dim=s.size(1024, 32),
        decoder_ffn_dim=s.size(1024, 32), encoder_attention_heads=s.size(8, 2), decoder_attention_heads=s.size(8, 2), num_queries=s.size(300, 20),
        num_labels=91, disable_custom_kernels=True,
    )  # fmt: skip
    model = _placed(s, way, DeformableDetrForObjectDetection(config)).eval()
    pictures = torch.randn(count, 3, high, wide)
    loader = Prefetcher([(s.pin(pictures),)], s) if pinned else None
    scale = torch.tensor([wide, high, wide, high], device=s.device)

    @torch.no_grad()
    def step() -> list[dict[str, Any]]:
        _precision(way)
        images = loader.next()[0] if loader else pictures.to(s.device)
        if way.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with _casting(s, way):
            out = model(pixel_values=images)
        scores, places = out.logits.float().sigmoid().flatten(1).topk(100, 1)
        labels, centres = places % config.num_labels, out.pred_boxes.float().gather(1, (places // config.num_labels)[..., None].expand(-1, -1, 4))
        boxes = torch.cat([centres[..., :2] - centres[..., 2:] / 2, centres[..., :2] + centres[..., 2:] / 2], -1) * scale
        if packed:
            rows = torch.cat([scores[..., None], labels[..., None], boxes], -1).tolist()
            likely = [[row for row in picture if row[0] > 0.5] for picture in rows]
            return [
                {"scores": [row[0] for row in found], "labels": [int(row[1]) for row in found], "boxes": [row[2:] for row in found]} for found in likely
            ]
        listed = []
        for score, label, box in zip(scores, labels, boxes, strict=True):
            keep = score > 0.5
            listed.append({"scores": score[keep].tolist(), "labels": label[keep].tolist(), "boxes": box[keep].tolist()})
        return listed

    return step


def timesfm(s: Setup, *, packed: bool = False, prepared: bool = False, **how: Any) -> Step:
    """TimesFM says how the sales of 48 shops may go on: each shop's numbers, of a length of their own, go to the device and are filled up there."""
    from transformers import TimesFmConfig, TimesFmModelForPrediction

    way, shops, past, ahead = How(**how), s.size(48, 3), s.size(512, 64), s.size(128, 16)
    config = TimesFmConfig(
        num_hidden_layers=s.size(20, 1), hidden_size=s.size(1280, 32), intermediate_size=s.size(1280, 32), head_dim=s.size(80, 16),
        num_attention_heads=s.size(16, 2), context_length=past, horizon_length=ahead, attn_implementation=way.attention,
    )  # fmt: skip
    model: Any = _placed(s, way, TimesFmModelForPrediction(config)).eval()
    model.decoder = _call(s, way, model.decoder)
    draw = np.random.default_rng(0)
    lengths = draw.integers(past // 5, past * 3 // 2, shops).tolist()
    sales = [draw.random(length, dtype=np.float32) * 100 for length in lengths]

    def filled() -> tuple[Tensor, Tensor, Tensor]:
        """What the model's own preparation makes, for all shops on the host."""
        values, missing = np.zeros((shops, past), np.float32), np.zeros((shops, past), np.float32)
        for row, gaps, one in zip(values, missing, sales, strict=True):
            last = one[-past:]
            row[past - len(last) :] = last
            gaps[: past - len(last)] = 1
        both = torch.from_numpy(np.stack([values, missing])).to(s.device)
        return both[0], both[1], torch.zeros(shops, 1, dtype=torch.int32, device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        if prepared:
            values, missing, rate = filled()
            out = model.decoder(past_values=values, past_values_padding=missing, freq=rate)
            guesses = model._postprocess_output(out.last_hidden_state, (out.loc, out.scale))
            return guesses[:, -1, :ahead, 0].cpu()  # type: ignore[no-any-return]
        if packed:
            series = list(torch.from_numpy(np.concatenate(sales)).to(s.device).split(lengths))
        else:
            series = [torch.from_numpy(one).to(s.device) for one in sales]
        return model(past_values=series, freq=[0] * shops).mean_predictions.cpu()  # type: ignore[no-any-return]

    return step


def wavernn(s: Setup, *, batch: int = 1, **how: Any) -> Step:
    """WaveRNN of torchaudio speaks one frame of a spectrum: 100 samples, each drawn from what the last one was."""
    from torchaudio.models import WaveRNN

    way, scales = How(**how), [4, 5, 5] if not s.tiny else [2, 3]
    hop = int(np.prod(scales))
    model = WaveRNN(
        scales, n_classes=s.size(256, 16), hop_length=hop, n_rnn=s.size(512, 16), n_fc=s.size(512, 16), n_freq=s.size(80, 8),
        n_hidden=s.size(128, 8), n_output=s.size(128, 8),
    )  # fmt: skip
    model = _placed(s, way, model).eval()  # type: ignore[assignment]
    frames = torch.randn(batch, s.size(80, 8), 1, device=s.device)

    @torch.no_grad()
    def step() -> object:
        _precision(way)
        with _casting(s, way):
            return model.infer(frames)

    return capture(step, s) if way.graph else step


def olmo2(s: Setup, *, batch: int = 1, static: bool = False, norms: bool = False, **how: Any) -> Step:
    """OLMo 2 answers one question of 64 words by ten, drawn from the likeliest, by the library's own generate()."""
    from transformers import Olmo2Config, Olmo2ForCausalLM

    way, said, words = How(**how), s.size(10, 3), s.size(100_352, 101)
    config = Olmo2Config(
        vocab_size=words, hidden_size=s.size(2048, 32), intermediate_size=s.size(8192, 64), num_hidden_layers=s.size(10, 1),
        num_attention_heads=s.size(16, 2), num_key_value_heads=s.size(16, 2), attn_implementation=way.attention, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    with s.device:
        model = Olmo2ForCausalLM(config)
    for module in model.modules():
        if norms and type(module).__name__ == "Olmo2RMSNorm":
            module.forward = MethodType(_root_mean_square, module)
    model = _placed(s, way, model).eval()  # type: ignore[assignment]
    asked = torch.randint(2, words, (batch, s.size(64, 6)), device=s.device)
    mask = torch.ones_like(asked)
    options: dict[str, Any] = {"cache_implementation": "static"} if static else {}  # with it, generate() compiles

    @torch.no_grad()
    def step() -> list[list[int]]:
        _precision(way)
        if "past_key_values" in options:
            options["past_key_values"].reset()
        answer = model.generate(
            asked, attention_mask=mask, max_new_tokens=said, min_new_tokens=said, do_sample=True, temperature=0.7, top_k=50, top_p=0.9,
            return_dict_in_generate=True, **options,
        )  # fmt: skip
        if static:  # the graphs read and write one cache
            options.pop("cache_implementation", None)
            options["past_key_values"] = answer.past_key_values
        return answer.sequences.tolist()  # type: ignore[no-any-return]

    return step


WORKLOADS = (
    _public(
        "mbart_sentences", "mBART of transformers, training in bf16 autocast on 24 pairs of 64 words out of 250,027; the loss is read in each step.",
        mbart, {"autocast": BF16, "read_loss": True},
        {"gemm-alignment": {"vocabulary": 250_048}, "optimizer-foreach": {"optimizer": "fused"}, "unfused-attention": {"attention": SDPA},
         "sync-stall": {"read_loss": False}},
    ),
    _public(
        "inceptionnext_birds", "InceptionNeXt of timm, training in FP32 on 64 pictures, NCHW, gradients filled with zeros.", inception_next,
        {"zero": True},
        {"precision": {"autocast": BF16}, "unfused-elementwise": {"compiled": COMPILED}, "memory-layout": {"channels_last": True},
         "grad-zeroing": {"zero": False}},
    ),
    _public(
        "timesformer_clips", "TimeSformer of transformers in fp16 on 8 clips of 8 pictures from pageable memory, attention written out.", timesformer,
        {"dtype": HALF},
        {"memcpy": {"pinned": True}, "unfused-attention": {"attention": SDPA}, "graph-candidate": {"graph": True}},
    ),
    _public(
        "sgformer_papers", "SGFormer of torch_geometric on the whole of a graph of 169,343 papers, training in FP32; papers are picked by a mask.",
        sgformer, {},
        {"host-bound": {"cached": True}, "sync-stall": {"numbered": True}, "unfused-elementwise": {"compiled": COMPILED},
         "precision": {"autocast": BF16}},
    ),
    _public(
        "parakeet_speech", "Parakeet of transformers, training in FP32 on 8 x 1200 frames that are made of waves in this process.", parakeet, {},
        {"precision": {"autocast": BF16}, "data-loading": {"workers": True}, "unfused-attention": {"attention": SDPA}},
    ),
    _public(
        "deformable_detr", "Deformable DETR of transformers finds things in 2 pictures of 800 x 1056 from pageable memory, FP32, NCHW.",
        deformable_detr, {},
        {"memcpy": {"pinned": True}, "sync-stall": {"packed": True}, "precision": {"autocast": HALF}, "memory-layout": {"channels_last": True}},
    ),
    _public(
        "timesfm_sales", "TimesFM of transformers, TF32, on 48 series of numbers that are copied and filled up one by one.", timesfm, {"tf32": True},
        {"host-bound": {"prepared": True}, "memcpy": {"packed": True}, "unfused-attention": {"attention": SDPA}, "launch-gap": {"compiled": GRAPHS}},
    ),
    _public(
        "wavernn_frame", "WaveRNN of torchaudio, FP32, draws 100 samples one by one.", wavernn, {},
        {"low-arithmetic-intensity": {"batch": 16}, "graph-candidate": {"graph": True}, "precision": {"autocast": HALF}},
        shared={"low-arithmetic-intensity": 16.0},
    ),
    _public(
        "olmo2_answer", "OLMo 2 of transformers in bf16 draws ten words after a question of 64, attention and norms written out.", olmo2, {"dtype": BF16},
        {"launch-gap": {"static": True}, "unfused-norm": {"norms": True}, "unfused-attention": {"attention": SDPA},
         "low-arithmetic-intensity": {"batch": 8}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
