"""Public models of minutes, pictures that are asked about, audiobooks and contracts, by an author who has not read the rules."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Prefetcher, Setup, Step
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import HALF
from .public_models_4 import _public

# Language, training.


def _gemma_norm(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, (1.0 + self.weight).type_as(x), self.eps)


def t5gemma(s: Setup, *, once: bool = False, kept: bool = False, **how: Any) -> Step:
    """T5Gemma learns to write minutes: two micro-batches of sixteen talks a step, scores capped by tanh, each loss and the norm are read."""
    from transformers import T5GemmaConfig, T5GemmaForConditionalGeneration

    way, talks, long, short, micro = How(**how), s.size(16, 2), s.size(512, 12), s.size(64, 6), 2
    words = s.size(32_003, 101)
    side: dict[str, Any] = {
        "vocab_size": s.size(way.vocabulary, 128) if way.vocabulary else words, "hidden_size": s.size(768, 32),
        "intermediate_size": s.size(2048, 64), "num_hidden_layers": s.size(4, 1), "num_attention_heads": s.size(12, 2),
        "num_key_value_heads": s.size(12, 2), "head_dim": s.size(64, 16), "query_pre_attn_scalar": s.size(64, 16),
    }  # fmt: skip
    config = T5GemmaConfig(encoder=dict(side), decoder=dict(side), vocab_size=side["vocab_size"], attn_implementation="eager")
    with s.device:
        model: Any = T5GemmaForConditionalGeneration(config)
    model = _placed(s, way, model).train()
    for module in model.modules():
        if way.fused_norms and type(module).__name__ == "T5GemmaRMSNorm":
            module.forward = MethodType(_gemma_norm, module)
    run, parameters = _call(s, way, model), list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.01)
    batches: list[dict[str, Any]] = []
    for _ in range(micro):
        lengths = torch.randint(long // 2, long + 1, (talks, 1), device=s.device)
        said = torch.arange(long, device=s.device) < lengths
        ids = torch.where(said, torch.randint(3, words, (talks, long), device=s.device), 0)
        ends = torch.randint(short // 2, short + 1, (talks, 1), device=s.device)
        minutes = torch.randint(3, words, (talks, short), device=s.device)
        minutes = minutes.masked_fill(torch.arange(short, device=s.device) >= ends, -100)
        mask: Any = said.long()
        if kept:  # as the model makes it, which looks for padding on the host first
            hidden = torch.zeros(talks, 1, 1, long, device=s.device).masked_fill(~said[:, None, None], torch.finfo(torch.float32).min)
            mask = {"full_attention": hidden, "sliding_attention": hidden}
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": minutes})
    noted, log = torch.zeros(2, device=s.device), {"loss": 0.0, "norm": 0.0}

    def learn(batch: dict[str, Any]) -> Tensor:
        return run(**batch, use_cache=False).loss / micro  # type: ignore[no-any-return]

    def note(loss: Tensor) -> None:
        if kept:
            noted[0] += loss.detach()
        else:
            log["loss"] += loss.item()

    def step() -> None:
        _precision(way)
        optimizer.zero_grad()
        if once:
            with _casting(s, way):
                for batch in batches:
                    loss = learn(batch)
                    loss.backward()
                    note(loss)
        else:
            for batch in batches:
                with _casting(s, way):
                    loss = learn(batch)
                loss.backward()
                note(loss)
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if kept:
            noted[1] = norm
        else:
            log["norm"] = norm.item()

    return step


# Vision and language, training.


def _whole_pictures(self: Any, pixel_values: Tensor, pixel_mask: Tensor, max_image_length: int = 200) -> tuple[Tensor, Tensor, Any]:
    """All pictures fill their square: each patch is taken, at its own place."""
    x = self.patch_embeddings(pixel_values)
    batch, _, height, width = x.shape
    x = torch.cat([self.cls_token.expand(batch, -1, -1), x.flatten(2).transpose(1, 2)], dim=1) + self.position_embeddings
    return self.dropout(x), torch.ones(x.shape[:2], dtype=torch.long, device=x.device), (None, (height, width))


def _sdpa_vilt(self: Any, x: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> tuple[Tensor]:
    heads = (*x.shape[:-1], -1, self.attention_head_size)
    q, k, v = (part(x).view(heads).transpose(1, 2) for part in (self.query, self.key, self.value))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.to(q.dtype))
    return (y.transpose(1, 2).flatten(2),)


def vilt(s: Setup, *, whole: bool = False, ahead: bool = False, fused: bool = False, sdpa: bool = False, **how: Any) -> Step:
    """ViLT learns to answer questions about 32 pictures: it picks the patches to look at picture by picture; loss and score are read."""
    from transformers import ViltConfig, ViltForQuestionAnswering

    way, pairs, side, length, answers = How(**how), s.size(32, 3), s.size(384, 64), s.size(40, 6), s.size(3129, 9)
    config = ViltConfig(
        vocab_size=s.size(30_522, 101), hidden_size=s.size(768, 32), num_hidden_layers=s.size(8, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=length, image_size=side, patch_size=s.size(32, 16), num_labels=answers,
    )  # fmt: skip
    model: Any = _placed(s, way, ViltForQuestionAnswering(config)).train()
    if whole:
        model.vilt.embeddings.visual_embed = MethodType(_whole_pictures, model.vilt.embeddings)
    if sdpa:
        for layer in model.vilt.encoder.layer:
            layer.attention.attention.forward = MethodType(_sdpa_vilt, layer.attention.attention)
    if fused:
        model.vilt.encoder.forward = s.compile(model.vilt.encoder.forward)
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.01)
    scaler = torch.amp.GradScaler(s.device.type) if way.scaler and s.cuda else None
    batches: list[tuple[Tensor, ...]] = []
    for _ in range(3):
        asked = (torch.arange(length) < torch.randint(length // 3, length + 1, (pairs, 1))).long()
        ids = torch.randint(1, s.size(30_522, 101), (pairs, length)) * asked
        labels = torch.zeros(pairs, answers).scatter_(1, torch.randint(answers, (pairs, 3)), torch.tensor([1.0, 0.6, 0.3]).expand(pairs, -1))
        batches.append((ids, asked, torch.randn(pairs, 3, side, side), torch.ones(pairs, side, side, dtype=torch.long), labels))
    if ahead:
        batches = [tuple(s.pin(part) for part in batch) for batch in batches]
    queue, turn = Prefetcher(batches, s) if ahead else None, 0
    noted, log = torch.zeros(2, device=s.device), [0.0, 0.0]

    def step() -> None:
        nonlocal turn
        _precision(way)
        batch = queue.next() if queue else tuple(part.to(s.device) for part in batches[turn % len(batches)])
        turn += 1
        ids, asked, pictures, shown, labels = batch
        optimizer.zero_grad()
        with _casting(s, way):
            out = model(input_ids=ids, attention_mask=asked, pixel_values=pictures, pixel_mask=shown, labels=labels)
        if scaler:
            scaler.scale(out.loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            out.loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        score = labels.gather(1, out.logits.detach().argmax(-1, keepdim=True)).mean()
        if whole:
            noted[0] += out.loss.detach()
            noted[1] += score
        else:
            log[0] += out.loss.item()
            log[1] += score.item()

    return step


# Speech, in service.


def _sdpa_bark(self: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *_: Any) -> tuple[Tensor, None]:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=self.is_causal), None


def _sampled(chances: Tensor) -> Tensor:
    return torch.multinomial(chances, num_samples=1)[:, 0]


def _sampled_there(chances: Tensor) -> Tensor:
    """The same draw: each chance over a wait of its own, the largest one wins."""
    return (chances / torch.empty_like(chances).exponential_(1.0)).argmax(-1)


def bark(s: Setup, *, batch: int = 1, there: bool = False, pinned: bool = False, sdpa: bool = False, **how: Any) -> Step:
    """Bark's fine model reads a sentence of an audiobook, window by window, and adds six codebooks to the two that there are, one by one."""
    from transformers import BarkFineConfig, BarkFineModel

    way, frames, window, past, codes = How(**how), s.size(1024, 24), s.size(1024, 24), s.size(512, 12), s.size(1024, 30)
    given, total, warmth = 2, s.size(8, 4), 0.5
    config = BarkFineConfig(
        block_size=window, input_vocab_size=codes + 32, output_vocab_size=codes + 32, num_layers=s.size(12, 1), num_heads=s.size(12, 2),
        hidden_size=s.size(768, 32), n_codes_total=total, n_codes_given=given,
    )  # fmt: skip
    with s.device:
        model: Any = BarkFineModel(config)
    model = _placed(s, way, model).eval()
    if sdpa:
        for layer in model.layers:
            layer.attn._attn = MethodType(_sdpa_bark, layer.attn)
    voice = torch.randint(codes, (1, past, total), device=s.device).expand(batch, -1, -1)
    coarse = torch.randint(codes, (batch, frames, given))
    coarse = s.pin(coarse) if pinned else coarse
    draw = _sampled_there if there else _sampled

    @torch.no_grad()
    def spoken(first: Tensor) -> Tensor:
        fine = torch.cat([voice, F.pad(first, (0, total - given), value=codes)], dim=1)
        rounds = max(0, int(np.ceil((frames - (window - past)) / past))) + 1
        for turn in range(rounds):
            start = min(turn * past, fine.shape[1] - window)
            filled = min(past + turn * past, fine.shape[1] - past)
            seen = fine[:, start : start + window, :].clone()
            for book in range(given, total):
                logits = model(book, seen).logits[:, :, :codes] / warmth
                chances = F.softmax(logits, dim=-1)[:, filled - start : window]
                guess = draw(chances.reshape(-1, codes)).view(batch, -1)
                seen[:, filled - start :, book] = guess.to(torch.int32)
            for book in range(given, total):
                fine[:, filled : filled + window - (filled - start), book] = seen[:, filled - start :, book]
        return fine.transpose(1, 2)[:, :, past:]

    def step() -> np.ndarray[Any, Any]:
        _precision(way)
        return spoken(coarse.to(s.device, non_blocking=pinned)).cpu().numpy()  # type: ignore[no-any-return]

    return step


