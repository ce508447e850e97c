"""Text generation by a nearest-neighbour language model (kNN-LM, Khandelwal et al., 2020) over a newspaper's archive.

A GPT-2 predicts the next token; its last hidden state is also looked up among the hidden states of a million archived contexts, whose tokens
that came next give a second distribution. The two are mixed and a token is drawn from the nucleus of the mixture. A request is a batch of prompts of
unequal length (padded on the left); one step continues all of them by a few tokens, in bfloat16 with a cache of keys and values.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from ..base import Setup, Step, capture


class Datastore:
    """Keys are hidden states of contexts of the archive, values the tokens that followed them."""

    def __init__(self, keys: Tensor, values: Tensor, neighbours: int, temperature: float, vocabulary: int) -> None:
        self.keys, self.values = keys, values
        self.squares = keys.float().square().sum(1)
        self.neighbours, self.temperature, self.vocabulary = neighbours, temperature, vocabulary

    def nearest(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distances and places of the nearest keys, by brute force."""
        products = (queries.to(self.keys.dtype) @ self.keys.T).float()
        distances = queries.float().square().sum(1, keepdim=True) - 2 * products + self.squares
        near = distances.topk(self.neighbours, dim=1, largest=False)
        return near.values, near.indices

    def probabilities(self, queries: Tensor) -> Tensor:
        distances, places = self.nearest(queries)
        weights = torch.softmax(-distances / self.temperature, dim=1)
        result = torch.zeros(len(queries), self.vocabulary, device=queries.device)
        return result.scatter_add_(1, self.values[places], weights)


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Draws from the smallest set of tokens that holds top_p of the probability."""
    ordered, tokens = probabilities.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before > top_p, 0.0)
    drawn = torch.multinomial(ordered / ordered.sum(-1, keepdim=True), 1)
    return tokens.gather(-1, drawn)


def repetition_penalty(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """The usual penalty of CTRL on tokens that already occur."""
    score = logits.gather(1, seen)
    score = torch.where(score < 0, score * penalty, score / penalty)
    return logits.scatter(1, seen, score)


def archive_keys(entries: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Layer-normalised states around topics, made in shards as an indexing job writes them."""
    topics = torch.randn(512, width, device=device)
    keys = torch.empty(entries, width, device=device, dtype=dtype)
    for shard in keys.split(100_000):
        topic = torch.randint(len(topics), (len(shard),), device=device)
        shard.copy_(F.layer_norm(topics[topic] + 0.7 * torch.randn(len(shard), width, device=device), (width,)))
    return keys


