"""Public models of customers' tickets, gardeners' questions, surgeons' dictations and code, by an author who has not read the rules."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, GRAPHS, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import HALF, SDPA, with_fused_rms
from .public_models_4 import _public

# Training.


def _ticket_attention(self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> tuple[Tensor, None]:
    """RemBertSelfAttention with its products in one kernel."""
    batch, length, _width = hidden_states.shape
    q, k, v = (
        layer(hidden_states).view(batch, length, self.num_attention_heads, self.attention_head_size).transpose(1, 2)
        for layer in (self.query, self.key, self.value)
    )
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, dropout_p=self.dropout.p if self.training else 0.0)
    return seen.transpose(1, 2).reshape(batch, length, self.all_head_size), None


def ticket_desks(s: Setup, *, fused: bool = False, kept: bool = False, ahead: bool = False, **how: Any) -> Step:
    """RemBERT learns in FP16 autocast with a scaler which of 24 desks a ticket belongs to; gradients are clipped, loss and hits are read."""
    from transformers import RemBertConfig, RemBertForSequenceClassification

    way = How(**{"autocast": HALF, "scaler": True, "zero": True, **how})
    words, desks, batch, length = s.size(250_300, 101), 24, s.size(16, 2), s.size(256, 16)
    config = RemBertConfig(
        vocab_size=words, hidden_size=s.size(1152, 32), num_hidden_layers=s.size(5, 1), num_attention_heads=s.size(18, 2),
        input_embedding_size=s.size(256, 16), intermediate_size=s.size(4608, 64), num_labels=desks, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1, attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model: Any = RemBertForSequenceClassification(config)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "RemBertSelfAttention":
                module.forward = MethodType(_ticket_attention, module)
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.01)
    scaler = torch.amp.GradScaler(s.device.type) if way.scaler and s.cuda else None
    shelf = []
    for _ in range(8):
        mask = (torch.arange(length) < torch.randint(length // 2, length + 1, (batch, 1))).long()
        shelf.append((torch.randint(3, words, (batch, length)) * mask, mask, torch.randint(desks, (batch,))))
    loader = Prefetcher([tuple(s.pin(tensor) for tensor in part) for part in shelf], s) if ahead else None
    turn, losses, hits, sums = 0, 0.0, 0, torch.zeros(2, device=s.device)

    def step() -> object:
        nonlocal turn, losses, hits
        ids, mask, labels = loader.next() if loader else (tensor.to(s.device) for tensor in shelf[turn % 8])
        turn += 1
        optimizer.zero_grad(set_to_none=not way.zero)
        with _casting(s, way):
            logits = run(input_ids=ids, attention_mask=mask).logits
            loss = F.cross_entropy(logits, labels)
        if scaler:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
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


PAD, CSHARP = 1, 4


def _rectangle(rows: list[list[int]], length: int) -> Tensor:
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def _collated(pairs: list[tuple[list[int], list[int]]], length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Words of Java, words of C# from the name of the language on, and the words that follow these."""
    java, csharp = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return _rectangle(java, length), _rectangle([[CSHARP, *row[:-1]] for row in csharp], length), _rectangle(csharp, length)


