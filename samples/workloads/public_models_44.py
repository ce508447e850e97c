"""Language models at a small company: answers tuned on preferences, passages reranked, forms filled in, by an author who logs all that can be logged.

About a third of the fixes are expected to gain nothing: they are what people try first on such a program.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable
from itertools import count as counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, capture
from .public_models import BF16, COMPILED, GRAPHS
from .public_models_2 import SDPA
from .public_models_4 import _public

# Tasting: DPO of a small Llama on pairs of replies, against a frozen copy of itself.


def log_probabilities(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each reply: the sum over its words, the mean logit and the mean entropy (both only for the logs)."""
    labels = labels[:, 1:]
    there = labels != -100
    logits = logits[:, :-1].float()
    each = logits.log_softmax(-1)
    chosen = each.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        words = there.sum(-1)
        entropy = -((each.exp() * each).sum(-1) * there).sum(-1) / words
        level = (logits.mean(-1) * there).sum(-1) / words
    return (chosen * there).sum(-1), level, entropy


def reply_tasting(
    s: Setup, *, attention: str = "eager", micro: int = 4, late: bool = False, pinned: bool = False, fused: bool = False, halved: bool = False,
    compiled: bool = False,
) -> Step:  # fmt: skip
    """A Llama of SmolLM's width learns from 8 pairs of replies in micro-batches, bf16 autocast."""
    from transformers import LlamaConfig, LlamaForCausalLM

    pairs, micro, length, words = s.size(8, 4), s.size(micro, micro // 2), s.size(512, 16), s.size(49152, 101)
    config = LlamaConfig(
        vocab_size=words, hidden_size=s.size(960, 32), intermediate_size=s.size(2560, 64), num_hidden_layers=s.size(8, 1),
        num_attention_heads=s.size(15, 4), num_key_value_heads=s.size(5, 2), max_position_embeddings=2048, tie_word_embeddings=True,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        policy: Any = LlamaForCausalLM(config).train()
    reference: Any = copy.deepcopy(policy).eval().requires_grad_(False)
    if halved:
        for weight in reference.parameters():  # not the buffers: the positions' frequencies stay FP32
            weight.data = weight.data.to(BF16)
    ask, answer, likely = policy, reference, log_probabilities
    if compiled:
        ask, answer, likely = (s.compile(each, mode=COMPILED, dynamic=False) for each in (policy, reference, log_probabilities))
    named = dict(policy.named_parameters())
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-7, **({"fused": True} if fused else {}))
    rng = np.random.default_rng(44)

    def told(shortest: int, longest: int) -> list[int]:
        return rng.integers(3, words, rng.integers(shortest, longest)).tolist()

    half = length // 2
    data = [
        [{"prompt": told(half // 4, half), "chosen": told(half // 4, half), "rejected": told(half // 4, half)} for _ in range(pairs)]
        for _ in range(6)
    ]  # fmt: skip
    keys = [
        "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected", "logits/chosen",
        "logits/rejected", "entropy/chosen", "entropy/rejected", "reference/chosen", "reference/rejected", "loss",
    ]  # fmt: skip
    with s.device:
        noted, norms = torch.zeros(len(keys)), torch.zeros(len(named) + 1)
    turn, history = counter(), deque(maxlen=100)

    def collated(rows: list[dict[str, list[int]]]) -> list[Tensor]:
        """Chosen first, then rejected, all padded to the longest that is allowed."""
        ids, mask, labels = [], [], []
        for key in ("chosen", "rejected"):
            for row in rows:
                said = row["prompt"] + row[key]
                rest = length - len(said)
                ids.append(said + [0] * rest)
                mask.append([1] * len(said) + [0] * rest)
                labels.append([-100] * len(row["prompt"]) + row[key] + [-100] * rest)
        parts = [torch.tensor(ids), torch.tensor(mask), torch.tensor(labels)]
        if pinned or late:  # a copy from pageable memory waits, as a read does
            return [s.pin(part).to(s.device, non_blocking=True) for part in parts]
        return [part.to(s.device) for part in parts]

    def compared(ids: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
        with torch.no_grad(), torch.autocast(s.device.type, BF16, enabled=not halved):
            base = likely(answer(input_ids=ids, attention_mask=mask, use_cache=False).logits, labels)[0]
        with torch.autocast(s.device.type, BF16):
            logits = ask(input_ids=ids, attention_mask=mask, use_cache=False).logits
        mine, level, entropy = likely(logits, labels)
        rewards = 0.1 * (mine - base)
        better, worse = rewards.chunk(2)
        losses = -F.logsigmoid(better - worse)
        with torch.no_grad():
            both = [half for part in (mine, level, entropy, base) for half in part.chunk(2)]
            log = [part.mean() for part in (better, worse, better - worse, (better > worse).float(), *both, losses)]
        return losses.sum() / pairs, log

    def step() -> object:
        torch.set_float32_matmul_precision("high")
        now = next(turn)
        rows = data[now % 6]
        optimizer.zero_grad()
        metrics = dict.fromkeys(keys, 0.0)
        for start in range(0, pairs, micro):
            loss, log = compared(*collated(rows[start : start + micro]))
            loss.backward()
            if late:
                noted.add_(torch.stack(log))
            else:
                for key, value in zip(keys, log, strict=True):
                    metrics[key] += value.item() * micro / pairs
        each = [weight.grad.norm() for weight in named.values()]
        total = nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        if late:
            norms.add_(torch.stack([*each, total]))
        else:
            for name, norm in zip(named, each, strict=True):
                metrics[f"grad_norm/{name}"] = norm.item()
            metrics["grad_norm"] = total.item()
        optimizer.step()
        if late and now % 50 == 49:
            metrics |= dict(zip(keys, (noted * micro / pairs / 50).tolist(), strict=True))
            metrics |= dict(zip([*(f"grad_norm/{name}" for name in named), "grad_norm"], (norms / 50).tolist(), strict=True))
            noted.zero_()
            norms.zero_()
        if not late or now % 50 == 49:
            history.append(metrics)
        return history

    return step


# Desk: a cross-encoder reads a question with each of 80 passages that the search has found.


def kendall(scores: list[float]) -> float:
    """How much of the search's order is left."""
    kept = sum((a > b) - (a < b) for i, a in enumerate(scores) for b in scores[i + 1 :])
    return kept / max(len(scores) * (len(scores) - 1) / 2, 1.0)


def gain(labels: list[int]) -> float:
    return sum((2**label - 1) / math.log2(rank + 2) for rank, label in enumerate(labels[:10]))


def archive_desk(
    s: Setup, *, batch: int = 8, late: bool = False, pinned: bool = False, prepared: bool = False, graphed: bool = False, compiled: bool = False,
    autocast: bool = False,
) -> Step:  # fmt: skip
    """One request: a MiniLM of 6 layers scores 80 passages of up to 128 pieces, FP32, eight at a time."""
    from transformers import BertConfig, BertForSequenceClassification

    found, batch, length, words = s.size(80, 6), s.size(batch, min(batch // 4, 6)), s.size(128, 16), s.size(30522, 101)
    config = BertConfig(
        vocab_size=words, hidden_size=s.size(384, 32), num_hidden_layers=s.size(6, 1), num_attention_heads=s.size(12, 2),
        intermediate_size=s.size(1536, 64), num_labels=1, attn_implementation=SDPA,
    )  # fmt: skip
    with s.device:
        model: Any = BertForSequenceClassification(config).eval()
    run = s.compile(model, mode=GRAPHS, dynamic=False) if compiled else model
    rng = np.random.default_rng(45)
    vocabulary = {f"word{n}": n for n in range(5, words)}
    unknown, first, between = 1, 2, 3

    def text(shortest: int, longest: int) -> str:
        return " ".join(f"Word{n}" for n in rng.integers(5, words + words // 20, rng.integers(shortest, longest)))

    passages = [text(s.size(60, 5), s.size(180, 20)) for _ in range(s.size(600, 20))]
    questions = [(text(8, 9) if not s.tiny else text(3, 4), rng.permutation(len(passages))[:found].tolist()) for _ in range(6)]
    relevant = rng.choice(4, len(passages), p=[0.7, 0.15, 0.1, 0.05]).tolist()
    turn, history = counter(), deque(maxlen=100)

    def pieces(text: str) -> list[int]:
        return [vocabulary.get(word, unknown) for word in text.lower().split()]

    if prepared:
        known = [pieces(passage) for passage in passages]
        lengths = torch.tensor([len(row) for row in known])
        table = torch.zeros(len(known), max(length, int(lengths.max())), dtype=torch.long)
        for n, row in enumerate(known):
            table[n, : len(row)] = torch.tensor(row)

    def collated(question: str, picked: list[int]) -> list[Tensor]:
        front = [first, *pieces(question), between]
        room = length - len(front) - 1
        if prepared:
            rows = torch.tensor(picked)
            last = len(front) + lengths[rows].clamp(max=room)
            ids = torch.zeros(len(picked), length, dtype=torch.long)
            ids[:, : len(front)] = torch.tensor(front)
            ids[:, len(front) : -1] = table[rows, :room]
            ids[torch.arange(len(picked)), last] = between
            at = torch.arange(length)
            there = at <= last[:, None]
            return [torch.where(there, ids, 0), (there & (at >= len(front))).long(), there.long()]
        ids, types, mask = [], [], []
        for n in picked:
            back = [*pieces(passages[n])[:room], between]
            rest = [0] * (length - len(front) - len(back))
            ids.append(front + back + rest)
            types.append([0] * len(front) + [1] * len(back) + rest)
            mask.append([1] * (len(front) + len(back)) + rest)
        return [torch.tensor(ids), torch.tensor(types), torch.tensor(mask)]

    def scored(ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        if late or graphed:  # transformers looks into a plain mask, whether all is there, and the host waits for it
            mask = mask[:, None, None].bool().expand(-1, 1, length, -1)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            return run(input_ids=ids, token_type_ids=types, attention_mask=mask).logits[:, 0].float()

    held = [torch.ones(batch, length, dtype=torch.long, device=s.device) for _ in range(3)]
    out: list[Tensor] = []

    @torch.no_grad()
    def captured() -> None:
        out[:] = [scored(*held)]

    torch.set_float32_matmul_precision("highest")
    replay = capture(captured, s) if graphed else None

    def watched(scores: Tensor) -> list[Tensor]:
        sure = scores.sigmoid()
        entropy = F.binary_cross_entropy(sure, sure)
        return [scores.mean(), scores.std(), scores.max(), scores.min(), entropy, (sure > 0.5).float().mean(), scores.isfinite().float().mean()]

    @torch.no_grad()
    def step() -> object:
        torch.set_float32_matmul_precision("highest")
        question, picked = questions[next(turn) % 6]
        scores: list[float] = []
        logs: list[list[float]] = []
        kept, told = [], []
        for start in range(0, found, batch):
            parts = collated(question, picked[start : start + batch])
            if replay:
                for place, part in zip(held, parts, strict=True):
                    place.copy_(part)
                replay()
                now = out[0]
            else:
                if pinned or late:  # a copy from pageable memory waits, as a read does
                    parts = [s.pin(part).to(s.device, non_blocking=True) for part in parts]
                else:
                    parts = [part.to(s.device) for part in parts]
                now = scored(*parts)
            if late:
                kept.append(now)
                told.append(torch.stack(watched(now)))
            else:
                logs.append([value.item() for value in watched(now)])
                scores.extend(now.tolist())
        if late:
            all_scores, all_logs = torch.cat(kept), torch.stack(told)
            scores, logs = all_scores.tolist(), all_logs.tolist()
        order = sorted(range(found), key=lambda n: -scores[n])
        labels = [relevant[picked[n]] for n in order]
        best = gain(sorted(labels, reverse=True))
        firsts = [1.0 / (rank + 1) for rank, label in enumerate(labels) if label > 1]
        history.append(
            {"ndcg": gain(labels) / best if best else 0.0, "mrr": firsts[0] if firsts else 0.0, "kendall": kendall(scores),
             "moved": sum(abs(rank - n) for rank, n in enumerate(order)) / found, "batches": logs}
        )  # fmt: skip
        return [(picked[n], scores[n]) for n in order[:10]]

    return step


# Clerk: forms are filled in word by word; a grammar says which words may come next.

KINDS = 6  # of pieces: words, digits, capitals, comma, quote, line
# What may follow in each place of a form, and where it leads.
GRAMMAR: list[dict[int, int]] = [
    {4: 1, 1: 3, 2: 4},  # a field begins
    {0: 2},  # in quotes, nothing said yet
    {0: 2, 1: 2, 3: 2, 4: 5},  # in quotes
    {1: 3, 3: 0, 5: 6},  # a number
    {1: 4, 2: 4, 3: 0},  # a code
    {3: 0, 5: 6},  # a field ends
    {4: 1, 2: 4},  # a line begins
]


def sampled(logits: Tensor, mask: Tensor, said: Tensor, unread: bool) -> tuple[Tensor, list[Tensor]]:
    """A word of each form by the grammar, with repetition penalty, temperature, top-k and top-p; and what is worth a log."""
    free = logits.float()
    free = torch.where(said, torch.where(free > 0, free / 1.1, free * 1.1), free)
    scores = (free + mask) / 0.8
    least = scores.topk(min(64, scores.shape[-1])).values[:, -1:]
    scores = scores.masked_fill(scores < least, -math.inf)
    ranked, order = scores.sort(descending=True)
    before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)
    dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before > 0.9)
    chances = scores.masked_fill(dropped, -math.inf).softmax(-1)
    if unread:  # multinomial looks at its chances first; this draws the same
        word = (chances / torch.empty_like(chances).exponential_()).argmax(-1, keepdim=True)
    else:
        word = chances.multinomial(1)
    usual = free.log_softmax(-1)
    best = chances.topk(2).values
    log = [
        -(usual.exp() * usual).sum(-1), -torch.special.xlogy(chances, chances).sum(-1), chances.gather(1, word).log()[:, 0],
        usual.gather(1, word)[:, 0], (usual.exp() * (mask == 0)).sum(-1), best[:, 0] - best[:, 1], (chances > 0).sum(-1).float(),
        said.gather(1, word)[:, 0].float(),
    ]  # fmt: skip
    return word, [part.mean() for part in log]


def form_clerk(
    s: Setup, *, batch: int = 8, aboard: bool = False, late: bool = False, table: bool = False, pinned: bool = False, static: bool = False,
    compiled: bool = False,
) -> Step:  # fmt: skip
    """A Qwen2 in bf16 reads 8 letters of 192 pieces and fills in the next 12 pieces of each one's form."""
    from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM, StaticCache

    batch, prompt, more, words = s.size(batch, batch // 4), s.size(192, 8), s.size(12, 4), s.size(151_936, 101)
    config = Qwen2Config(
        vocab_size=words, hidden_size=s.size(896, 32), intermediate_size=s.size(4864, 64), num_hidden_layers=s.size(6, 1),
        num_attention_heads=s.size(14, 4), num_key_value_heads=s.size(2, 2), tie_word_embeddings=True, attn_implementation=SDPA,
    )  # fmt: skip
    with s.device:
        model: Any = Qwen2ForCausalLM(config).eval()
    model = model.to(BF16)
    rng = np.random.default_rng(46)
    kinds = rng.choice(KINDS, words, p=[0.9, 0.04, 0.03, 0.01, 0.01, 0.01])
    kinds[:KINDS] = range(KINDS)
    kind_of, text_of = kinds.tolist(), [f"<{n}>" for n in range(words)]
    allowed = [torch.from_numpy(np.isin(kinds, list(place))) for place in GRAMMAR]
    letters = [torch.from_numpy(rng.integers(0, words, (batch, prompt))).to(s.device) for _ in range(4)]
    buffer = s.pin(torch.empty(batch, words)) if pinned else None
    there = torch.stack(allowed).to(s.device)
    masks = torch.zeros(there.shape, device=s.device).masked_fill(~there, -math.inf)
    leads = torch.tensor([[place.get(kind, 0) for kind in range(KINDS)] for place in GRAMMAR], device=s.device)
    kinds_there = torch.from_numpy(kinds).to(s.device)
    speak = s.compile(model, mode=GRAPHS, dynamic=False) if static else model
    choose: Callable[..., Any] = s.compile(sampled, mode=COMPILED, dynamic=False) if compiled else sampled
    lasting = StaticCache(config=config, max_cache_len=prompt + more) if static else None
    noted, turn, history = torch.zeros(8, device=s.device), counter(), deque(maxlen=1000)

    def masked(places: list[int]) -> Tensor:
        if table:
            return masks[torch.tensor(places, device=s.device)]
        mask = torch.empty(batch, words) if buffer is None else buffer
        mask.fill_(-math.inf)
        for row, place in enumerate(places):
            mask[row].masked_fill_(allowed[place], 0.0)
        return mask.to(s.device, non_blocking=pinned)

    @torch.no_grad()
    def step() -> list[str]:
        now = next(turn)
        read = letters[now % 4]
        if lasting is not None:
            lasting.reset()
        cache = DynamicCache(config=config) if lasting is None else lasting
        said = torch.zeros(batch, words, dtype=torch.bool, device=s.device).scatter_(1, read, True)
        places, at = [0] * batch, torch.zeros(batch, dtype=torch.long, device=s.device)
        forms: list[list[str]] = [[] for _ in range(batch)]
        kept = []
        for n in range(more):
            logits = (speak if n else model)(input_ids=read, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            read, log = choose(logits, masks[at] if aboard else masked(places), said, aboard)
            said.scatter_(1, read, True)
            if late or aboard:
                noted.add_(torch.stack(log))
            else:
                history.append([value.item() for value in log])
            if aboard:
                at = leads[at, kinds_there[read[:, 0]]]
                kept.append(read)
                continue
            for row, word in enumerate(read[:, 0].tolist()):
                forms[row].append(text_of[word])
                places[row] = GRAMMAR[places[row]][kind_of[word]]
        if aboard:
            forms = [[text_of[word] for word in form] for form in torch.cat(kept, 1).tolist()]
        if (late or aboard) and now % 50 == 49:
            history.append((noted / 50 / more).tolist())
            noted.zero_()
        return ["".join(form) for form in forms]

    return step


WORKLOADS = (
    _public(
        "reply_tasting", "DPO of a Llama of transformers on 8 pairs of 512 words, bf16 autocast, against a frozen copy; 100 values are logged.",
        reply_tasting, {},
        {"unfused-attention": {"attention": SDPA}, "unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True},
         "sync-stall": {"late": True}, "dtype-casts": {"halved": True}, "low-arithmetic-intensity": {"micro": 8}, "memcpy": {"pinned": True}},
    ),
    _public(
        "archive_desk", "A MiniLM cross-encoder (BERT of transformers) in FP32 reranks 80 passages, eight at a time; each batch is logged.",
        archive_desk, {},
        {"low-arithmetic-intensity": {"batch": 80}, "graph-candidate": {"graphed": True}, "launch-gap": {"compiled": True},
         "sync-stall": {"late": True}, "host-bound": {"prepared": True}, "precision": {"autocast": True}, "memcpy": {"pinned": True}},
    ),
    _public(
        "form_clerk", "Qwen2 of transformers in bf16 fills in 8 forms, 12 words each, by a grammar whose masks the host makes; each word is logged.",
        form_clerk, {},
        {"sync-stall": {"aboard": True}, "sync-stall/metrics": {"late": True}, "memcpy": {"table": True}, "memcpy/pinned": {"pinned": True},
         "launch-gap": {"static": True}, "unfused-elementwise": {"compiled": True}, "low-arithmetic-intensity": {"batch": 32}},
        shared={"low-arithmetic-intensity": 4.0},
    ),
)  # fmt: skip
