"""Public models of cited papers, enzymes, moths and common questions, by an author who has not read the rules."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step
from .public_models import BF16, COMPILED, How, _call, _casting, _optimizer, _placed, _precision
from .public_models_2 import SDPA
from .public_models_4 import _public

# Graphs.


class _UniMP(nn.Module):
    """Masked labels are added to the features, and graph transformers mix them, as in torch_geometric's example unimp_arxiv.py."""

    def __init__(self, features: int, classes: int, width: int, heads: int, layers: int) -> None:
        from torch_geometric.nn import TransformerConv

        super().__init__()
        self.labels = nn.Embedding(classes + 1, features)
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for layer in range(layers):
            last = layer == layers - 1
            entering = width * heads if layer else features
            self.convs.append(TransformerConv(entering, classes if last else width, heads=heads, concat=not last, beta=True, dropout=0.1))
            if not last:
                self.norms.append(nn.LayerNorm(width * heads))

    def forward(self, x: Tensor, shown: Tensor, edge_index: Tensor) -> Tensor:
        x = x + self.labels(shown)
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = F.dropout(norm(conv(x, edge_index)).relu(), 0.3, self.training)
        return self.convs[-1](x, edge_index)  # type: ignore[no-any-return]


def unimp_papers(s: Setup, *, masked: bool = False, **how: Any) -> Step:
    """UniMP learns subjects of papers: an epoch shows some of the known labels and asks for the rest, then all three shares are read."""
    way, nodes, features, classes = How(**how), s.size(40_000, 120), s.size(128, 16), s.size(40, 5)
    drawn = np.random.default_rng(0)
    pairs = np.stack([drawn.integers(0, nodes, nodes * 6), (drawn.random(nodes * 6) ** 2 * nodes).astype(np.int64)])
    edge_index = torch.from_numpy(np.concatenate([pairs, pairs[::-1]], 1)).to(s.device)
    x = torch.randn(nodes, features, device=s.device)
    y = torch.randint(classes, (nodes,), device=s.device)
    part = torch.rand(nodes, device=s.device)
    train, valid, test = part < 0.54, (part >= 0.54) & (part < 0.72), part >= 0.72
    model = _placed(s, way, _UniMP(features, classes, s.size(64, 8), 2, 3))
    run = _call(s, way, model)
    optimizer = _optimizer(way, model.parameters(), weight_decay=5e-4)
    sizes = torch.stack([mask.sum() for mask in (train, valid, test)])
    sums = torch.zeros(4, device=s.device)
    log: list[tuple[float, ...]] = []

    def step() -> None:
        _precision(way)
        model.train()
        known = train & (torch.rand(nodes, device=s.device) < 0.65)
        asked = train & ~known
        if masked:
            shown = torch.where(known, y, classes)
        else:
            shown = torch.full_like(y, classes)
            shown[known] = y[known]
        optimizer.zero_grad()
        with _casting(s, way):
            out = run(x, shown, edge_index)
        if masked:
            loss = F.cross_entropy(out.float(), torch.where(asked, y, -100))
        else:
            loss = F.cross_entropy(out[asked].float(), y[asked])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            if masked:
                shown = torch.where(train, y, classes)
            else:
                shown = torch.full_like(y, classes)
                shown[train] = y[train]
            with _casting(s, way):
                right = run(x, shown, edge_index).argmax(-1) == y
            if masked:
                shares = torch.stack([(right & mask).sum() for mask in (train, valid, test)]) / sizes
                sums.add_(torch.cat([loss.detach()[None], shares]))
                return
            shares = [int(right[mask].sum()) / int(mask.sum()) for mask in (train, valid, test)]
        log.append((float(loss), *shares))

    return step


class _TopK(nn.Module):
    """Convolutions and pooling by turns, as in torch_geometric's example proteins_topk_pool.py."""

    def __init__(self, features: int, classes: int, width: int) -> None:
        from torch_geometric.nn import GraphConv, TopKPooling

        super().__init__()
        self.convs = nn.ModuleList(GraphConv(width if layer else features, width) for layer in range(3))
        self.pools = nn.ModuleList(TopKPooling(width, ratio=0.8) for _ in range(3))
        self.head = nn.Sequential(
            nn.Linear(2 * width, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, classes)
        )  # fmt: skip

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, graphs: int) -> Tensor:
        from torch_geometric.nn import global_max_pool, global_mean_pool

        read = []
        for conv, pool in zip(self.convs, self.pools, strict=True):
            x = F.relu(conv(x, edge_index))
            x, edge_index, _, batch, _, _ = pool(x, edge_index, None, batch)
            read.append(torch.cat([global_max_pool(x, batch, graphs), global_mean_pool(x, batch, graphs)], 1))
        return self.head(sum(read))  # type: ignore[no-any-return]


