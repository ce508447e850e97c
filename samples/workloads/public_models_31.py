"""Public models of complaints, towers' radio and exams, by an author who has not read the rules."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public

# Training.


def _funnel_attention(self: Any, query: Tensor, key: Tensor, value: Tensor, attention_inputs: Any, output_attentions: bool = False) -> tuple[Tensor]:
    """FunnelRelMultiheadAttention with its products in one kernel; what depends on places and on kinds of words is its mask."""
    positions, kinds, padding, cls_mask = attention_inputs
    batch, asked, _ = query.shape
    known, heads, size = key.shape[1], self.config.n_head, self.config.d_head
    q = self.q_head(query).view(batch, asked, heads, size) * self.scale
    k = self.k_head(key).view(batch, known, heads, size)
    v = self.v_head(value).view(batch, known, heads, size)
    bias = self.relative_positional_attention(positions, q, known, cls_mask) + self.relative_token_type_attention(kinds, q, cls_mask)
    if padding is not None:
        bias = bias - 1e6 * (1 - padding[:, None, None].to(bias.dtype))
    q = q + self.r_w_bias * self.scale
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    dropped = self.attention_dropout.p if self.training else 0.0
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=dropped, scale=1.0)
    out = self.hidden_dropout(self.post_proj(seen.transpose(1, 2).reshape(batch, asked, heads * size)))
    return (self.layer_norm(query + out),)


def bank_complaints(s: Setup, *, fused: bool = False, kept: bool = False, ahead: bool = False, **how: Any) -> Step:
    """A Funnel Transformer learns to which of twelve desks a complaint belongs, in FP32; loss and hits are read in each step."""
    from transformers import FunnelConfig, FunnelForSequenceClassification

    way, words, width, desks = How(**how), s.size(30_522, 101), s.size(768, 32), 12
    batch, length, heads = s.size(16, 2), s.size(512, 16), s.size(12, 2)
    config = FunnelConfig(
        vocab_size=words, block_sizes=[s.size(2, 1), s.size(2, 1), 1], d_model=width, n_head=heads, d_head=width // heads,
        d_inner=4 * width, num_labels=desks,
    )  # fmt: skip
    with s.device:
        model: Any = FunnelForSequenceClassification(config)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "FunnelRelMultiheadAttention":
                module.forward = MethodType(_funnel_attention, module)
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.01)
    shelf = []
    for _ in range(8):
        ids = torch.randint(3, words, (batch, length))
        long = torch.randint(length // 2, length + 1, (batch, 1))
        mask = (torch.arange(length) < long).long()
        kinds = (torch.arange(length) >= long // 2).long()
        kinds[:, 0] = 2
        shelf.append((ids * mask, mask, kinds, torch.randint(desks, (batch,))))
    loader = Prefetcher([tuple(s.pin(tensor) for tensor in part) for part in shelf], s) if ahead else None
    turn, losses, hits, sums = 0, 0.0, 0, torch.zeros(2, device=s.device)

    def step() -> object:
        nonlocal turn, losses, hits
        _precision(way)
        ids, mask, kinds, labels = loader.next() if loader else (tensor.to(s.device) for tensor in shelf[turn % len(shelf)])
        turn += 1
        optimizer.zero_grad()
        with _casting(s, way):
            logits = run(input_ids=ids, attention_mask=mask, token_type_ids=kinds).logits
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        right = (logits.detach().argmax(-1) == labels).sum()
        if kept:
            sums[0] += loss.detach()
            sums[1] += right
            return sums
        losses += loss.item()
        hits += int(right.item())
        return losses, hits

    return step


def _drawn_mask(hidden: Tensor, share: float, span: int) -> Tensor:
    """Spans to be hidden, as many in each recording, drawn on the device."""
    batch, frames, _ = hidden.shape
    starts = torch.rand(batch, frames - span + 1, device=hidden.device).topk(max(2, int(share * frames / span)), dim=1).indices
    places = (starts[..., None] + torch.arange(span, device=hidden.device)).flatten(1)
    return torch.zeros(batch, frames, dtype=torch.bool, device=hidden.device).scatter_(1, places, True)


def tower_radio(
    s: Setup, *, drawn: bool = False, fixed_shapes: bool = False, ahead: bool = False, fused: bool = False, **how: Any
) -> Step:  # fmt: skip
    """Data2Vec learns to write pilots' and towers' words down by CTC, FP16 with a scaler; ears are frozen, spans are hidden."""
    from transformers import Data2VecAudioConfig, Data2VecAudioForCTC

    way = How(**{"autocast": HALF, "scaler": True, "zero": True, **how})
    batch, samples, width, letters = s.size(8, 2), s.size(96_000, 8000), s.size(768, 32), s.size(48, 4)
    config = Data2VecAudioConfig(
        vocab_size=32, hidden_size=width, num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(12, 2), intermediate_size=4 * width,
        conv_dim=[s.size(512, 16)] * 7, num_conv_pos_embeddings=s.size(5, 1), layerdrop=0.0, mask_time_prob=0.2, mask_time_length=s.size(10, 3),
        ctc_loss_reduction="mean", ctc_zero_infinity=True, attn_implementation=SDPA,
    )  # fmt: skip
    with s.device:
        model: Any = Data2VecAudioForCTC(config)
    model = _placed(s, way, model).train()
    model.freeze_feature_encoder()
    body = model.data2vec_audio
    if fused:
        body.feature_extractor.forward = s.compile(body.feature_extractor.forward)
        body.encoder.forward = s.compile(body.encoder.forward)

    def hide(self: Any, hidden_states: Tensor, mask_time_indices: Any = None, attention_mask: Any = None) -> Tensor:
        if drawn:
            mask = _drawn_mask(hidden_states, config.mask_time_prob, config.mask_time_length)
        else:
            from transformers.models.data2vec import modeling_data2vec_audio as library

            spans = library._compute_mask_indices(
                tuple(hidden_states.shape[:2]), mask_prob=config.mask_time_prob, mask_length=config.mask_time_length, min_masks=2
            )
            mask = torch.tensor(spans, device=hidden_states.device, dtype=torch.bool)
        filler = self.masked_spec_embed.to(hidden_states.dtype)
        if fixed_shapes:
            return torch.where(mask[..., None], filler, hidden_states)
        hidden_states[mask] = filler
        return hidden_states

    if drawn or fixed_shapes:
        body._mask_hidden_states = MethodType(hide, body)
    optimizer = _optimizer(way, [parameter for parameter in model.parameters() if parameter.requires_grad], weight_decay=0.005)
    scaler = torch.amp.GradScaler(s.device.type) if way.scaler and s.cuda else None
    shelf, lengths = [], []
    for _ in range(4):
        sound, texts = torch.randn(batch, samples), torch.randint(1, 32, (batch, letters))
        long = torch.randint(letters // 2, letters + 1, (batch,))
        texts[torch.arange(letters) >= long[:, None]] = -100
        shelf.append((sound, texts))
        lengths.append(tuple(long.tolist()))
    loader = Prefetcher([tuple(s.pin(tensor) for tensor in part) for part in shelf], s) if ahead else None
    turn, mean = 0, torch.zeros((), device=s.device)

    def loss_of(sound: Tensor, texts: Tensor, long: tuple[int, ...]) -> Tensor:
        if not fixed_shapes:
            return model(sound, labels=texts).loss  # type: ignore[no-any-return]
        chances = model(sound).logits.log_softmax(-1, dtype=torch.float32).transpose(0, 1)
        frames = (chances.shape[0],) * chances.shape[1]
        with torch.backends.cudnn.flags(enabled=False):
            return F.ctc_loss(chances, texts.clamp(min=0), frames, long, blank=0, reduction="mean", zero_infinity=True)

    def step() -> Tensor:
        nonlocal turn
        _precision(way)
        at = turn % len(shelf)
        turn += 1
        sound, texts = loader.next() if loader else (tensor.to(s.device) for tensor in shelf[at])
        optimizer.zero_grad(set_to_none=not way.zero)
        with _casting(s, way):
            loss = loss_of(sound, texts, lengths[at])
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        return mean.lerp_(loss.detach().float(), 0.05)

    return step


# Inference.


class _Adapted(nn.Module):
    """A linear layer with LoRA of rank 16 beside it."""

    def __init__(self, layer: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.layer, self.scale = layer, 2.0
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x)) * self.scale

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        self.layer.weight += self.scale * self.up.weight @ self.down.weight
        return self.layer


def _mpt_attention(
    self: Any, hidden_states: Tensor, position_bias: Tensor, cache: Any = None, attention_mask: Tensor | None = None, **_: Any
) -> tuple[Tensor, None]:
    """MptAttention with its products in one kernel; no row has padding, so that the first one's mask is that of all."""
    batch, length, width = hidden_states.shape
    q, k, v = (x.view(batch, length, self.n_heads, self.head_dim).transpose(1, 2) for x in self.Wqkv(hidden_states).chunk(3, dim=2))
    bias = position_bias[None, :, :, position_bias.size(2) - length :]
    if attention_mask is not None:
        bias = bias.masked_fill(attention_mask[:1], torch.finfo(q.dtype).min)
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), scale=self.softmax_scale)
    return self.out_proj(seen.transpose(1, 2).reshape(batch, length, width)), None


