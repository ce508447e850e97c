"""Public models of sewers in the rain, a parish's census, customs forms and variants of a protein, by an author who has not read the rules."""

from __future__ import annotations

import math
from types import MethodType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture
from .public_models import BF16, COMPILED, GRAPHS, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import HALF, SDPA
from .public_models_4 import _public

# Graphs.


class _Sewer(nn.Module):
    """Attention along the pipes, then a memory at each manhole: the levels five minutes on."""

    def __init__(self, shafts: Tensor, edge_index: Tensor, pipes: Tensor, width: int, heads: int) -> None:
        from torch_geometric.nn import GATv2Conv

        super().__init__()
        self.shafts, self.edge_index, self.pipes = nn.Buffer(shafts), nn.Buffer(edge_index), nn.Buffer(pipes)
        self.enter = nn.Linear(shafts.shape[1] + 2, width)
        self.convs = nn.ModuleList(
            GATv2Conv(width, width // heads, heads=heads, edge_dim=pipes.shape[1], add_self_loops=False) for _ in range(2)
        )  # fmt: skip
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.memory, self.head = nn.GRUCell(width, width), nn.Linear(width, 1)

    def forward(self, level: Tensor, hidden: Tensor, rain: Tensor) -> tuple[Tensor, Tensor]:
        x = F.elu(self.enter(torch.cat([level, rain, self.shafts], -1)))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.elu(norm(conv(x, self.edge_index, self.pipes)))
        hidden = self.memory(x, hidden)
        return (level + 0.1 * self.head(hidden)).clamp(0.0, 2.0), hidden


def sewer_levels(s: Setup, *, batch: int = 1, packed: bool = False, kept: bool = False, graphed: bool = False, **how: Any) -> Step:
    """GATv2 and a GRU roll a city's sewers two hours ahead under a storm, FP32; rain goes up and levels come down after each five minutes."""
    way, manholes, spans, width = How(**how), s.size(4_000, 40), s.size(24, 3), s.size(64, 16)
    drawn, many = np.random.default_rng(0), manholes * batch
    ends = drawn.integers(0, manholes, manholes * 5 // 4)
    pairs = np.stack([ends, (ends + drawn.integers(1, 9, len(ends))) % manholes])
    loops = np.arange(manholes)[None].repeat(2, 0)
    city = torch.from_numpy(np.concatenate([pairs, pairs[::-1], loops], 1))
    cities = torch.cat([city + at * manholes for at in range(batch)], 1)
    shafts, pipes = torch.rand(manholes, 6).repeat(batch, 1), torch.rand(city.shape[1], 4).repeat(batch, 1)
    model = _placed(s, way, _Sewer(shafts, cities, pipes, width, s.size(4, 2))).eval()
    run = _call(s, way, model)
    storms = [torch.rand(spans, many, 1) for _ in range(4)]
    if packed:
        storms = [s.pin(storm) for storm in storms]
    with s.device:
        rim, clouds, film = 0.3 * torch.rand(many, 1), torch.zeros(spans, many, 1), torch.zeros(spans, many, 1)
        level, hidden, counts = torch.zeros(many, 1), torch.zeros(many, width), torch.zeros(spans, dtype=torch.long)
    late, turn = kept or graphed, 0

    def rolled(storm: Tensor) -> tuple[list[Tensor], list[tuple[int, int]]]:
        seen, alarms = [], []  # type: tuple[list[Tensor], list[tuple[int, int]]]
        level.fill_(0.1)
        hidden.zero_()
        for span in range(spans):
            after, memory = run(level, hidden, storm[span].to(s.device))
            level.copy_(after)
            hidden.copy_(memory)
            over = level > rim
            if late:
                film[span].copy_(level)
                counts[span].copy_(over.sum())
                continue
            seen.append(after.cpu())
            if over.any():
                alarms.append((span, int(over.sum())))
        return seen, alarms

    _precision(way)
    with torch.no_grad():
        replay = capture(lambda: rolled(clouds), s) if graphed else None

    @torch.no_grad()
    def step() -> tuple[Tensor, list[tuple[int, int]]]:
        nonlocal turn
        _precision(way)
        storm = storms[turn % 4]
        turn += 1
        if packed or graphed:
            storm = clouds.copy_(storm, non_blocking=packed)
        if replay:
            replay()
        else:
            seen, alarms = rolled(storm)
            if not late:
                return torch.stack(seen), alarms
        return film.cpu(), [(span, count) for span, count in enumerate(counts.tolist()) if count]

    return step


class _Parish(nn.Module):
    """Rows of a table that share a value of a column share a hyperedge."""

    def __init__(self, features: int, width: int, trades: int, layers: int, values: int | None) -> None:
        from torch_geometric.nn import HypergraphConv

        super().__init__()
        self.values, self.enter = values, nn.Linear(features, width)
        self.convs = nn.ModuleList(HypergraphConv(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.head = nn.Linear(width, trades)

    def forward(self, x: Tensor, shared: Tensor, weight: Tensor) -> Tensor:
        x = self.enter(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.dropout(F.gelu(norm(conv(x, shared, weight, num_edges=self.values))), 0.2, self.training)
        return self.head(x)  # type: ignore[no-any-return]


def parish_census(s: Setup, *, counted: bool = False, masked: bool = False, graphed: bool = False, **how: Any) -> Step:
    """HypergraphConv learns trades from a whole census, a hyperedge for each value of each column, FP32; loss and two hit rates are read."""
    way, rows, columns, kinds = How(**{"zero": True, **how}), s.size(40_000, 60), s.size(12, 4), s.size(150, 5)
    values, features, trades = columns * kinds, s.size(24, 6), s.size(40, 5)
    drawn = np.random.default_rng(0)
    table = (drawn.random((rows, columns)) ** 2 * kinds).astype(np.int64) + np.arange(columns) * kinds
    table[:values, :] = np.arange(values)[:, None] % kinds + np.arange(columns) * kinds
    shared = torch.from_numpy(np.stack([np.arange(rows).repeat(columns), table.ravel()])).to(s.device)
    with s.device:
        x, weight, trade = torch.randn(rows, features), torch.rand(values) + 0.5, torch.randint(trades, (rows,))
        part, sums = torch.rand(rows), torch.zeros(3)
    known, tried = part < 0.6, part > 0.8
    asked = torch.where(known, trade, -100)
    model = _placed(s, way, _Parish(features, s.size(128, 16), trades, s.size(3, 2), values if counted or graphed else None)).train()
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=1e-3, capturable=graphed and s.cuda)
    log: list[tuple[float, float, float]] = []

    def learn() -> None:
        optimizer.zero_grad(set_to_none=not way.zero)
        out = run(x, shared, weight)
        fixed = masked or graphed
        loss = F.cross_entropy(out, asked) if fixed else F.cross_entropy(out[known], trade[known])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        guess = out.detach().argmax(-1)
        if fixed:
            right = guess == trade
            sums.add_(torch.stack([loss.detach(), (right & known).sum() / known.sum(), (right & tried).sum() / tried.sum()]))
            return
        hits = [(guess[those] == trade[those]).float().mean().item() for those in (known, tried)]
        log.append((loss.item(), hits[0], hits[1]))

    _precision(way)
    learning = capture(learn, s) if graphed else learn

    def step() -> None:
        _precision(way)
        learning()

    return step


# Forms.


def _fused_boxes(self: Any, hidden_states: Tensor, bbox_pos_emb: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Any:
    """BrosSelfAttention with its products in one kernel; what the boxes add to the scores goes in as the mask."""
    b, n, _width = hidden_states.shape
    q, k, v = (part(hidden_states).view(b, n, self.num_attention_heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
    boxes = bbox_pos_emb.view(n, n, b, -1).permute(2, 0, 1, 3)
    bias = torch.einsum("bnid,bijd->bnij", q, boxes) / math.sqrt(self.attention_head_size)
    if attention_mask is not None:
        bias = bias + attention_mask
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=self.dropout.p if self.training else 0.0)
    return out.transpose(1, 2).reshape(b, n, -1), None


def customs_forms(s: Setup, *, fused: bool = False, ahead: bool = False, masked: bool = False, **how: Any) -> Step:
    """BROS learns what each word of eight customs forms is from words and boxes, FP32; only words that begin a box count, two numbers are read."""
    from transformers import BrosConfig, BrosForTokenClassification

    way = How(**{"optimizer": "loop", **how})
    forms, length, words, fields, width = s.size(8, 2), s.size(384, 12), s.size(30_522, 101), s.size(27, 5), s.size(768, 128)
    config = BrosConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=s.size(6, 2), num_attention_heads=s.size(12, 2), intermediate_size=4 * width,
        num_labels=fields,
    )  # fmt: skip
    with s.device:
        model: Any = BrosForTokenClassification(config)
    for module in model.modules():
        if fused and type(module).__name__ == "BrosSelfAttention":
            module.forward = MethodType(_fused_boxes, module)
    model = _placed(s, way, model).train()
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=0.01)
    pile = []
    for _ in range(6):
        corner = torch.rand(forms, length, 2) * 0.9
        boxes = torch.cat([corner, corner + 0.1 * torch.rand(forms, length, 2)], -1)
        there = (torch.arange(length) < torch.randint(length // 2, length + 1, (forms, 1))).long()
        first = (torch.rand(forms, length) < 0.6) & (there > 0)
        pile.append((torch.randint(3, words, (forms, length)), boxes, there, first, torch.randint(fields, (forms, length))))
    loader = Prefetcher([tuple(s.pin(part) for part in batch) for batch in pile], s) if ahead else None
    turn, shown, sums = 0, [0.0, 0.0], torch.zeros(2, device=s.device)

    def step() -> list[float]:
        nonlocal turn
        _precision(way)
        ids, boxes, there, first, labels = loader.next() if loader else (part.to(s.device) for part in pile[turn % len(pile)])
        turn += 1
        optimizer.zero_grad()
        with _casting(s, way):
            logits = run(input_ids=ids, bbox=boxes, attention_mask=there).logits
        logits = logits.float()
        if masked:
            loss = F.cross_entropy(logits.flatten(0, 1), torch.where(first, labels, -100).flatten())
            right = ((logits.detach().argmax(-1) == labels) & first).sum() / first.sum()
        else:
            loss = F.cross_entropy(logits[first], labels[first])
            right = (logits.detach()[first].argmax(-1) == labels[first]).float().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if masked:
            sums.add_(torch.stack([loss.detach(), right]))
            if turn % 50 == 0:
                shown[:] = (sums / turn).tolist()
        else:
            shown[0] += 0.05 * (loss.item() - shown[0])
            shown[1] += 0.05 * (right.item() - shown[1])
        return shown

    return step


# Proteins.


def variant_scan(
    s: Setup, *, batch: int = 4, letters: int = 33, attention: str = "eager", there: bool = False, kept: bool = False, **how: Any
) -> Step:  # fmt: skip
    """ESM-2 in FP16 scores all variants of an enzyme, four hidden places a call: the host hides each, and each place's scores are read."""
    from transformers import EsmConfig, EsmForMaskedLM

    way, places, width, hide = How(**{"dtype": HALF if s.cuda else BF16, **how}), s.size(320, 32), s.size(640, 32), 32
    config = EsmConfig(
        vocab_size=letters, mask_token_id=hide, pad_token_id=1, hidden_size=width, num_hidden_layers=s.size(16, 2), num_attention_heads=s.size(20, 2),
        intermediate_size=4 * width, max_position_embeddings=1026, position_embedding_type="rotary", token_dropout=True, emb_layer_norm_before=False,
        attn_implementation=attention,
    )  # fmt: skip
    with s.device:
        model: Any = EsmForMaskedLM(config)
    model = _placed(s, way, model).eval()
    run = _call(s, way, model)
    wild = torch.cat([torch.tensor([0]), torch.randint(4, 24, (places,)), torch.tensor([2])])
    amino, wild_there = wild.tolist(), wild.to(s.device)
    ids = wild_there.repeat(batch, 1)
    table = torch.zeros(places + 2, 20, device=s.device)
    turn = 0

    @torch.no_grad()
    def step() -> list[list[float]]:
        nonlocal turn
        asked = [1 + (turn * batch + at) % places for at in range(batch)]
        if there:
            hidden = 1 + (turn * batch + torch.arange(batch, device=s.device)) % places
            ids.copy_(wild_there.expand(batch, -1).scatter(1, hidden[:, None], hide))
        else:
            rows = []
            for place in asked:
                row = wild.clone()
                row[place] = hide
                rows.append(row)
            ids.copy_(torch.stack(rows))
        turn += 1
        told = run(input_ids=ids).logits
        scores: list[list[float]] = []
        for at, place in enumerate(asked):
            chances = told[at, place, 4:24].float().log_softmax(-1)
            score = chances - chances[amino[place] - 4]
            if kept:
                table[place].copy_(score)
            else:
                scores.append(score.tolist())
        return table.tolist() if kept and turn % 40 == 0 else scores

    return step


WORKLOADS = (
    _public(
        "sewer_levels", "GATv2Conv of torch_geometric and a GRU, FP32, 24 passes over 14,000 pipes; rain is copied and levels are fetched in each.",
        sewer_levels, {},
        {"launch-gap": {"compiled": GRAPHS}, "unfused-elementwise": {"compiled": COMPILED}, "graph-candidate": {"graphed": True},
         "sync-stall": {"kept": True}, "memcpy": {"packed": True}, "precision": {"tf32": True}, "low-arithmetic-intensity": {"batch": 8}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
    _public(
        "parish_census", "HypergraphConv of torch_geometric on a table of 40,000 rows, training in FP32; gradients zeroed, masks pick rows, reads.",
        parish_census, {},
        {"unfused-elementwise": {"compiled": COMPILED, "counted": True}, "sync-stall": {"counted": True, "masked": True},
         "graph-candidate": {"graphed": True}, "precision": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"},
         "grad-zeroing": {"zero": False}},
    ),
    _public(
        "customs_forms", "BROS of transformers, training in FP32 on 8 forms of 384 words, their boxes in the scores; AdamW by a loop, masks, two reads.",
        customs_forms, {},
        {"precision/tf32": {"tf32": True}, "precision": {"autocast": BF16}, "unfused-attention": {"fused": True},
         "unfused-elementwise": {"compiled": COMPILED}, "optimizer-foreach": {"optimizer": "fused"}, "sync-stall": {"masked": True},
         "memcpy": {"ahead": True}},
    ),
    _public(
        "variant_scan", "ESM-2 of transformers, all in fp16 with attention written out, four copies of a protein a call; the host hides, reads by place.",
        variant_scan, {},
        {"low-arithmetic-intensity": {"batch": 32}, "unfused-attention": {"attention": SDPA},
         "unfused-elementwise": {"compiled": COMPILED}, "sync-stall": {"kept": True}, "memcpy": {"there": True}, "gemm-alignment": {"letters": 64}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
