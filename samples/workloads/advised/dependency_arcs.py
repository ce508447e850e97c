"""Training of a graph-based dependency parser (Dozat and Manning, 2017) on a treebank.

Words, universal POS tags and characters (a small BiLSTM over each spelling) are embedded, go through three BiLSTM layers with dropout that is
shared along a sentence, and a biaffine scorer says for each pair of words how likely the one is the head of the other, and by which relation.
Sentences are put into batches of about 5,000 tokens of similar length. One step is one update; unlabelled and labelled attachment are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..base import Setup, Step

PAD, BOS = 0, 1
CHARS, TAGS, RELATIONS = 110, 19, 44


@dataclass
class Layout:
    """What the host knows of a batch from its padding, so that it need not ask the device. Without places only the lengths are used."""

    lengths: list[int]
    spelling_lengths: list[int]
    present: tuple[Tensor, Tensor] | None = None  # rows and columns of the words that have a spelling
    scored: tuple[Tensor, Tensor] | None = None  # those of the words that have a head
    sentences: tuple[Tensor, Tensor] | None = None  # the order by falling length, and the way back
    spellings: tuple[Tensor, Tensor] | None = None


def by_length(lengths: Tensor) -> tuple[list[int], Tensor, Tensor]:
    falling, order = lengths.sort(descending=True)
    return falling.tolist(), order, order.argsort()


class SharedDropout(nn.Module):
    """Drops the same features at all positions of a sentence."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = x.new_empty(x.size(0), 1, x.size(2)).bernoulli_(1 - self.p) / (1 - self.p)
        return x * mask