# Language, in service.


def nystromformer(s: Setup, *, late: bool = False, pinned: bool = False, fused: bool = False, **how: Any) -> Step:
    """Nystromformer reads eight contracts of 4096 words by 64 landmarks; the vectors of all go to an index on the host."""
    from transformers import NystromformerConfig, NystromformerModel

    way, contracts, length, words, width = How(**how), s.size(8, 2), s.size(4096, 32), s.size(30_000, 101), s.size(768, 32)
    landmarks = s.size(64, 4)
    config = NystromformerConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=s.size(5, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(3072, 64), max_position_embeddings=length, segment_means_seq_len=length, num_landmarks=landmarks,
        conv_kernel_size=s.size(65, 5),
    )  # fmt: skip
    model: Any = _placed(s, way, NystromformerModel(config)).eval()
    if fused:
        model.encoder.forward = s.compile(model.encoder.forward)
    pages = [torch.randint(3, words, (contracts, length)) for _ in range(4)]
    pages = [s.pin(ids) for ids in pages] if pinned else pages
    stays = [s.pin(torch.zeros(contracts, width)) for _ in range(2)]
    ready = [torch.cuda.Event() for _ in stays] if s.cuda else []
    index, turn = np.zeros((len(pages) * contracts, width), dtype=np.float32), 0

    def put(at: int, vectors: Tensor) -> None:
        at %= len(pages)
        index[at * contracts : (at + 1) * contracts] = vectors.numpy()

    @torch.no_grad()
    def step() -> None:
        nonlocal turn
        _precision(way)
        ids = pages[turn % len(pages)].to(s.device, non_blocking=pinned)
        with _casting(s, way):
            hidden = model(input_ids=ids).last_hidden_state
        vectors = F.normalize(hidden.float().mean(1), dim=-1)
        if late:
            now, before = turn % 2, (turn + 1) % 2
            stays[now].copy_(vectors, non_blocking=True)
            if ready:
                ready[now].record()
                ready[before].synchronize()
            if turn:
                put(turn - 1, stays[before])
        else:
            put(turn, vectors.cpu())
        turn += 1

    return step


