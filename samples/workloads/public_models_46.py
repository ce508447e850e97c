"""Text models of transformers in ordinary use: UMT5 and LUKE fine-tuned, OLMo answering, Falcon scoring pages."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step
from .public_models import BF16, How, _casting, _optimizer, _precision
from .public_models_4 import _public

IGNORED = -100
READ_EVERY = 50


def _rms(self: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def dialects(
    s: Setup, *, autocast: torch.dtype | None = None, tf32: bool = False, compiled: bool = False, fused_norms: bool = False,
    optimizer: str | None = None, quiet: bool = False, pinned: bool = False,
) -> Step:  # fmt: skip
    """UMT5 small learns to render letters in mountain dialects: 32 pairs of 256 and 64 pieces in FP32, the loss logged in each step."""
    from transformers import UMT5Config, UMT5ForConditionalGeneration

    words = s.size(250112, 101)
    config = UMT5Config(
        vocab_size=words, d_model=s.size(512, 32), d_kv=s.size(64, 16), d_ff=s.size(1024, 64), num_layers=s.size(8, 1),
        num_heads=s.size(6, 2), decoder_start_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    with s.device:
        model = UMT5ForConditionalGeneration(config).to(s.device).train()
    if fused_norms:
        for module in model.modules():
            if type(module).__name__ == "UMT5LayerNorm":
                module.forward = _rms.__get__(module)
    run = s.compile(model) if compiled else model
    how = How(autocast=autocast, tf32=tf32, optimizer=optimizer)
    adam = _optimizer(how, model.parameters())

    batch, length, target = s.size(32, 2), s.size(256, 16), s.size(64, 8)
    batches: list[tuple[Tensor, ...]] = []
    for _ in range(8):
        ids, labels = torch.randint(2, words, (batch, length)), torch.randint(2, words, (batch, target))
        mask = (torch.arange(length) < torch.randint(length // 2, length + 1, (batch, 1))).long()
        ends = torch.randint(target // 2, target + 1, (batch, 1))
        batches.append((ids * mask, mask, labels.masked_fill(torch.arange(target) >= ends, IGNORED)))
    loader = Prefetcher([tuple(s.pin(tensor) for tensor in host) for host in batches], s) if pinned else None
    turn, log = 0, [0.0, 0.0]

    def step() -> float:
        nonlocal turn
        _precision(how)
        ids, mask, labels = loader.next() if loader else tuple(tensor.to(s.device) for tensor in batches[turn % len(batches)])
        turn += 1
        adam.zero_grad()
        with _casting(s, how):
            loss = run(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        loss.backward()
        adam.step()
        if not quiet or turn % READ_EVERY == 0:
            log[0] = 0.9 * log[0] + 0.1 * loss.item()
            log[1] += (labels != IGNORED).sum().item()
        return log[0]

    return step


def genealogies(
    s: Setup, *, autocast: torch.dtype | None = None, tf32: bool = False, compiled: bool = False, optimizer: str | None = None,
    quiet: bool = False, encoded: bool = False,
) -> Step:  # fmt: skip
    """LUKE base learns how two people of a chronicle are related: 4 sentences of 48 words, two marked people in each, FP32.

    Each batch is made from lists of words and spans as it is needed, as the tokenizer of LUKE does it, padded to one length."""
    from transformers import LukeConfig, LukeForEntityPairClassification

    words, length, mention, relations = s.size(50267, 101), s.size(48, 16), s.size(30, 4), s.size(42, 5)
    config = LukeConfig(
        vocab_size=words, entity_vocab_size=4, hidden_size=s.size(768, 32), entity_emb_size=s.size(256, 16),
        num_hidden_layers=s.size(12, 2), num_attention_heads=s.size(12, 2), intermediate_size=s.size(3072, 64),
        max_position_embeddings=s.size(514, 32), type_vocab_size=1, pad_token_id=1, num_labels=relations,
    )  # fmt: skip
    with s.device:
        model = LukeForEntityPairClassification(config).to(s.device).train()
    run = s.compile(model) if compiled else model
    how = How(autocast=autocast, tf32=tf32, optimizer=optimizer)
    adam = _optimizer(how, model.parameters(), weight_decay=0.01)

    draw = random.Random(7)
    sentences: list[dict[str, Any]] = []
    for _ in range(s.size(64, 8)):
        count = draw.randint(length * 2 // 3, length)
        first, second = sorted(draw.sample(range(1, count - 4), 2))
        spans = [(first, first + draw.randint(1, 3)), (second, second + draw.randint(1, 3))]
        ids = [draw.randrange(4, words) for _ in range(count)]
        sentences.append({"ids": ids, "spans": spans, "relation": draw.randrange(relations)})

    def collate(items: list[dict[str, Any]]) -> dict[str, Tensor]:
        ids, masks, positions = [], [], []
        for item in items:
            padding = length - len(item["ids"])
            ids.append(item["ids"] + [1] * padding)
            masks.append([1] * len(item["ids"]) + [0] * padding)
            places = [list(range(start, end)) for start, end in item["spans"]]
            positions.append([place + [-1] * (mention - len(place)) for place in places])
        return {
            "input_ids": torch.tensor(ids),
            "attention_mask": torch.tensor(masks),
            "entity_ids": torch.tensor([[2, 3]] * len(items)),
            "entity_attention_mask": torch.ones(len(items), 2, dtype=torch.long),
            "entity_position_ids": torch.tensor(positions),
            "labels": torch.tensor([item["relation"] for item in items]),
        }

    size = s.size(4, 2)
    groups = [sentences[at : at + size] for at in range(0, len(sentences), size)]
    features = [collate(group) for group in groups] if encoded else []
    turn, log = 0, {"loss": 0.0, "right": 0.0, "seen": 0}
    loss_sum, right_sum = torch.zeros((), device=s.device), torch.zeros((), device=s.device)

    def step() -> float:
        nonlocal turn
        _precision(how)
        at = turn % len(groups)
        turn += 1
        host = features[at] if encoded else collate(groups[at])
        batch = {key: tensor.to(s.device) for key, tensor in host.items()}
        adam.zero_grad()
        with _casting(s, how):
            output = run(**batch)
        output.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        right = (output.logits.detach().argmax(-1) == batch["labels"]).sum()
        log["seen"] += size
        if not quiet:
            log["loss"] += output.loss.item()
            log["right"] += right.item()
        else:
            loss_sum.add_(output.loss.detach())
            right_sum.add_(right)
            if turn % READ_EVERY == 0:
                log["loss"], log["right"] = loss_sum.item(), right_sum.item()
        return log["right"] / log["seen"]

    return step


def lock_replies(
    s: Setup, *, dtype: torch.dtype | None = None, tf32: bool = False, static: bool = False, attention: str = "eager",
    pinned: bool = False, prompts: int = 1,
) -> Step:  # fmt: skip
    """OLMo 1B answers a boater with eight pieces, one prompt of 24 pieces at a time, in FP32, by `generate` with a growing cache.

    Given a static cache, here one that all replies share, `generate` compiles the decoding step by itself, with CUDA graphs
    (mode="reduce-overhead")."""
    from transformers import OlmoConfig, OlmoForCausalLM, StaticCache

    words = s.size(50304, 101)
    config = OlmoConfig(
        vocab_size=words, hidden_size=s.size(2048, 32), intermediate_size=s.size(8192, 64), num_hidden_layers=s.size(16, 1),
        num_attention_heads=s.size(16, 2), tie_word_embeddings=True, eos_token_id=s.size(50279, 100), attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model = OlmoForCausalLM(config)
    model = (model.to(s.device, dtype) if dtype else model.to(s.device)).eval()
    how, new = How(tf32=tf32), s.size(8, 3)
    length = s.size(24, 8)
    cache = StaticCache(config=model.config, max_cache_len=length + new) if static else None
    options: dict[str, Any] = {"past_key_values": cache} if cache is not None else {}
    batches: list[tuple[Tensor, ...]] = [(torch.randint(2, s.size(50000, 100), (prompts, length)),) for _ in range(8)]
    loader = Prefetcher([tuple(s.pin(tensor) for tensor in host) for host in batches], s) if pinned else None
    turn = 0

    @torch.no_grad()
    def step() -> list[list[int]]:
        nonlocal turn
        _precision(how)
        ids = loader.next()[0] if loader else batches[turn % len(batches)][0].to(s.device)
        turn += 1
        if cache is not None:
            cache.reset()
        mask = torch.ones_like(ids)
        replies = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=1, **options)
        answers: list[list[int]] = replies[:, ids.shape[1] :].tolist()
        return answers

    return step


def _sliced_heads(self: Any, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Falcon takes the one key and value by lists of an index, each of which is copied to the GPU; slices need no copy."""
    qkv = qkv.view(*qkv.shape[:2], self.num_heads + 2, self.head_dim)
    return qkv[..., :-2, :], qkv[..., -2:-1, :], qkv[..., -1:, :]


