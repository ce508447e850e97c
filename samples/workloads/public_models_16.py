"""Public models of clips, letters, shops, talks, forms, dictation, replies and prompts, by an author who has not read the rules.

Each fix is what its rule's advice says; some of them are what people try first on such a model.
"""

from __future__ import annotations

from itertools import cycle
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Prefetcher, Setup, Step
from .public_models import BF16, COMPILED, How, _casting, _placed, _precision, inference, training
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public

# Bound by kernels.


def vivit(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """ViViT learns what is done in two clips of 32 pictures: 3137 tokens of each see one another."""
    from transformers import VivitConfig, VivitForVideoClassification

    way, frames, side = How(**how), s.size(32, 4), s.size(224, 32)
    config = VivitConfig(
        image_size=side, num_frames=frames, hidden_size=s.size(768, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), num_labels=s.size(400, 5), attn_implementation=way.attention,
    )  # fmt: skip
    batch = torch.randn(2, frames, 3, side, side), torch.randint(config.num_labels, (2,))
    loader = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        clips, labels = loader.next() if loader else (part.to(s.device) for part in batch)
        return model(pixel_values=clips, labels=labels).loss  # type: ignore[no-any-return]

    return training(s, way, VivitForVideoClassification(config), loss)


def fnet(s: Setup, **how: Any) -> Step:
    """FNet learns to fill up 32 texts of 512 pieces of words, which a Fourier transform mixes instead of attention."""
    from transformers import FNetConfig, FNetForMaskedLM

    words = s.size(32_000, 101)
    config = FNetConfig(vocab_size=words, hidden_size=s.size(768, 32), num_hidden_layers=s.size(8, 1), intermediate_size=s.size(3072, 64))
    ids = torch.randint(4, words, (s.size(32, 2), s.size(512, 16)), device=s.device)
    return training(s, How(**how), FNetForMaskedLM(config), lambda model: model(input_ids=ids, labels=ids).loss)


def polynormer(s: Setup, **how: Any) -> Step:
    """Polynormer sorts 50,000 goods of a shop that were bought together: seven local layers, then attention in linear time."""
    from torch_geometric.nn.models import Polynormer

    goods, bought, parts, kinds = s.size(50_000, 60), s.size(500_000, 200), s.size(300, 12), s.size(10, 3)
    model = Polynormer(parts, s.size(256, 16), kinds)
    model._global = True  # as after the epochs that warm the local layers up
    x, pairs = torch.randn(goods, parts, device=s.device), torch.randint(goods, (2, bought), device=s.device)
    whose, labels = torch.zeros(goods, dtype=torch.long, device=s.device), torch.randint(kinds, (goods,), device=s.device)
    return training(s, How(**how), model, lambda model: F.nll_loss(model(x, pairs, whose), labels))


def speech_to_text(s: Setup, *, pinned: bool = False, **how: Any) -> Step:
    """Speech2Text learns to translate 16 talks of ten seconds into 48 words."""
    from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

    words, talks, bands, dim = s.size(10_000, 101), s.size(16, 2), s.size(80, 8), s.size(256, 32)
    heads, inner = s.size(4, 2), s.size(2048, 64)
    config = Speech2TextConfig(
        vocab_size=words, d_model=dim, encoder_layers=s.size(12, 1), decoder_layers=s.size(6, 1), encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=inner, decoder_ffn_dim=inner, conv_channels=s.size(1024, 32), input_feat_per_channel=bands,
        use_cache=False,
    )  # fmt: skip
    batch = torch.randn(talks, s.size(1000, 32), bands), torch.randint(3, words, (talks, s.size(48, 6)))
    loader = Prefetcher([tuple(s.pin(part) for part in batch)], s) if pinned else None

    def loss(model: Any) -> Tensor:
        talk, said = loader.next() if loader else (part.to(s.device) for part in batch)
        return model(input_features=talk, labels=said).loss  # type: ignore[no-any-return]

    return training(s, How(**how), Speech2TextForConditionalGeneration(config), loss)


# Bound by the host, or by both.


def _sdpa_of_lilt(self: Any, hidden_states: Tensor, layout_inputs: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Any:
    """Words' and places' scores are added, so that they are one product of the two side by side."""
    less = self.channel_shrink_ratio
    q, k, v = (self.transpose_for_scores(linear(hidden_states)) for linear in (self.query, self.key, self.value))
    places = (self.layout_query, self.layout_key, self.layout_value)
    place_q, place_k, place_v = (self.transpose_for_scores(linear(layout_inputs), r=less) for linear in places)
    both_q = torch.cat((q * q.shape[-1] ** -0.5, place_q * place_q.shape[-1] ** -0.5), -1)
    both_k, dropped = torch.cat((k, place_k), -1), self.dropout.p if self.training else 0.0
    mask = None if attention_mask is None else attention_mask.to(both_q.dtype)
    seen = [F.scaled_dot_product_attention(both_q, both_k, of, attn_mask=mask, dropout_p=dropped, scale=1.0) for of in (v, place_v)]
    return tuple(part.transpose(1, 2).flatten(2) for part in seen)


Form = list[tuple[list[int], tuple[float, float, float, float], int]]


def _laid_out(form: Form, length: int) -> tuple[list[int], list[list[int]], list[int], list[int]]:
    """Pieces of words with the box of their word in thousandths of the page; only a word's first piece has a label."""
    ids, boxes, labels = [0], [[0] * 4], [-100]
    for pieces, box, label in form:
        for at, piece in enumerate(pieces):
            ids.append(piece)
            boxes.append([min(1000, max(0, int(1000 * edge))) for edge in box])
            labels.append(-100 if at else label)
    ids, boxes, labels = [*ids[: length - 1], 2], [*boxes[: length - 1], [1000] * 4], [*labels[: length - 1], -100]
    more = length - len(ids)
    return ids + [1] * more, boxes + [[0] * 4] * more, labels + [-100] * more, [1] * len(ids) + [0] * more


def _form(words: int) -> Form:
    form: Form = []
    for left, top in torch.rand(words, 2).tolist():
        pieces = torch.randint(3, 100, (int(torch.randint(1, 4, ())),)).tolist()
        form.append((pieces, (left, top, left + 0.05, top + 0.01), int(torch.randint(7, ()))))
    return form


def lilt(s: Setup, *, prepared: bool = False, **how: Any) -> Step:
    """LiLT learns what the words of eight forms are: one stream of words and one of places; forms are laid out in this process."""
    from transformers import LiltConfig, LiltForTokenClassification

    way, count, length = How(**how), s.size(8, 2), s.size(512, 24)
    config = LiltConfig(
        vocab_size=s.size(50_265, 101), hidden_size=s.size(768, 48), num_hidden_layers=s.size(8, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=length + 2, pad_token_id=1, num_labels=7,
    )  # fmt: skip
    model = LiltForTokenClassification(config)
    for module in model.modules():
        if way.attention == SDPA and type(module).__name__ == "LiltSelfAttention":
            module.forward = MethodType(_sdpa_of_lilt, module)
    forms = [[_form(s.size(240, 9)) for _ in range(count)] for _ in range(8)]

    def batch(some: list[Form]) -> list[Tensor]:
        return [torch.tensor(part) for part in zip(*(_laid_out(form, length) for form in some), strict=True)]

    turns, ready = cycle(forms), cycle([batch(some) for some in forms] if prepared else [])

    def loss(model: Any) -> Tensor:
        ids, boxes, labels, mask = (part.to(s.device) for part in (next(ready) if prepared else batch(next(turns))))
        return model(input_ids=ids, bbox=boxes, labels=labels, attention_mask=mask).loss  # type: ignore[no-any-return]

    return training(s, way, model, loss)


def emformer(s: Setup, *, batch: int = 1, **how: Any) -> Step:
    """An Emformer hears a fifth of a second more of someone's dictation, and what it heard is fetched."""
    from torchaudio.models import emformer_rnnt_base, emformer_rnnt_model

    small: dict[str, Any] = {
        "input_dim": 80, "encoding_dim": 32, "num_symbols": 11, "segment_length": 16, "right_context_length": 4, "time_reduction_input_dim": 16,
        "time_reduction_stride": 4, "transformer_num_heads": 2, "transformer_ffn_dim": 64, "transformer_num_layers": 2, "transformer_dropout": 0.1,
        "transformer_activation": "gelu", "transformer_left_context_length": 30, "transformer_max_memory_size": 0,
        "transformer_weight_init_scale_strategy": "depthwise", "transformer_tanh_on_mem": True, "symbol_embedding_dim": 16, "num_lstm_layers": 1,
        "lstm_layer_norm": True, "lstm_layer_norm_epsilon": 1e-3, "lstm_dropout": 0.3,
    }  # fmt: skip
    way = How(**how)
    model: Any = _placed(s, way, emformer_rnnt_model(**small) if s.tiny else emformer_rnnt_base(num_symbols=4097)).eval()
    hear = s.compile(model.transcribe_streaming, mode=way.compiled) if way.compiled else model.transcribe_streaming
    sound, lengths = torch.randn(batch, 20, 80, device=s.device), torch.full((batch,), 20, device=s.device)
    state: Any = None

    @torch.no_grad()
    def step() -> Tensor:
        nonlocal state
        _precision(way)
        with _casting(s, way):
            heard, _, state = hear(sound, lengths, state)
        return heard.float().cpu()  # type: ignore[no-any-return]

    return step


def mimi(s: Setup, *, batch: int = 1, **how: Any) -> Step:
    """Mimi makes two seconds of a reply's sound from 25 frames of eight codes, and it is fetched."""
    from transformers import MimiConfig, MimiModel

    small: dict[str, Any] = {
        "hidden_size": 32, "num_filters": 4, "codebook_size": 16, "codebook_dim": 16, "vector_quantization_hidden_dimension": 16,
        "upsample_groups": 32, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2,
    }  # fmt: skip
    way = How(**how)
    config = MimiConfig(num_quantizers=8, **(small if s.tiny else {}))
    model: Any = _placed(s, way, MimiModel(config)).eval()
    decode = s.compile(model.decode, mode=way.compiled) if way.compiled else model.decode
    codes = torch.randint(config.codebook_size, (batch, 8, s.size(25, 3)), device=s.device)

    @torch.no_grad()
    def step() -> Tensor:
        _precision(way)
        return decode(codes).audio_values.float().cpu()  # type: ignore[no-any-return]

    return step


def clipseg(s: Setup, *, pictures: int = 1, **how: Any) -> Step:
    """CLIPSeg marks in a picture what four prompts say: the picture is there once for each prompt."""
    from transformers import CLIPSegConfig, CLIPSegForImageSegmentation

    way, side, words = How(**how), s.size(352, 64), s.size(49_408, 101)
    layers, heads = s.size(12, 2), {"num_attention_heads": 2} if s.tiny else {}
    small: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64} if s.tiny else {}
    config = CLIPSegConfig(
        text_config={"vocab_size": words, "num_hidden_layers": layers, "bos_token_id": words - 2, "eos_token_id": words - 1, **small, **heads},
        vision_config={"image_size": side, "patch_size": 16, "num_hidden_layers": layers, **small, **heads}, projection_dim=s.size(512, 32),
        reduce_dim=s.size(64, 16), extract_layers=[0, 1] if s.tiny else [3, 6, 9], attn_implementation=way.attention,
    )  # fmt: skip
    prompts = torch.randint(words - 2, (4 * pictures, 8), device=s.device)
    prompts[:, -1] = words - 1
    seen = torch.randn(pictures, 3, side, side, device=s.device).repeat_interleave(4, 0)
    return inference(s, way, CLIPSegForImageSegmentation(config), {"input_ids": prompts, "pixel_values": seen})


WORKLOADS = (
    _public(
        "vivit_clips", "ViViT of transformers, training in fp16 autocast with a scaler on 2 clips from pageable memory, attention written out; loss is read.",
        vivit, {"autocast": HALF, "scaler": True, "read_loss": True},
        {"unfused-attention": {"attention": SDPA}, "memcpy": {"pinned": True}, "amp-scaler-sync": {"optimizer": "fused"},
         "sync-stall": {"read_loss": False}},
    ),
    _public(
        "fnet_letters", "FNet of transformers, training in FP32 on 32 x 512 pieces of words that Fourier transforms mix.", fnet, {},
        {"precision": {"tf32": True}, "unfused-elementwise": {"compiled": COMPILED}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "polynormer_goods", "Polynormer of torch_geometric, training in FP32 on 50,000 goods and 500,000 pairs of them; the loss is read.", polynormer,
        {"read_loss": True},
        {"precision": {"tf32": True}, "unfused-elementwise": {"compiled": COMPILED}, "sync-stall": {"read_loss": False}},
    ),
    _public(
        "speech2text_talks", "Speech2Text of transformers, training in FP32 on 16 talks of ten seconds from pageable memory; the loss is read.",
        speech_to_text, {"read_loss": True},
        {"precision": {"autocast": BF16}, "memcpy": {"pinned": True}, "sync-stall": {"read_loss": False}, "launch-gap": {"compiled": COMPILED}},
    ),
    _public(
        "lilt_forms", "LiLT of transformers, training in bf16 autocast on 8 forms that Python lays out; attention written out, the loss is read.", lilt,
        {"autocast": BF16, "read_loss": True},
        {"host-bound": {"prepared": True}, "unfused-attention": {"attention": SDPA}, "sync-stall": {"read_loss": False},
         "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "emformer_dictation", "The Emformer of torchaudio, FP32, hears one stream by segments of 16 frames and keeps a state.", emformer, {},
        {"launch-gap": {"compiled": COMPILED}, "low-arithmetic-intensity": {"batch": 8}, "precision": {"autocast": BF16}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "mimi_reply", "Mimi of transformers, FP32, makes two seconds of one reply's sound from codes.", mimi, {},
        {"low-arithmetic-intensity": {"batch": 8}, "precision": {"dtype": HALF}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "clipseg_prompts", "CLIPSeg of transformers, FP32, marks what four prompts say in one picture of 352; attention written out.", clipseg, {},
        {"precision": {"tf32": True}, "unfused-attention": {"attention": SDPA}, "low-arithmetic-intensity": {"pictures": 4}},
        shared={"low-arithmetic-intensity": 4.0},
    ),
)  # fmt: skip