def distribution(
    store: Datastore, hidden: Tensor, logits: Tensor, sequence: Tensor, blend: float, penalty: float, top_p: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The mixture, and its nucleus (not yet drawn from): probabilities in descending order and their tokens."""
    logits = repetition_penalty(logits.float(), sequence, penalty)
    mixture = (1 - blend) * torch.softmax(logits, -1) + blend * store.probabilities(hidden)
    ordered, tokens = mixture.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill(before > top_p, 0.0)
    return mixture, ordered / ordered.sum(-1, keepdim=True), tokens


def attend(block: torch.nn.Module, h: Tensor, mask: Tensor, heads: int, keys: Tensor, values: Tensor, places: Tensor, length: int) -> Tensor:
    """A block of the GPT-2 with a cache of fixed size: writes at `places`, and reads the first `length`."""
    batch, times, width = h.shape
    parts = block.attn.c_attn(block.ln_1(h)).split(width, dim=2)
    q, k, v = (part.view(batch, times, heads, width // heads).transpose(1, 2) for part in parts)
    keys.index_copy_(2, places, k)
    values.index_copy_(2, places, v)
    a = F.scaled_dot_product_attention(q, keys[:, :, :length], values[:, :, :length], attn_mask=mask)
    h = h + block.attn.c_proj(a.transpose(1, 2).reshape(batch, times, width))
    return h + block.mlp(block.ln_2(h))


class StaticDecoder:
    """A request's prefill and its passes of one token each, as two CUDA graphs over tensors that stay where they are."""

    def __init__(
        self, s: Setup, model: GPT2LMHeadModel, store: Datastore, prompts: int, longest: int, new_tokens: int,
        end: int, blend: float, top_p: float, penalty: float,
    ) -> None:
        body, config = model.transformer, model.config
        heads, width, dtype = config.n_head, config.n_embd, body.wte.weight.dtype
        total = -(-(longest + new_tokens) // 8) * 8  # attention likes masks whose rows are a multiple of 8
        shape = (prompts, heads, total, width // heads)
        caches = [(torch.zeros(shape, dtype=dtype, device=s.device), torch.zeros(shape, dtype=dtype, device=s.device)) for _ in body.h]
        self.mask = torch.zeros(prompts, total, dtype=torch.bool, device=s.device)
        self.mask[:, :longest] = True
        self.sequence = torch.zeros(prompts, longest + new_tokens, dtype=torch.int64, device=s.device)
        self.finished = torch.zeros(prompts, dtype=torch.bool, device=s.device)
        self.log_probability = torch.zeros(prompts, device=s.device)
        mask, sequence, finished, log_probability = self.mask, self.sequence, self.finished, self.log_probability
        token = torch.zeros(prompts, 1, dtype=torch.int64, device=s.device)
        positions = torch.zeros(prompts, 1, dtype=torch.int64, device=s.device)
        at = torch.full((1,), longest, device=s.device)  # where `token` stands in the sequence, and goes in the cache
        places = torch.arange(longest, device=s.device)
        causal = torch.ones(longest, longest, dtype=torch.bool, device=s.device).tril()
        one_token, spread = s.compile(attend, dynamic=False), s.compile(distribution, dynamic=False)

        def draw(h: Tensor) -> None:
            hidden = body.ln_f(h[:, -1])
            mixture, ordered, tokens = spread(store, hidden, model.lm_head(hidden), sequence, blend, penalty, top_p)
            drawn = (ordered / torch.empty_like(ordered).exponential_(1)).argmax(-1, keepdim=True)  # what multinomial does
            new = tokens.gather(-1, drawn).masked_fill(finished.unsqueeze(1), end)
            chosen = mixture.gather(1, new).squeeze(1).clamp(min=1e-12).log()
            log_probability.add_(chosen.masked_fill(finished, 0.0))
            token.copy_(new)
            sequence.index_copy_(1, at, new)
            finished.logical_or_(new.squeeze(1).eq(end))

        def first() -> None:
            where = (mask[:, :longest].long().cumsum(-1) - 1).clamp(min=0)
            h = body.wte(sequence[:, :longest]) + body.wpe(where)
            allowed = causal & mask[:, None, None, :longest]
            for block, (keys, values) in zip(body.h, caches, strict=False):
                h = attend(block, h, allowed, heads, keys, values, places, longest)
            positions.copy_(where[:, -1:])
            at.fill_(longest)
            draw(h)

        def following() -> None:
            mask.index_fill_(1, at, True)
            positions.add_(1)
            h = body.wte(token) + body.wpe(positions)
            allowed = mask[:, None, None, :]
            for block, (keys, values) in zip(body.h, caches, strict=False):
                h = one_token(block, h, allowed, heads, keys, values, at, total)
            at.add_(1)
            draw(h)

        self.longest = longest
        with torch.no_grad():
            self.first, self.following = capture(first, s), capture(following, s)

    def start(self, ids: Tensor, mask: Tensor) -> None:
        self.sequence[:, : self.longest].copy_(ids)
        self.sequence[:, self.longest :].copy_(self.sequence[:, :1].expand(-1, self.sequence.shape[1] - self.longest))  # a token that is seen anyway
        self.mask.zero_()
        self.mask[:, : self.longest].copy_(mask)
        self.finished.zero_()
        self.log_probability.zero_()
        self.first()


def four_dimensional(mask: Tensor, queries: int) -> Tensor:
    """The boolean mask of attention that transformers would make of a mask of tokens; it takes it as it is, and need not look into it."""
    length = mask.shape[1]
    causal = torch.ones(queries, length, dtype=torch.bool, device=mask.device).tril(length - queries)
    return causal & mask[:, None, None, :].bool()


def chronicle_neighbours(s: Setup, *, compiled: bool = False, static: bool = False, late: bool = False, batched: bool = False) -> Step:
    torch.manual_seed(23)
    rng = np.random.default_rng(23)
    dtype = torch.bfloat16 if s.cuda else torch.float32
    vocabulary, width = s.size(50_257, 400), s.size(768, 32)
    prompts, longest, new_tokens = s.size(8, 2), s.size(320, 20), s.size(10, 4)
    end = vocabulary - 1
    blend, top_p, penalty = 0.25, 0.92, 1.1

    config = GPT2Config(
        vocab_size=vocabulary, n_embd=width, n_layer=s.size(12, 2), n_head=s.size(12, 2), n_positions=s.size(1024, 64),
        bos_token_id=end, eos_token_id=end, pad_token_id=end,
    )
    model = GPT2LMHeadModel(config).to(device=s.device, dtype=dtype).eval()
    entries = s.size(1_000_000, 2_000)
    values = torch.from_numpy(np.minimum(rng.zipf(1.2, entries) - 1, end - 1)).to(s.device)
    store = Datastore(archive_keys(entries, width, s.device, dtype), values, s.size(1024, 32), temperature=float(width) / 20, vocabulary=vocabulary)

    def next_request() -> tuple[Tensor, Tensor]:
        """Tokenized prompts as a tokenizer with left padding gives them."""
        ids = np.full((prompts, longest), end, dtype=np.int64)
        mask = np.zeros((prompts, longest), dtype=np.int64)
        for row, length in enumerate(rng.integers(longest // 3, longest + 1, prompts)):
            ids[row, longest - length :] = np.minimum(rng.zipf(1.2, length) - 1, end - 1)
            mask[row, longest - length :] = 1
        return torch.from_numpy(ids), torch.from_numpy(mask)

    if static:
        decoder = StaticDecoder(s, model, store, prompts, longest, new_tokens, end, blend, top_p, penalty)

        @torch.no_grad()
        def static_step() -> dict[str, object]:
            decoder.start(*next_request())
            for n in range(1, new_tokens):
                if n % 5 == 0 and decoder.finished.all():
                    break
                decoder.following()
            written = decoder.sequence[:, longest:].tolist()
            texts = [row[: row.index(end)] if end in row else row for row in written]
            return {"tokens": texts, "log_probability": decoder.log_probability.tolist()}

        return static_step

    if compiled:
        spread = s.compile(distribution)
        feed_forward = s.compile(type(model.transformer.h[0].mlp).forward, dynamic=False)
        for block in model.transformer.h:  # one function for all of the layers; it is compiled once for prompts and once for tokens
            block.mlp.forward = lambda hidden, mlp=block.mlp: feed_forward(mlp, hidden)

        @torch.no_grad()
        def compiled_step() -> dict[str, object]:
            ids, mask = (tensor.to(s.device) for tensor in next_request())
            cache = DynamicCache()
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            sequence, inputs = ids, ids
            finished = torch.zeros(prompts, dtype=torch.bool, device=s.device)
            log_probability = torch.zeros(prompts, device=s.device)

            for _ in range(new_tokens):
                output = model.transformer(input_ids=inputs, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
                hidden = output.last_hidden_state[:, -1].contiguous()  # the same strides for prompts and for tokens
                torch._dynamo.mark_dynamic(sequence, 1)
                mixture, ordered, tokens = spread(store, hidden, model.lm_head(hidden), sequence, blend, penalty, top_p)
                token = tokens.gather(-1, torch.multinomial(ordered, 1))
                token = token.masked_fill(finished.unsqueeze(1), end)
                chosen = mixture.gather(1, token).squeeze(1).clamp(min=1e-12).log()
                log_probability += chosen.masked_fill(finished, 0.0)

                sequence = torch.cat((sequence, token), 1)
                mask = torch.cat((mask, mask.new_ones(prompts, 1)), 1)
                positions = positions[:, -1:] + 1
                inputs = token
                finished = finished | token.squeeze(1).eq(end)
                if finished.all():
                    break

            written = sequence[:, longest:].tolist()
            texts = [row[: row.index(end)] if end in row else row for row in written]
            return {"tokens": texts, "log_probability": log_probability.tolist()}

        return compiled_step

    if late or batched:
        together = 8 if batched else 1
        rows = together * prompts
        Host = tuple[Tensor, Tensor, "torch.cuda.Event | None"]
        under_way: list[Host] = []

        def read(host: Host) -> list[dict[str, object]]:
            if host[2] is not None:
                host[2].synchronize()
            written, sums = host[0].tolist(), host[1].tolist()
            texts = [row[: row.index(end)] if end in row else row for row in written]
            return [{"tokens": texts[n : n + prompts], "log_probability": sums[n : n + prompts]} for n in range(0, rows, prompts)]

        @torch.no_grad()
        def other_step() -> object:
            requests = [next_request() for _ in range(together)]
            ids, mask = (torch.cat(tensors).to(s.device) for tensors in zip(*requests, strict=False))
            cache = DynamicCache()
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            sequence, inputs = ids, ids
            finished = torch.zeros(rows, dtype=torch.bool, device=s.device)
            log_probability = torch.zeros(rows, device=s.device)

            for n in range(new_tokens):
                shown = four_dimensional(mask, inputs.shape[1]) if late else mask
                output = model.transformer(input_ids=inputs, attention_mask=shown, position_ids=positions, past_key_values=cache, use_cache=True)
                hidden = output.last_hidden_state[:, -1]
                logits = repetition_penalty(model.lm_head(hidden).float(), sequence, penalty)
                mixture = (1 - blend) * torch.softmax(logits, -1) + blend * store.probabilities(hidden)
                token = nucleus(mixture, top_p)
                token = token.masked_fill(finished.unsqueeze(1), end)
                chosen = mixture.gather(1, token).squeeze(1).clamp(min=1e-12).log()
                log_probability += chosen.masked_fill(finished, 0.0)

                sequence = torch.cat((sequence, token), 1)
                mask = torch.cat((mask, mask.new_ones(rows, 1)), 1)
                positions = positions[:, -1:] + 1
                inputs = token
                finished = finished | token.squeeze(1).eq(end)
                if (not late or n % 5 == 4) and finished.all():  # a finished row writes only `end`: passes too many change nothing
                    break

            if not late:
                return read((sequence[:, longest:], log_probability, None))
            # Into pinned memory of its own for each step, read a step later (the first step has nothing to return but its own).
            host = [s.pin(torch.empty(value.shape, dtype=value.dtype)) for value in (sequence[:, longest:], log_probability)]
            host[0].copy_(sequence[:, longest:], non_blocking=True)
            host[1].copy_(log_probability, non_blocking=True)
            event = torch.cuda.Event() if s.cuda else None
            if event is not None:
                event.record()
            under_way.append((host[0], host[1], event))
            return read(under_way.pop(0) if len(under_way) > 1 else under_way[0])[0]

        return other_step

    @torch.no_grad()
    def step() -> dict[str, object]:
        ids, mask = (tensor.to(s.device) for tensor in next_request())
        cache = DynamicCache()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        sequence, inputs = ids, ids
        finished = torch.zeros(prompts, dtype=torch.bool, device=s.device)
        log_probability = torch.zeros(prompts, device=s.device)

        for _ in range(new_tokens):
            output = model.transformer(input_ids=inputs, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            hidden = output.last_hidden_state[:, -1]
            logits = repetition_penalty(model.lm_head(hidden).float(), sequence, penalty)
            mixture = (1 - blend) * torch.softmax(logits, -1) + blend * store.probabilities(hidden)
            token = nucleus(mixture, top_p)
            token = token.masked_fill(finished.unsqueeze(1), end)
            chosen = mixture.gather(1, token).squeeze(1).clamp(min=1e-12).log()
            log_probability += chosen.masked_fill(finished, 0.0)

            sequence = torch.cat((sequence, token), 1)
            mask = torch.cat((mask, mask.new_ones(prompts, 1)), 1)
            positions = positions[:, -1:] + 1
            inputs = token
            finished = finished | token.squeeze(1).eq(end)
            if finished.all():
                break

        written = sequence[:, longest:].tolist()
        texts = [row[: row.index(end)] if end in row else row for row in written]
        return {"tokens": texts, "log_probability": log_probability.tolist()}

    return step