WORKLOADS = (
    _public(
        "meeting_minutes", "T5Gemma of transformers, bf16 autocast: 2 micro-batches of 16 x 512 words, a vocabulary of 32,003; losses are read.",
        t5gemma, {"autocast": BF16},
        {"unfused-elementwise": {"compiled": COMPILED}, "unfused-norm": {"fused_norms": True}, "dtype-casts": {"once": True},
         "sync-stall": {"kept": True}, "gemm-alignment": {"vocabulary": 32_064}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "picture_questions", "ViLT of transformers, fp16 autocast and a scaler, 32 pageable pictures; patches are picked picture by picture.",
        vilt, {"autocast": HALF, "scaler": True},
        {"sync-stall": {"whole": True}, "memcpy": {"ahead": True}, "amp-scaler-sync": {"optimizer": "fused"},
         "amp-scaler-sync/bf16": {"autocast": BF16, "scaler": False}, "unfused-attention": {"sdpa": True},
         "unfused-elementwise": {"fused": True}},
    ),
    _public(
        "audiobook_voices", "Bark's fine model of transformers in fp16, a sentence at a time: 2 windows x 6 codebooks, each drawn by multinomial.",
        bark, {"dtype": HALF},
        {"unfused-attention": {"sdpa": True}, "sync-stall": {"there": True}, "memcpy": {"pinned": True},
         "low-arithmetic-intensity": {"batch": 4}},
        shared={"low-arithmetic-intensity": 4.0},
    ),
    _public(
        "contract_vectors", "Nystromformer of transformers in FP32 reads 8 contracts of 4096 words; the vectors are read in each step.",
        nystromformer, {},
        {"precision": {"autocast": BF16}, "precision/tf32": {"tf32": True}, "unfused-elementwise": {"fused": True},
         "sync-stall": {"late": True}, "memcpy": {"pinned": True}},
    ),
)  # fmt: skip