class _Shelf:
    """All graphs lie on the device one after the other; a batch is cut out by index arithmetic, in a new order each epoch."""

    def __init__(self, graphs: list[Any], batch: int, device: torch.device) -> None:
        self.batch, self.device = batch, device
        self.nodes, self.edges = (np.array([getattr(graph, count) for graph in graphs]) for count in ("num_nodes", "num_edges"))
        self.x, self.y = (torch.cat([graph[name] for graph in graphs]).to(device) for name in ("x", "y"))
        self.edge_index = torch.cat([graph.edge_index for graph in graphs], 1).to(device)
        starts = [np.cumsum(counts) - counts for counts in (self.nodes, self.edges)]
        self.table = torch.from_numpy(np.stack([self.nodes, self.edges, *starts])).to(device)

    @staticmethod
    def _places(counts: Tensor, starts: Tensor, total: int) -> tuple[Tensor, Tensor]:
        first = counts.cumsum(0) - counts
        return torch.arange(total, device=counts.device) + torch.repeat_interleave(starts - first, counts, output_size=total), first

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        order = torch.randperm(len(self.nodes))
        there = order.to(self.device)
        for start in range(0, len(order) - self.batch + 1, self.batch):
            chosen, at = order[start : start + self.batch].numpy(), there[start : start + self.batch]
            nodes, edges, node_starts, edge_starts = self.table[:, at]
            total, links = int(self.nodes[chosen].sum()), int(self.edges[chosen].sum())
            node_at, first = self._places(nodes, node_starts, total)
            edge_at, _ = self._places(edges, edge_starts, links)
            edge_index = self.edge_index[:, edge_at] + torch.repeat_interleave(first, edges, output_size=links)
            owner = torch.repeat_interleave(torch.arange(self.batch, device=self.device), nodes, output_size=total)
            yield self.x[node_at], edge_index, owner, self.y[at]


def enzyme_classes(s: Setup, *, workers: int = 0, shelf: bool = False, kept: bool = False, sent: bool = False, **how: Any) -> Step:
    """TopKPooling tells classes of enzymes: a DataLoader joins small graphs in this process; loss and hits are read for each batch."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    way, features, classes, batch = How(**how), s.size(21, 5), 6, s.size(256, 8)
    drawn = np.random.default_rng(0)

    def enzyme() -> Any:
        nodes = int(drawn.integers(s.size(12, 6), s.size(64, 10)))
        chain = np.stack([np.arange(nodes - 1), np.arange(1, nodes)])
        pairs = np.concatenate([chain, drawn.integers(0, nodes, (2, nodes))], 1)
        return Data(
            x=torch.from_numpy(drawn.standard_normal((nodes, features), dtype=np.float32)), y=torch.from_numpy(drawn.integers(0, classes, 1)),
            edge_index=torch.from_numpy(np.concatenate([pairs, pairs[::-1]], 1)), num_nodes=nodes,
        )  # fmt: skip

    graphs = [enzyme() for _ in range(s.size(8192, 32))]
    count, pin = (workers if s.cuda else 0), s.cuda and (sent or workers > 0)
    loader: Any = _Shelf(graphs, batch, s.device) if shelf else DataLoader(
        graphs, batch, shuffle=True, drop_last=True, num_workers=count, persistent_workers=count > 0, pin_memory=pin
    )  # fmt: skip
    model = _placed(s, way, _TopK(features, classes, s.size(128, 16))).train()
    optimizer = _optimizer(way, model.parameters(), torch.optim.Adam)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 500, 0.5)
    seen, log, sums = 0, [0.0, 0.0], torch.zeros(2, device=s.device)

    def endless() -> Iterator[tuple[Tensor, ...]]:
        while True:
            for data in loader:
                if shelf:
                    yield data
                else:
                    data = data.to(s.device, non_blocking=sent)
                    yield data.x, data.edge_index, data.batch, data.y

    batches = endless()

    def step() -> None:
        nonlocal seen
        _precision(way)
        x, edge_index, owner, y = next(batches)
        optimizer.zero_grad()
        with _casting(s, way):
            out = model(x, edge_index, owner, batch)
        loss = F.cross_entropy(out.float(), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        seen += batch
        hits = (out.detach().argmax(1) == y).sum()
        if kept:
            sums.add_(torch.stack([loss.detach() * batch, hits]))
        else:
            log[0] += loss.item() * batch
            log[1] += hits.item()

    return step


# Pictures.


class _Moths(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Photos of a trap's screen in memory, cut and turned over by chance, as floats or (`raw`) as bytes."""

    def __init__(self, s: Setup, classes: int, raw: bool) -> None:
        drawn = np.random.default_rng(0)
        self.side, larger, self.raw = s.size(176, 64), s.size(192, 72), raw
        self.photos = torch.from_numpy(drawn.integers(0, 256, (s.size(512, 16), 3, larger, larger), dtype=np.uint8))
        self.labels = drawn.integers(0, classes, s.size(8192, 64)).tolist()
        self.room = larger - self.side
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        top, left = torch.randint(self.room + 1, (2,)).tolist()
        photo = self.photos[at % len(self.photos), :, top : top + self.side, left : left + self.side]
        if torch.rand(()) < 0.5:
            photo = photo.flip(-1)
        return (photo.contiguous() if self.raw else (photo.float() / 255 - self.mean) / self.std), self.labels[at]