def _smoothed(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss with smoothed labels as fairseq writes it, and how many words are right."""
    padding = labels == PAD
    chances = logits.float().log_softmax(-1)
    missed = -chances.gather(-1, labels[..., None])[..., 0].masked_fill(padding, 0.0).sum()
    smooth = -chances.sum(-1).masked_fill(padding, 0.0).sum()
    right = ((logits.argmax(-1) == labels) & ~padding).sum()
    return (0.9 * missed + 0.1 / logits.shape[-1] * smooth) / (~padding).sum(), right


def java_to_csharp(
    s: Setup, *, attention: str = "eager", padded: bool = False, prepared: bool = False, kept: bool = False, losses: bool = False, **how: Any
) -> Step:  # fmt: skip
    """PLBart learns all in BF16 to translate 16 methods of Java into C#; lists of words are padded in each step, loss and hits are read."""
    from transformers import PLBartConfig, PLBartForConditionalGeneration

    way, known, width, heads, layers = How(**{"dtype": BF16, **how}), s.size(50_005, 101), s.size(768, 32), s.size(12, 2), s.size(3, 1)
    batch, length = s.size(16, 2), s.size(256, 16)
    config = PLBartConfig(
        vocab_size=s.size(50_048, 104) if padded else known, d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = PLBartForConditionalGeneration(config)
    model = _placed(s, way, model).train()
    optimizer = _optimizer(way, model.parameters(), weight_decay=0.01)
    loss_of = s.compile(_smoothed, dynamic=False) if losses else _smoothed

    def taught(java: Tensor, before: Tensor, csharp: Tensor) -> tuple[Tensor, Tensor]:
        out = model(input_ids=java, attention_mask=(java != PAD).long(), decoder_input_ids=before, use_cache=False)
        return loss_of(out.logits[..., :known], csharp)  # type: ignore[no-any-return]

    teach = s.compile(taught, mode=way.compiled, dynamic=False) if way.compiled else taught
    lengths = torch.randint(length // 2, length + 1, (8, batch, 2)).tolist()
    corpus = [[tuple(torch.randint(5, known, (long,)).tolist() for long in pair) for pair in pairs] for pairs in lengths]
    ready = [_collated(pairs, length) for pairs in corpus] if prepared else []
    turn, shown, hits, sums = 0, 0.0, 0, torch.zeros(2, device=s.device)

    def step() -> tuple[float, int]:
        nonlocal turn, shown, hits
        part = ready[turn % 8] if prepared else _collated(corpus[turn % 8], length)
        turn += 1
        java, before, csharp = (tensor.to(s.device) for tensor in part)
        optimizer.zero_grad()
        loss, right = teach(java, before, csharp)
        loss.backward()
        optimizer.step()
        if not kept:
            shown += loss.item()
            hits += int(right.item())
            return shown, hits
        sums[0] += loss.detach()
        sums[1] += right
        if turn % 50 == 0:
            shown, hits = sums[0].item(), int(sums[1].item())
        return shown, hits

    return step


# Serving.


class _Notebook:
    """Keys and values of a whole conversation, of which those before `at` are written."""

    def __init__(self, layers: int, shape: tuple[int, ...], device: torch.device) -> None:
        self.keys, self.values = ([torch.zeros(shape, device=device, dtype=BF16) for _ in range(layers)] for _ in range(2))
        self.at = torch.zeros(1, dtype=torch.long, device=device)

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if key.shape[2] > 1:
            self.keys[layer][:, :, : key.shape[2]] = key
            self.values[layer][:, :, : key.shape[2]] = value
            return key, value
        self.keys[layer].index_copy_(2, self.at, key.to(BF16))
        self.values[layer].index_copy_(2, self.at, value.to(BF16))
        return self.keys[layer], self.values[layer]


def garden_advice(
    s: Setup, *, batch: int = 1, attention: str = "eager", fused_norms: bool = False, graphed: bool = False, late: bool = False, **how: Any
) -> Step:  # fmt: skip
    """Helium answers a gardener's 192 words by ten, the likeliest each time, FP32 weights under BF16 autocast; each word is sent at once."""
    from transformers import DynamicCache, HeliumConfig, HeliumForCausalLM

    way = How(**{"autocast": BF16, **how})
    words, width, heads, layers = s.size(48_000, 101), s.size(2048, 32), s.size(16, 2), s.size(6, 2)
    known, new = s.size(192, 8), s.size(10, 3)
    longest = known + new
    config = HeliumConfig(
        vocab_size=words, hidden_size=width, intermediate_size=s.size(5632, 64), num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads, head_dim=width // heads, max_position_embeddings=4096, attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = HeliumForCausalLM(config)
    if fused_norms:
        with_fused_rms(model)
    model = _placed(s, way, model).eval()
    run = s.compile(model, mode=way.compiled, dynamic=False) if way.compiled else model
    notebook = _Notebook(layers, (batch, heads, longest, width // heads), s.device) if graphed or way.compiled else None
    if notebook and way.compiled:
        for tensor in (*notebook.keys, *notebook.values):
            torch._dynamo.mark_static_address(tensor)
    questions = [torch.randint(4, words, (batch, known)) for _ in range(8)]
    places, least = torch.arange(longest, device=s.device), torch.finfo(torch.float32).min
    future = torch.full((known, known), least, device=s.device).triu(1)[None, None] if notebook else None
    word = torch.zeros(batch, 1, dtype=torch.long, device=s.device)
    cache: Any = notebook
    turn = 0

    @torch.no_grad()
    def further() -> None:
        where = {}
        if notebook:
            mask = torch.zeros(1, 1, 1, longest, device=s.device).masked_fill(places > notebook.at, least)
            where = {"attention_mask": mask, "position_ids": notebook.at[None]}
        with _casting(s, way):
            logits = run(input_ids=word, past_key_values=cache, use_cache=True, **where).logits
        word.copy_(logits[:, -1].argmax(-1, keepdim=True))
        if notebook:
            notebook.at.add_(1)

    speak = capture(further, s) if graphed else further

    @torch.no_grad()
    def step() -> list[list[int]]:
        nonlocal turn, cache
        question = questions[turn % 8].to(s.device)
        turn += 1
        if notebook:
            notebook.at.fill_(known)
        else:
            cache = DynamicCache(config=config)
        with _casting(s, way):
            logits = model(input_ids=question, past_key_values=cache, attention_mask=future, use_cache=True, logits_to_keep=1).logits
        word.copy_(logits[:, -1].argmax(-1, keepdim=True))
        answer: list[Any] = []
        for at in range(new):
            answer.append(word.clone() if late else word[:, 0].tolist())
            if at < new - 1:
                speak()
        return torch.cat(answer, 1).T.tolist() if late else answer  # type: ignore[no-any-return]

    return step


def _dictation_attention(
    self: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, relative_position_embeddings: Any = None, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    """Wav2Vec2ConformerSelfAttention with its products in one kernel; what depends on distances is its mask."""
    batch, frames, width = hidden_states.shape

    def heads(x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_size).transpose(1, 2)

    q, k, v = heads(self.linear_q(hidden_states)), heads(self.linear_k(hidden_states)), heads(self.linear_v(hidden_states))
    distances = heads(self.linear_pos(relative_position_embeddings))
    far = F.pad((q + self.pos_bias_v[:, None]) @ distances.transpose(-1, -2), (1, 0))
    far = far.view(batch, self.num_heads, 2 * frames, frames)[:, :, 1:].view(batch, self.num_heads, frames, 2 * frames - 1)[..., :frames]
    seen = F.scaled_dot_product_attention(q + self.pos_bias_u[:, None], k, v, attn_mask=far * self.head_size**-0.5)
    return self.linear_out(seen.transpose(1, 2).reshape(batch, frames, width)), None


def _letters(ids: Tensor) -> list[list[int]]:
    """What is said in each recording: repeated letters once, and no blanks."""
    rows = []
    for row in ids:
        row = torch.unique_consecutive(row)
        rows.append(row[row != 0].tolist())
    return rows


def _letters_at_once(ids: Tensor) -> list[list[int]]:
    """Likewise, with blanks in place of what is left out, and one read."""
    repeated = F.pad(ids[:, 1:] == ids[:, :-1], (1, 0))
    return [[letter for letter in row if letter] for row in ids.masked_fill(repeated, 0).tolist()]


def surgeon_notes(s: Setup, *, fused: bool = False, at_once: bool = False, ahead: bool = False, **how: Any) -> Step:
    """Wav2Vec2-Conformer writes eight dictations of ten seconds down by CTC, in FP32; letters are collapsed recording by recording."""
    from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerForCTC

    way, batch, samples, width = How(**how), s.size(8, 2), s.size(160_000, 4000), s.size(1024, 32)
    config = Wav2Vec2ConformerConfig(
        vocab_size=32, hidden_size=width, num_hidden_layers=s.size(5, 1), num_attention_heads=s.size(16, 2), intermediate_size=4 * width,
        conv_dim=[s.size(512, 16)] * 7, feat_extract_norm="layer", conv_bias=True, position_embeddings_type="relative",
        max_source_positions=s.size(2000, 32), num_conv_pos_embeddings=s.size(128, 4), num_conv_pos_embedding_groups=s.size(16, 2),
        hidden_act="swish", attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model: Any = Wav2Vec2ConformerForCTC(config)
    if fused:
        for module in model.modules():
            if type(module).__name__ == "Wav2Vec2ConformerSelfAttention":
                module.forward = MethodType(_dictation_attention, module)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    shelf = [0.1 * torch.randn(batch, samples) for _ in range(4)]
    loader = Prefetcher([(s.pin(sound),) for sound in shelf], s) if ahead else None
    sound = torch.zeros(batch, samples, device=s.device)
    turn = 0

    @torch.no_grad()
    def heard() -> Tensor:
        loud = (sound - sound.mean(-1, keepdim=True)) / torch.sqrt(sound.var(-1, keepdim=True) + 1e-7)
        with _casting(s, way):
            return run(loud).logits.argmax(-1)  # type: ignore[no-any-return]

    def step() -> list[list[int]]:
        nonlocal turn
        _precision(way)
        sound.copy_(loader.next()[0] if loader else shelf[turn % 4])
        turn += 1
        return _letters_at_once(heard()) if at_once else _letters(heard())

    return step


WORKLOADS = (
    _public(
        "ticket_desks", "RemBERT of transformers, training in fp16 autocast with a scaler on 16 x 256 pageable words, attention written out; two reads.",
        ticket_desks, {},
        {"amp-scaler-sync": {"optimizer": "fused"}, "amp-scaler-sync/bf16": {"autocast": BF16, "scaler": False}, "unfused-attention": {"fused": True},
         "unfused-elementwise": {"compiled": COMPILED}, "grad-zeroing": {"zero": False}, "sync-stall": {"kept": True}, "memcpy": {"ahead": True}},
    ),
    _public(
        "java_to_csharp", "PLBart of transformers, training all in bf16 on 16 pairs of 256 words, 50,005 words, smoothed labels written out; two reads.",
        java_to_csharp, {},
        {"gemm-alignment": {"padded": True}, "unfused-attention": {"attention": SDPA}, "unfused-elementwise": {"compiled": COMPILED},
         "unfused-elementwise/loss": {"losses": True}, "optimizer-foreach": {"optimizer": "fused"}, "host-bound": {"prepared": True},
         "sync-stall": {"kept": True}},
    ),
    _public(
        "garden_advice", "Helium of transformers, FP32 weights in bf16 autocast, says ten words after 192 with a growing cache; each word is read.",
        garden_advice, {},
        {"dtype-casts": {"dtype": BF16, "autocast": None}, "graph-candidate": {"graphed": True}, "launch-gap": {"compiled": GRAPHS},
         "unfused-norm": {"fused_norms": True}, "unfused-attention": {"attention": SDPA}, "sync-stall": {"late": True},
         "low-arithmetic-intensity": {"batch": 8}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "surgeon_notes", "Wav2Vec2-Conformer of transformers, FP32, on 8 x 10 s of pageable sound, attention written out; letters picked row by row.",
        surgeon_notes, {},
        {"precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}, "unfused-attention": {"fused": True},
         "unfused-elementwise": {"compiled": COMPILED}, "sync-stall": {"at_once": True}, "memcpy": {"ahead": True}},
    ),
)  # fmt: skip