def _shared_heads(self: Any, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Likewise, for every head: the fused attention takes as many keys as queries."""
    query, key, value = _sliced_heads(self, qkv)
    return query, key.expand_as(query), value.expand_as(query)


def almanac(
    s: Setup, *, compiled: bool = False, fused_attention: bool = False, sliced: bool = False, quiet: bool = False,
    pinned: bool = False, pages: int = 1,
) -> Step:  # fmt: skip
    """Falcon of the 7B's width, four layers, in bf16: the perplexity of 4 pages of 1024 pieces, by which a crawl is sifted."""
    from transformers import FalconConfig, FalconForCausalLM

    words = s.size(65024, 101)
    config = FalconConfig(
        vocab_size=words, hidden_size=s.size(4544, 64), num_hidden_layers=s.size(4, 1), num_attention_heads=s.size(71, 4),
        multi_query=True, parallel_attn=True, bias=False, alibi=False, new_decoder_architecture=False,
        attn_implementation="sdpa" if fused_attention else "eager",
    )  # fmt: skip
    with s.device:
        model = FalconForCausalLM(config).to(s.device, BF16).eval()
    for module in model.modules():
        if type(module).__name__ == "FalconAttention":
            if fused_attention:
                module._split_heads, module.num_kv_heads = _shared_heads.__get__(module), module.num_heads
            elif sliced:
                module._split_heads = _sliced_heads.__get__(module)

    def perplexity(ids: Tensor) -> Tensor:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return losses.view(len(ids), -1).mean(1).exp()

    run = s.compile(perplexity) if compiled else perplexity
    how, shape = How(), (s.size(4, 2) * pages, s.size(1024, 16))
    batches: list[tuple[Tensor, ...]] = [(torch.randint(words, shape),) for _ in range(8)]
    loader = Prefetcher([tuple(s.pin(tensor) for tensor in host) for host in batches], s) if pinned else None
    turn, kept = 0, torch.zeros((), dtype=torch.long, device=s.device)
    log = {"kept": 0, "seen": 0}

    @torch.no_grad()
    def step() -> float:
        nonlocal turn
        _precision(how)
        ids = loader.next()[0] if loader else batches[turn % len(batches)][0].to(s.device)
        turn += 1
        scores = run(ids)
        log["seen"] += len(ids)
        if quiet:
            kept.add_((scores < words).sum())
            if turn % READ_EVERY == 0:
                log["kept"] = int(kept.item())
        else:
            log["kept"] += sum(score < words for score in scores.tolist())
        return log["kept"] / log["seen"]

    return step


WORKLOADS = (
    _public(
        "pasture_dialects", "UMT5 small of transformers, fine-tuned in FP32 on 32 pairs, 250112 words, attention and norms written out.",
        dialects, {},
        {
            "precision": {"autocast": BF16},
            "precision/tf32": {"tf32": True},
            "unfused-norm": {"fused_norms": True},
            "unfused-elementwise": {"compiled": True},
            "optimizer-foreach": {"optimizer": "fused"},
            "sync-stall": {"quiet": True},
            "memcpy": {"pinned": True},
        },
    ),
    _public(
        "feud_genealogies", "LUKE base of transformers, fine-tuned in FP32 on 4 sentences with two marked people: launches are the bound.",
        genealogies, {},
        {
            "launch-gap": {"compiled": True},
            "optimizer-foreach": {"optimizer": "fused"},
            "precision": {"autocast": BF16},
            "precision/tf32": {"tf32": True},
            "sync-stall": {"quiet": True},
            "host-bound": {"encoded": True},
        },
    ),
    _public(
        "lockkeeper_replies", "OLMo 1B of transformers, FP32, generates eight pieces for one prompt: launches are the bound.",
        lock_replies, {},
        {
            "launch-gap": {"static": True},
            "low-arithmetic-intensity": {"prompts": 8},
            "precision": {"dtype": BF16},
            "precision/tf32": {"tf32": True},
            "unfused-attention": {"attention": "sdpa"},
            "memcpy": {"pinned": True},
        },
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "almanac_pages", "Falcon of transformers, 4544 wide, bf16, attention written out: the perplexity of 4 pages of 1024 pieces.",
        almanac, {},
        {
            "unfused-attention": {"fused_attention": True},
            "unfused-elementwise": {"compiled": True},
            "sync-stall": {"sliced": True},
            "sync-stall/scores": {"quiet": True},
            "memcpy": {"pinned": True},
            "low-arithmetic-intensity": {"pages": 4},
        },
        shared={"low-arithmetic-intensity": 4.0},
    ),
)  # fmt: skip