class IndependentDropout(nn.Module):
    """Drops whole embeddings, each kind by itself, and scales up those that stay."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, *items: Tensor) -> list[Tensor]:
        if not self.training:
            return list(items)
        masks = [x.new_empty(x.shape[:2]).bernoulli_(1 - self.p) for x in items]
        total = sum(masks)
        scale = len(items) / total.clamp(min=1)
        return [x * (mask * scale).unsqueeze(-1) for x, mask in zip(items, masks, strict=False)]


class CharLSTM(nn.Module):
    def __init__(self, embed: int, out: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARS, embed, padding_idx=PAD)
        self.lstm = nn.LSTM(embed, out // 2, batch_first=True, bidirectional=True)
        self.out = out

    def forward(self, chars: Tensor, layout: Layout | None = None) -> Tensor:
        if layout is not None and layout.present is not None and layout.spellings is not None:
            order, back = layout.spellings
            spelt = self.embed(chars[layout.present]).index_select(0, order)
            _, (hidden, _) = self.lstm(pack_padded_sequence(spelt, layout.spelling_lengths, batch_first=True))
            words = torch.cat(hidden.index_select(1, back).unbind(), -1)
            return words.new_zeros(*chars.shape[:2], self.out).index_put(layout.present, words)
        lengths = chars.ne(PAD).sum(-1)
        present = lengths.gt(0)
        known = lengths[present].tolist() if layout is None else layout.spelling_lengths
        packed = pack_padded_sequence(self.embed(chars[present]), known, batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        words = torch.cat(hidden.unbind(), -1)
        result = words.new_zeros(*chars.shape[:2], self.out)
        return result.masked_scatter(present.unsqueeze(-1), words)


class Biaffine(nn.Module):
    def __init__(self, features: int, out: int, bias_x: bool, bias_y: bool) -> None:
        super().__init__()
        self.bias_x, self.bias_y = bias_x, bias_y
        self.weight = nn.Parameter(torch.zeros(out, features + bias_x, features + bias_y))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, y: Tensor, in_pairs: bool = False) -> Tensor:
        if self.bias_x:
            x = torch.cat((x, torch.ones_like(x[..., :1])), -1)
        if self.bias_y:
            y = torch.cat((y, torch.ones_like(y[..., :1])), -1)
        if in_pairs:  # no search for an order of the products, which would look at sizes that vary
            return torch.einsum("boxj,byj->boxy", torch.einsum("bxi,oij->boxj", x, self.weight), y)
        return torch.einsum("bxi,oij,byj->boxy", x, self.weight, y)


class MLP(nn.Module):
    def __init__(self, inputs: int, outputs: int, p: float) -> None:
        super().__init__()
        self.linear, self.activation, self.dropout = nn.Linear(inputs, outputs), nn.LeakyReLU(0.1), SharedDropout(p)
        nn.init.orthogonal_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.activation(self.linear(x)))


class Parser(nn.Module):
    def __init__(self, words: int, embed: int, hidden: int, arc: int, rel: int, pretrained: Tensor) -> None:
        super().__init__()
        self.word = nn.Embedding(words, embed, padding_idx=PAD)
        nn.init.zeros_(self.word.weight)
        self.pretrained = nn.Embedding.from_pretrained(pretrained, padding_idx=PAD)
        self.tag = nn.Embedding(TAGS, embed, padding_idx=PAD)
        self.char = CharLSTM(50, embed)
        self.embed_dropout = IndependentDropout(0.33)
        widths = [3 * embed] + [2 * hidden] * 2
        self.layers = nn.ModuleList(nn.LSTM(width, hidden, batch_first=True, bidirectional=True) for width in widths)
        self.dropouts = nn.ModuleList(SharedDropout(0.33) for _ in widths)
        self.arc_dependent, self.arc_head = MLP(2 * hidden, arc, 0.33), MLP(2 * hidden, arc, 0.33)
        self.rel_dependent, self.rel_head = MLP(2 * hidden, rel, 0.33), MLP(2 * hidden, rel, 0.33)
        self.arc_scorer = Biaffine(arc, 1, bias_x=True, bias_y=False)
        self.rel_scorer = Biaffine(rel, RELATIONS, bias_x=True, bias_y=True)

        self.compiled = False
        self.input_part, self.drop_part, self.score_part = self.inputs, self.drop, self.scores

    def compile_parts(self, compile: Callable[..., Callable[..., object]]) -> None:
        """All but the LSTMs, whose packing is the host's work; batches differ in both sizes."""
        self.compiled = True
        self.input_part, self.drop_part, self.score_part = (
            compile(part, dynamic=True) for part in (self.inputs, self.drop, self.scores)
        )

    def inputs(self, words: Tensor, tags: Tensor, spelt: Tensor) -> Tensor:
        word = self.word(words) + self.pretrained(words)
        return torch.cat(self.embed_dropout(word, self.tag(tags), spelt), -1)

    def drop(self, x: Tensor) -> Tensor:
        return self.dropouts[0](x)

    def scores(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        arcs = self.arc_scorer(self.arc_dependent(x), self.arc_head(x), self.compiled).squeeze(1)
        relations = self.rel_scorer(self.rel_dependent(x), self.rel_head(x), self.compiled).permute(0, 2, 3, 1)
        return arcs.masked_fill(~mask.unsqueeze(1), float("-inf")), relations

    def forward(self, words: Tensor, tags: Tensor, chars: Tensor, layout: Layout | None = None) -> tuple[Tensor, Tensor]:
        mask = words.ne(PAD)
        lengths = mask.sum(1).tolist() if layout is None else layout.lengths
        x = self.input_part(words, tags, self.char(chars, layout))
        for lstm, dropout in zip(self.layers, self.dropouts, strict=False):
            if layout is not None and layout.sentences is not None:
                order, back = layout.sentences
                packed = pack_padded_sequence(x.index_select(0, order), lengths, batch_first=True)
                x, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=words.size(1))
                x = x.index_select(0, back)
            else:
                packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
                x, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=words.size(1))
            x = self.drop_part(x) if self.compiled else dropout(x)
        return self.score_part(x, mask)


def treebank(rng: np.random.Generator, sentences: int, words: int) -> list[dict[str, np.ndarray]]:
    """Each sentence begins with the root (BOS), which is nobody's dependent."""
    spelt = np.clip(rng.poisson(5.5, words) + 1, 1, 18)
    spelling = rng.integers(2, CHARS, (words, 18)) * (np.arange(18) < spelt[:, None])
    tag_of = rng.integers(2, TAGS, words)
    spelling[BOS], tag_of[BOS] = 0, 1
    spelling[BOS, 0] = 1
    corpus = []
    for length in np.clip(rng.lognormal(2.95, 0.55, sentences).astype(int), 3, 110):
        ids = np.concatenate(([BOS], np.minimum(rng.zipf(1.25, length) + 1, words - 1)))
        near = np.arange(1, length + 1) + rng.choice((-3, -2, -1, 1, 2, 3), length)
        heads = np.concatenate(([0], np.clip(near, 0, length)))
        relations = np.concatenate(([0], (tag_of[ids[1:]] * 2 + (near > np.arange(1, length + 1))) % RELATIONS))
        corpus.append({"words": ids, "tags": tag_of[ids], "chars": spelling[ids], "heads": heads, "relations": relations})
    return corpus


