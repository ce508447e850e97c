"""Public models of rulings, subtitles, minutes and manuals, by an author who has not read the rules."""

from __future__ import annotations

from collections import deque
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step
from .public_models import BF16, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public

# Long context.


def _one_kernel(self: Any, hidden_states: Tensor) -> Tensor:
    weight = self.weight
    return F.rms_norm(hidden_states.to(weight.dtype), weight.shape, weight, self.variance_epsilon)


def _texts(drawn: np.random.Generator, words: int, rows: int, shortest: int, longest: int, first: int = 3) -> tuple[Tensor, Tensor]:
    """Words of texts of different lengths, filled up with zeros at the right, and what is not filling."""
    lengths = drawn.integers(shortest, longest + 1, rows)
    lengths[0] = longest
    mask = np.arange(longest) < lengths[:, None]
    ids = drawn.integers(first, words, (rows, longest)) * mask
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


def ruling_vectors(
    s: Setup, *, halves: bool = False, fused_norms: bool = False, fused: bool = False, later: bool = False, pinned: bool = False, **how: Any
) -> Step:
    """The encoder of LongT5 with transient global attention makes vectors of long court rulings for an index that NumPy keeps."""
    from transformers import LongT5Config, LongT5EncoderModel

    way, words, width, rows, length = How(**{"autocast": BF16, **how}), s.size(32_128, 101), s.size(768, 32), s.size(4, 2), s.size(4096, 64)
    config = LongT5Config(
        vocab_size=words, d_model=width, d_kv=s.size(64, 8), d_ff=s.size(2048, 64), num_layers=s.size(5, 2), num_heads=s.size(12, 4),
        local_radius=s.size(127, 7), global_block_size=s.size(16, 4), feed_forward_proj="gated-gelu",
        encoder_attention_type="transient-global",
    )  # fmt: skip
    with s.device:
        model: Any = LongT5EncoderModel(config)
    model = (model.to(BF16) if halves else model).eval()
    if fused_norms:
        for module in model.modules():
            if type(module).__name__ == "LongT5LayerNorm":
                module.forward = MethodType(_one_kernel, module)
    run = s.compile(model) if fused else model
    drawn = np.random.default_rng(3)
    batches = [_texts(drawn, words, rows, length // 2, length) for _ in range(6)]
    if pinned:
        batches = [(s.pin(ids), s.pin(mask)) for ids, mask in batches]
    index: deque[np.ndarray[Any, Any]] = deque(maxlen=64)
    waiting: deque[tuple[Tensor, Any]] = deque()
    turn = 0

    def note(vectors: Tensor) -> None:
        if not later:
            index.append(vectors.cpu().numpy())
            return
        there = s.pin(torch.empty(vectors.shape))
        there.copy_(vectors, non_blocking=True)
        ready = torch.cuda.Event() if s.cuda else None
        if ready:
            ready.record()
        waiting.append((there, ready))
        if len(waiting) > 1:
            known, done = waiting.popleft()
            if done:
                done.synchronize()
            index.append(known.numpy())

    @torch.no_grad()
    def step() -> Any:
        nonlocal turn
        _precision(way)
        ids, mask = (part.to(s.device, non_blocking=pinned) for part in batches[turn % len(batches)])
        turn += 1
        with _casting(s, way):
            states = run(input_ids=ids, attention_mask=mask).last_hidden_state
        kept = mask[..., None]
        note(F.normalize((states.float() * kept).sum(1) / kept.sum(1), dim=-1))
        return index

    return step


# Translation.


def _banned_by_row(scores: Tensor, said: Tensor) -> Tensor:
    """No three words are said twice, row by row, as processors of generate() have done for long."""
    for at, row in enumerate(said.tolist()):
        after: dict[tuple[int, int], list[int]] = {}
        for first, second, third in zip(row, row[1:], row[2:], strict=False):
            after.setdefault((first, second), []).append(third)
        banned = after.get((row[-2], row[-1]))
        if banned:
            scores[at, banned] = float("-inf")
    return scores


def _banned(scores: Tensor, said: Tensor) -> Tensor:
    if said.shape[1] < 3:
        return scores
    triples = said.unfold(1, 3, 1)
    same = (triples[..., :2] == said[:, None, -2:]).all(-1)
    limits = torch.zeros_like(same, dtype=scores.dtype).masked_fill(~same, float("inf")).masked_fill(same, float("-inf"))
    return scores.scatter_reduce(1, triples[..., 2], limits, "amin")


def film_subtitles(
    s: Setup, *, batch: int = 4, at_once: bool = False, checked: int = 1, attention: str = "eager", dtype: torch.dtype | None = None,
    **how: Any,
) -> Step:  # fmt: skip
    """M2M100 translates four lines of a film greedily: no three words come twice, and it stops when all lines have ended."""
    from transformers import DynamicCache, EncoderDecoderCache, M2M100Config, M2M100ForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    way, words, many, end, language = How(**how), s.size(128_112, 101), s.size(batch, max(2, batch // 8)), 2, s.size(128_022, 99)
    config = M2M100Config(
        vocab_size=words, d_model=s.size(1024, 32), encoder_layers=s.size(6, 2), decoder_layers=s.size(6, 2),
        encoder_ffn_dim=s.size(4096, 64), decoder_ffn_dim=s.size(4096, 64), encoder_attention_heads=s.size(16, 4),
        decoder_attention_heads=s.size(16, 4), attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = M2M100ForConditionalGeneration(config)
    model = (model.to(dtype) if dtype else model).eval()
    ids, mask = _texts(np.random.default_rng(4), s.size(128_000, 90), many, s.size(12, 4), s.size(40, 8))
    ids, mask = ids.masked_fill(mask == 0, 1).to(s.device), mask.to(s.device)
    start = torch.tensor([[end, language]], device=s.device).repeat(many, 1)
    banned = _banned if at_once else _banned_by_row

    @torch.no_grad()
    def step() -> list[list[int]]:
        _precision(way)
        memory = BaseModelOutput(last_hidden_state=model.model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        said, read = start, start
        ended = torch.zeros(many, dtype=torch.bool, device=s.device)
        for turn in range(1, s.size(12, 5) + 1):
            out = model(encoder_outputs=memory, attention_mask=mask, decoder_input_ids=read, past_key_values=cache, use_cache=True)
            scores = banned(out.logits[:, -1].float(), said)
            read = scores.argmax(-1, keepdim=True).masked_fill(ended[:, None], 1)
            said, ended = torch.cat([said, read], 1), ended | (read[:, 0] == end)
            if turn % checked == 0 and bool(ended.all()):
                break
        rows = said[:, 2:].tolist()
        return [row[: row.index(end)] if end in row else row for row in rows]

    return step


# Summaries.


def council_minutes(s: Setup, *, vocabulary: int = 30_522, **how: Any) -> Step:
    """ProphetNet learns to sum up minutes of councils: its decoder says two words ahead, in streams of their own."""
    from transformers import ProphetNetConfig, ProphetNetForConditionalGeneration

    way, words, width, wide, heads = How(**how), s.size(vocabulary, 101), s.size(1024, 32), s.size(4096, 64), s.size(16, 4)
    config = ProphetNetConfig(
        vocab_size=words, hidden_size=width, encoder_ffn_dim=wide, decoder_ffn_dim=wide, num_encoder_layers=s.size(4, 1),
        num_decoder_layers=s.size(3, 1), num_encoder_attention_heads=heads, num_decoder_attention_heads=heads, use_cache=False,
    )  # fmt: skip
    with s.device:
        made: Any = ProphetNetForConditionalGeneration(config)
    model = _placed(s, way, made).train()
    parameters = list(model.parameters())
    run, optimizer = _call(s, way, model), _optimizer(way, parameters)
    drawn, rows = np.random.default_rng(5), s.size(8, 2)
    known = s.size(30_522, 101)
    batches = []
    for _ in range(4):
        ids, mask = _texts(drawn, known, rows, s.size(160, 6), s.size(320, 12))
        said, kept = _texts(drawn, known, rows, s.size(40, 3), s.size(96, 6))
        batches.append((ids, mask, F.pad(said, (1, 0))[:, :-1], said.masked_fill(kept == 0, -100)))
    turn, history = 0, deque[float](maxlen=100)
    total = torch.zeros((), device=s.device)

    def step() -> Any:
        nonlocal turn
        _precision(way)
        ids, mask, before, labels = (part.to(s.device) for part in batches[turn % len(batches)])
        turn += 1
        optimizer.zero_grad(set_to_none=not way.zero)
        with _casting(s, way):
            loss = run(input_ids=ids, attention_mask=mask, decoder_input_ids=before, labels=labels, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if way.read_loss:
            history.append(loss.item())
            return history
        return total.add_(loss.detach())

    return step


# Retrieval.


def manual_retriever(
    s: Setup, *, around: bool = False, fused: bool = False, kept: bool = False, pinned: bool = False, attention: str = "eager", **how: Any
) -> Step:
    """Nemotron's decoder becomes a retriever of pages of manuals: questions, pages and hard wrong pages, in four micro-batches."""
    from transformers import NemotronConfig, NemotronModel

    way, words, micro, rows = How(**{"autocast": BF16, **how}), s.size(64_000, 101), s.size(4, 2), s.size(12, 2)
    config = NemotronConfig(
        vocab_size=words, hidden_size=s.size(1024, 32), intermediate_size=s.size(4096, 64), num_hidden_layers=s.size(4, 2),
        num_attention_heads=s.size(16, 4), num_key_value_heads=s.size(8, 2), max_position_embeddings=1024, use_cache=False,
        pad_token_id=None, attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = NemotronModel(config)
    model = model.train()
    parameters = list(model.parameters())
    run = s.compile(model, dynamic=False) if fused else model
    optimizer = _optimizer(way, parameters, weight_decay=0.01)
    drawn = np.random.default_rng(6)
    batches = [
        (*_texts(drawn, words, rows, s.size(8, 3), s.size(32, 6)), *_texts(drawn, words, 2 * rows, s.size(64, 4), s.size(192, 10)))
        for _ in range(3 * micro)
    ]
    if pinned:
        batches = [tuple(s.pin(part) for part in batch) for batch in batches]  # type: ignore[misc]
    right = torch.arange(rows, device=s.device)
    turn, history, total = 0, deque[float](maxlen=200), torch.zeros((), device=s.device)

    def embedded(ids: Tensor, mask: Tensor) -> Tensor:
        states = run(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        last = mask.sum(1) - 1
        return F.normalize(states.float().gather(1, last[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0], dim=-1)

    def loss_of(question: Tensor, asked: Tensor, page: Tensor, shown: Tensor) -> Tensor:
        return F.cross_entropy(embedded(question, asked) @ embedded(page, shown).T / 0.05, right)

    def accumulate() -> None:
        nonlocal turn
        for _ in range(micro):
            batch = [part.to(s.device, non_blocking=pinned) for part in batches[turn % len(batches)]]
            turn += 1
            with _casting(s, way):
                loss = loss_of(*batch) / micro
            loss.backward()
            if kept:
                total.add_(loss.detach())
            else:
                history.append(loss.item())

    def step() -> Any:
        _precision(way)
        optimizer.zero_grad()
        if around:
            with _casting(s, way):
                accumulate()
        else:
            accumulate()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return total if kept else history

    return step


WORKLOADS = (
    _public(
        "ruling_vectors", "LongT5's encoder of transformers, bf16 autocast, 4 pageable rulings of 4096 words; norms written out, vectors are read.",
        ruling_vectors, {},
        {"dtype-casts": {"halves": True}, "unfused-norm": {"fused_norms": True}, "unfused-elementwise": {"fused": True},
         "sync-stall": {"later": True}, "memcpy": {"pinned": True}, "precision/tf32": {"tf32": True}},
    ),
    _public(
        "film_subtitles", "M2M100 of transformers, FP32, 12 words for 4 lines: Python bars words row by row, the end is asked for after each.",
        film_subtitles, {},
        {"host-bound": {"at_once": True}, "sync-stall": {"at_once": True, "checked": 12}, "low-arithmetic-intensity": {"batch": 32},
         "unfused-attention": {"attention": SDPA}, "precision": {"dtype": HALF}, "precision/tf32": {"tf32": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "council_minutes", "ProphetNet of transformers, training in FP32 on 8 x 320 words out of 30,522; gradients are zeroed, the loss is read.",
        council_minutes, {"zero": True, "read_loss": True},
        {"precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}, "gemm-alignment": {"vocabulary": 30_528},
         "optimizer-foreach": {"optimizer": "fused"}, "grad-zeroing": {"zero": False}, "sync-stall": {"read_loss": False}},
    ),
    _public(
        "manual_retriever", "Nemotron of transformers as a retriever, bf16 autocast, 4 micro-batches of 12 questions and 24 pages; losses are read.",
        manual_retriever, {},
        {"dtype-casts": {"around": True}, "unfused-attention": {"attention": SDPA}, "unfused-elementwise": {"fused": True},
         "optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"kept": True}, "memcpy": {"pinned": True}},
    ),
)  # fmt: skip