def exam_choices(
    s: Setup, *, merged: bool = False, fused: bool = False, padded: bool = False, graphed: bool = False, at_once: bool = False,
    pinned: bool = False, **how: Any,
) -> Step:  # fmt: skip
    """MPT with LoRA says in BF16 which of a question's eight answers is the likeliest by the words of each; answers are read one by one."""
    from transformers import MptConfig, MptForCausalLM

    way, known, width = How(**{"dtype": BF16, **how}), s.size(50_277, 101), s.size(1024, 32)
    answers, length, last = s.size(8, 3), s.size(512, 16), s.size(64, 4)
    config = MptConfig(
        d_model=width, n_heads=s.size(16, 2), n_layers=s.size(5, 2), max_seq_len=s.size(2048, 32),
        vocab_size=s.size(50_304, 104) if padded else known,
    )  # fmt: skip
    with s.device:
        model: Any = MptForCausalLM(config)
        for block in model.transformer.blocks:
            for part, name in ((block.attn, "Wqkv"), (block.attn, "out_proj"), (block.ffn, "up_proj"), (block.ffn, "down_proj")):
                setattr(part, name, _Adapted(getattr(part, name)))
    model = _placed(s, way, model).eval()
    for block in model.transformer.blocks:
        if fused:
            block.attn.forward = MethodType(_mpt_attention, block.attn)
        if merged:
            for part in (block.attn, block.ffn):
                for name, layer in list(part.named_children()):
                    if isinstance(layer, _Adapted):
                        setattr(part, name, layer.merged())
    future = torch.ones(length, length, dtype=torch.bool, device=s.device).triu(1)[None, None] if graphed else None
    shelf = [torch.randint(3, known, (answers, length)) for _ in range(16)]
    if pinned:
        shelf = [s.pin(ids) for ids in shelf]
    ids, scores = torch.zeros(answers, length, dtype=torch.long, device=s.device), torch.zeros(answers, device=s.device)
    turn = 0

    def rated(ids: Tensor) -> Tensor:
        logits = model(input_ids=ids, attention_mask=future, use_cache=False).logits[:, :-1, :known]
        chances = logits.float().log_softmax(-1)
        chosen = chances.gather(-1, ids[:, 1:, None])[..., 0]
        return chosen[:, -last:].sum(-1)

    rate = s.compile(rated, mode=way.compiled) if way.compiled else rated

    @torch.no_grad()
    def fixed() -> None:
        scores.copy_(rated(ids))

    _precision(way)
    replay = capture(fixed, s) if graphed else None

    @torch.no_grad()
    def step() -> int:
        nonlocal turn
        _precision(way)
        host = shelf[turn % len(shelf)]
        turn += 1
        if replay:
            ids.copy_(host)
            replay()
            found = scores
        else:
            found = rate(host.to(s.device, non_blocking=pinned))
        listed = found.tolist() if at_once else [found[at].item() for at in range(answers)]
        return max(range(answers), key=listed.__getitem__)

    return step