def batches(corpus: list[dict[str, np.ndarray]], tokens: int, rng: np.random.Generator) -> Iterator[dict[str, Tensor]]:
    """For ever: batches of sentences of similar length, in an order drawn anew for each epoch."""
    lengths = np.array([len(sentence["words"]) for sentence in corpus])
    while True:
        order = np.argsort(lengths + rng.uniform(0, 3, len(corpus)))
        groups: list[list[int]] = [[]]
        for index in order:
            if groups[-1] and (len(groups[-1]) + 1) * lengths[index] > tokens:
                groups.append([])
            groups[-1].append(int(index))
        for turn in rng.permutation(len(groups)):
            chosen = [corpus[index] for index in groups[turn]]
            longest = max(len(sentence["words"]) for sentence in chosen)
            batch = {}
            for field in chosen[0]:
                shape = (len(chosen), longest, *chosen[0][field].shape[1:])
                padded = np.zeros(shape, dtype=np.int64)
                for row, sentence in enumerate(chosen):
                    padded[row, : len(sentence[field])] = sentence[field]
                batch[field] = torch.from_numpy(padded)
            yield batch


def losses_and_hits(arc_scores: Tensor, rel_scores: Tensor, heads: Tensor, gold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    at_head = rel_scores[torch.arange(heads.size(0), device=heads.device), heads]
    loss = nn.functional.cross_entropy(arc_scores, heads) + nn.functional.cross_entropy(at_head, gold)
    guessed = arc_scores.detach().argmax(-1)
    labels = rel_scores.detach().argmax(-1).gather(1, guessed.unsqueeze(1)).squeeze(1)
    right = guessed.eq(heads)
    both = right & labels.eq(gold)
    return loss, right.float().mean(), both.float().mean()


def dependency_arcs(s: Setup, *, compiled: bool = False, run_ahead: bool = False) -> Step:
    """compiled: all but the LSTMs is compiled, Adam is fused, and lengths are known on the host.
    run_ahead: the host asks the device nothing but the figures of the step before.
    """
    torch.manual_seed(17)
    rng = np.random.default_rng(17)
    words = s.size(40_000, 300)
    corpus = treebank(rng, s.size(6_000, 40), words)
    loader = batches(corpus, s.size(5_000, 200), rng)

    embed = s.size(100, 16)
    pretrained = torch.randn(words, embed)
    pretrained[PAD] = 0
    parser = Parser(words, embed, s.size(400, 24), s.size(500, 20), s.size(100, 10), pretrained / pretrained.std()).to(s.device)
    parser.train()
    optimizer = torch.optim.Adam([p for p in parser.parameters() if p.requires_grad], lr=2e-3, betas=(0.9, 0.9), eps=1e-12, fused=True if compiled else None)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.75 ** (1 / 5000))
    criterion = nn.CrossEntropyLoss()
    if compiled:
        parser.compile_parts(s.compile)
        losses = s.compile(losses_and_hits, dynamic=True)

    def step() -> dict[str, float]:
        batch = {field: tensor.to(s.device) for field, tensor in next(loader).items()}
        optimizer.zero_grad()
        arcs, relations = parser(batch["words"], batch["tags"], batch["chars"])

        mask = batch["words"].ne(PAD)
        mask[:, 0] = False
        heads, gold = batch["heads"][mask], batch["relations"][mask]
        arc_scores, rel_scores = arcs[mask], relations[mask]
        at_head = rel_scores[torch.arange(len(heads), device=s.device), heads]
        loss = criterion(arc_scores, heads) + criterion(at_head, gold)
        loss.backward()
        nn.utils.clip_grad_norm_(parser.parameters(), 5.0)
        optimizer.step()
        scheduler.step()

        with torch.no_grad():
            guessed = arc_scores.argmax(-1)
            labels = rel_scores.argmax(-1).gather(1, guessed.unsqueeze(1)).squeeze(1)
            right = guessed.eq(heads)
            both = right & labels.eq(gold)
        return {"loss": loss.item(), "uas": right.float().mean().item(), "las": both.float().mean().item(), "tokens": len(heads)}

    def step_compiled() -> dict[str, float]:
        host = next(loader)
        spelt = host["chars"].ne(PAD).sum(-1)
        layout = Layout(host["words"].ne(PAD).sum(1).tolist(), spelt[spelt.gt(0)].tolist())
        batch = {field: tensor.to(s.device) for field, tensor in host.items()}
        optimizer.zero_grad()
        arcs, relations = parser(batch["words"], batch["tags"], batch["chars"], layout)

        mask = batch["words"].ne(PAD)
        mask[:, 0] = False
        heads, gold = batch["heads"][mask], batch["relations"][mask]
        loss, right, both = losses(arcs[mask], relations[mask], heads, gold)
        loss.backward()
        nn.utils.clip_grad_norm_(parser.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        return {"loss": loss.item(), "uas": right.item(), "las": both.item(), "tokens": len(heads)}

    if compiled:
        return step_compiled

    def sent(tensor: Tensor) -> Tensor:
        return s.pin(tensor.contiguous()).to(s.device, non_blocking=True)  # the pinned block is not reused before its copy is done

    def laid_out(host: dict[str, Tensor]) -> Layout:
        filled = host["words"].ne(PAD)
        spelt = host["chars"].ne(PAD).sum(-1)
        present = spelt.gt(0).nonzero(as_tuple=True)
        lengths, order, back = by_length(filled.sum(1))
        spelling_lengths, spelling_order, spelling_back = by_length(spelt[present])
        filled[:, 0] = False
        scored = filled.nonzero(as_tuple=True)
        return Layout(
            lengths,
            spelling_lengths,
            present=(sent(present[0]), sent(present[1])),
            scored=(sent(scored[0]), sent(scored[1])),
            sentences=(sent(order), sent(back)),
            spellings=(sent(spelling_order), sent(spelling_back)),
        )

    figures = [(s.pin(torch.zeros(3)), torch.cuda.Event() if s.cuda else None) for _ in range(2)]
    turn, tokens_before = 0, 0

    def step_ahead() -> dict[str, float]:
        """Gives the figures of the step before, the first one none."""
        nonlocal turn, tokens_before
        host = next(loader)
        layout = laid_out(host)
        batch = {field: sent(tensor) for field, tensor in host.items()}
        optimizer.zero_grad()
        arcs, relations = parser(batch["words"], batch["tags"], batch["chars"], layout)

        heads, gold = batch["heads"][layout.scored], batch["relations"][layout.scored]
        arc_scores, rel_scores = arcs[layout.scored], relations[layout.scored]
        at_head = rel_scores[torch.arange(len(heads), device=s.device), heads]
        loss = criterion(arc_scores, heads) + criterion(at_head, gold)
        loss.backward()
        nn.utils.clip_grad_norm_(parser.parameters(), 5.0)
        optimizer.step()
        scheduler.step()

        with torch.no_grad():
            guessed = arc_scores.argmax(-1)
            labels = rel_scores.argmax(-1).gather(1, guessed.unsqueeze(1)).squeeze(1)
            right = guessed.eq(heads)
            both = right & labels.eq(gold)
            numbers, done = figures[turn % 2]
            numbers.copy_(torch.stack((loss.detach(), right.float().mean(), both.float().mean())), non_blocking=True)
            if done is not None:
                done.record()
        before, ready = figures[(turn + 1) % 2]
        turn += 1
        tokens, tokens_before = tokens_before, len(heads)
        if tokens == 0:
            return {}
        if ready is not None:
            ready.synchronize()
        return {"loss": before[0].item(), "uas": before[1].item(), "las": before[2].item(), "tokens": tokens}

    if run_ahead:
        return step_ahead

    return step