def moth_traps(
    s: Setup, *, workers: int = 0, raw: bool = False, kept: bool = False, mean_at_once: bool = False, **how: Any
) -> Step:  # fmt: skip
    """A SE-ResNeXt learns moths by a tutorial's loop: two micro-batches a step, gradients clipped, a mean model, metrics by torch."""
    import timm

    way, classes, batch = How(**{"autocast": BF16, **how}), s.size(240, 7), s.size(32, 4)
    model: Any = timm.create_model("seresnext26d_32x4d", pretrained=False, num_classes=classes, drop_rate=0.1)
    model = _placed(s, way, model).train()
    mean_model = deepcopy(model).eval().requires_grad_(False)
    parameters = list(model.parameters())
    optimizer = _optimizer(way, parameters, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    count = workers if s.cuda else 0
    loader = torch.utils.data.DataLoader(
        _Moths(s, classes, raw), batch, shuffle=True, drop_last=True, num_workers=count, persistent_workers=count > 0,
        pin_memory=count > 0, prefetch_factor=4 if count else None,
    )  # fmt: skip
    mean, std = (255 * part.to(s.device) for part in (loader.dataset.mean, loader.dataset.std))  # type: ignore[attr-defined]
    means = [value for value in mean_model.state_dict().values() if value.is_floating_point()]
    values = [value for value in model.state_dict().values() if value.is_floating_point()]
    sums, log = torch.zeros(2, device=s.device), {"loss": 0.0, "right": 0.0, "norm": 0.0}

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    @torch.no_grad()
    def averaged() -> None:
        if mean_at_once:
            torch._foreach_lerp_(means, values, 0.001)
            return
        for kept_value, value in zip(mean_model.state_dict().values(), model.state_dict().values(), strict=True):
            if value.is_floating_point():
                kept_value.copy_(0.999 * kept_value + 0.001 * value)
            else:
                kept_value.copy_(value)

    def step() -> None:
        _precision(way)
        optimizer.zero_grad()
        for _ in range(2):
            x, y = (part.to(s.device, non_blocking=workers > 0) for part in next(batches))
            if raw:
                x = (x.float() - mean) / std
            if way.channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            with _casting(s, way):
                out = model(x)
                loss = F.cross_entropy(out, y, label_smoothing=0.1)
            (loss / 2).backward()
            right = (out.detach().argmax(1) == y).float().mean()
            if kept:
                sums.add_(torch.stack([loss.detach(), right]))
            else:
                log["loss"] += loss.item()
                log["right"] += right.item()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        if not kept:
            log["norm"] = norm.item()
        optimizer.step()
        schedule.step()
        averaged()

    return step


# Words.


def faq_service(
    s: Setup, *, batch: int = 4, index_there: bool = False, attention: str = "eager", **how: Any
) -> Step:  # fmt: skip
    """ERNIE embeds four customers' questions of up to 48 words a call; NumPy looks the nearest five of 40,000 answered ones up."""
    from transformers import ErnieConfig, ErnieModel

    way, words, width, longest = How(**how), s.size(30_000, 101), s.size(768, 32), s.size(48, 8)
    many = s.size(batch, batch // 2)
    config = ErnieConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=s.size(8, 2), num_attention_heads=s.size(12, 2),
        intermediate_size=4 * width, max_position_embeddings=512, attn_implementation=attention,
    )  # fmt: skip
    model = _placed(s, way, ErnieModel(config, add_pooling_layer=False)).eval()
    run = _call(s, way, model)
    drawn = np.random.default_rng(0)
    spoken = [f"word{at}" for at in range(words - 3)]
    numbers = {word: at + 3 for at, word in enumerate(spoken)}
    texts = [" ".join(spoken[at] for at in drawn.integers(0, len(spoken), drawn.integers(longest // 4, longest))) for _ in range(512)]
    answered = drawn.standard_normal((s.size(40_000, 64), width), dtype=np.float32)
    answered /= np.linalg.norm(answered, axis=1, keepdims=True)
    there = torch.from_numpy(answered).to(s.device) if index_there else None
    ids_there, mask_there = (torch.ones(many, longest, dtype=torch.long, device=s.device) for _ in range(2))
    vectors = torch.empty(many, width, device=s.device)
    turn = 0

    @torch.no_grad()
    def embedded() -> None:
        with _casting(s, way):
            hidden = run(input_ids=ids_there, attention_mask=mask_there).last_hidden_state
        weights = mask_there[..., None].to(hidden.dtype)
        vectors.copy_(F.normalize((hidden * weights).sum(1) / weights.sum(1).clamp(min=1), dim=-1))

    _precision(way)

    def encoded(questions: list[str]) -> tuple[Tensor, Tensor]:
        ids, mask = np.zeros((many, longest), dtype=np.int64), np.zeros((many, longest), dtype=np.int64)
        for row, question in enumerate(questions):
            found = [*[1, *(numbers.get(word, 0) for word in question.lower().split())][: longest - 1], 2]
            ids[row, : len(found)], mask[row, : len(found)] = found, 1
        return torch.from_numpy(ids), torch.from_numpy(mask)

    @torch.no_grad()
    def step() -> list[list[tuple[int, float]]]:
        nonlocal turn
        _precision(way)
        questions = [texts[(turn + at) % len(texts)] for at in range(many)]
        turn += many
        ids, mask = encoded(questions)
        ids_there.copy_(ids)
        mask_there.copy_(mask)
        embedded()
        if there is not None:
            scores, places = (vectors @ there.T).topk(5)
            best, near = places.tolist(), scores.tolist()
        else:
            likeness = vectors.cpu().numpy() @ answered.T
            top = np.argpartition(-likeness, 5, axis=1)[:, :5]
            values = np.take_along_axis(likeness, top, 1)
            order = np.argsort(-values, axis=1)
            best, near = np.take_along_axis(top, order, 1).tolist(), np.take_along_axis(values, order, 1).tolist()
        return [list(zip(*row, strict=True)) for row in zip(best, near, strict=True)]

    return step


WORKLOADS = (
    _public(
        "unimp_papers", "UniMP's TransformerConv of torch_geometric, an epoch of training and a check in FP32 on 480,000 edges; masks pick papers.",
        unimp_papers, {},
        {"unfused-elementwise": {"compiled": COMPILED}, "precision": {"autocast": BF16}, "precision/tf32": {"tf32": True},
         "sync-stall": {"masked": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "enzyme_classes", "TopKPooling of torch_geometric, training in FP32 on 256 small graphs that a DataLoader joins in this process.",
        enzyme_classes, {},
        {"data-loading": {"workers": 6}, "host-bound": {"shelf": True}, "sync-stall": {"kept": True}, "memcpy": {"sent": True},
         "precision": {"tf32": True}, "optimizer-foreach": {"optimizer": "fused"}},
    ),
    _public(
        "moth_traps", "SE-ResNeXt-26 of timm, training in bf16 autocast, NCHW, on 2 x 32 photos made in this process; five numbers are read.",
        moth_traps, {},
        {"data-loading": {"workers": 8}, "host-bound": {"raw": True}, "sync-stall": {"kept": True}, "memory-layout": {"channels_last": True},
         "optimizer-foreach": {"mean_at_once": True}, "precision": {"tf32": True}},
    ),
    _public(
        "faq_service", "ERNIE of transformers, FP32, embeds 4 short questions a call; NumPy searches 40,000 vectors in this process.",
        faq_service, {},
        {"host-bound": {"index_there": True}, "launch-gap": {"compiled": COMPILED},
         "low-arithmetic-intensity": {"batch": 32}, "unfused-attention": {"attention": SDPA}, "precision": {"tf32": True}},
        shared={"low-arithmetic-intensity": 8.0},
    ),
)  # fmt: skip