WORKLOADS = (
    _public(
        "bank_complaints", "Funnel Transformer of transformers, training in FP32 on 16 x 512 pageable words, attention written out; two reads.",
        bank_complaints, {},
        {"precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}, "unfused-attention": {"fused": True},
         "unfused-elementwise": {"compiled": COMPILED}, "optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"kept": True},
         "memcpy": {"ahead": True}},
    ),
    _public(
        "tower_radio", "Data2Vec of transformers learns 8 x 6 s of radio by CTC, fp16 and a scaler; NumPy draws masks, masks index, sound is pageable.",
        tower_radio, {},
        {"amp-scaler-sync": {"optimizer": "fused"}, "sync-stall": {"fixed_shapes": True}, "host-bound": {"drawn": True},
         "memcpy": {"ahead": True}, "grad-zeroing": {"zero": False}, "unfused-elementwise": {"fused": True}},
    ),
    _public(
        "exam_choices", "MPT of transformers with LoRA unmerged, bf16, rates 8 answers of 512 words; attention written out, 50,277 words, 8 reads.",
        exam_choices, {},
        {"unmerged-adapters": {"merged": True}, "unfused-attention": {"fused": True}, "unfused-elementwise": {"compiled": COMPILED},
         "gemm-alignment": {"padded": True}, "graph-candidate": {"graphed": True}, "sync-stall": {"at_once": True}, "memcpy": {"pinned": True}},
    ),
)  # fmt: skip
