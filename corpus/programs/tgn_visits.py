"""A temporal graph network of torch_geometric, training in FP32 on 200 visits a step, messages in dictionaries."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import BF16, How, _casting, _optimizer, _precision, _public


def _last_messages() -> type[nn.Module]:
    """The library's memory with its dictionaries of messages made tensors: the last aggregator needs but one message of each node."""
    from torch_geometric.nn import TGNMemory

    class LastMessages(TGNMemory):  # type: ignore[misc]
        def _reset_message_store(self) -> None:
            self.msg_s_store, self.msg_d_store = self._empty(), self._empty()

        def _empty(self) -> tuple[Tensor, Tensor, Tensor]:
            other, when = (torch.full((self.num_nodes,), start, device=self.device) for start in (0, -1))
            return other, when, torch.zeros(self.num_nodes, self.raw_msg_dim, device=self.device)

        def _update_msg_store(self, src: Tensor, dst: Tensor, t: Tensor, raw_msg: Tensor, msg_store: tuple[Tensor, Tensor, Tensor]) -> None:
            last = torch.zeros(self.num_nodes, dtype=torch.long, device=src.device)
            last = last.scatter_reduce_(0, src, torch.arange(len(src), device=src.device), "amax")[src]
            for stored, new in zip(msg_store, (dst, t, raw_msg), strict=True):
                stored[src] = new[last]  # one node's events all write its last

        def _message(self, n_id: Tensor, store: tuple[Tensor, Tensor, Tensor], module: nn.Module) -> tuple[Tensor, Tensor]:
            other, when, raw = (part[n_id] for part in store)
            passed = self.time_enc((when - self.last_update[n_id]).to(raw.dtype))
            return module(self.memory[n_id], self.memory[other], raw, passed), when

        def _get_updated_memory(self, n_id: Tensor) -> tuple[Tensor, Tensor]:
            sent, sent_at = self._message(n_id, self.msg_s_store, self.msg_s_module)
            got, got_at = self._message(n_id, self.msg_d_store, self.msg_d_module)
            newest = torch.maximum(sent_at, got_at)
            message = torch.where((sent_at >= got_at)[:, None], sent, got) * (newest >= 0)[:, None]
            return self.gru(message, self.memory[n_id]), newest.clamp(min=0)

    return LastMessages  # type: ignore[no-any-return]


def tgn(s: Setup, *, tensors: bool = False, read: bool = True, **how: Any) -> Step:
    """The library's example tgn.py on visits to pages: each node's messages lie in a dictionary, 200 visits make a step."""
    from torch_geometric.data import TemporalData
    from torch_geometric.loader import TemporalDataLoader
    from torch_geometric.nn import TGNMemory, TransformerConv
    from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

    way, users, pages, events, features, dim = How(**how), s.size(8227, 30), s.size(1000, 10), s.size(157_474, 400), s.size(172, 6), s.size(100, 8)
    nodes = users + pages
    busy, liked = torch.rand(2, events) ** 3  # few users make most visits
    visits = TemporalData(src=(busy * users).long(), dst=users + (liked * pages).long(), t=torch.arange(events) * 17, msg=torch.rand(events, features)).to(
        s.device
    )

    class Embedding(nn.Module):
        def __init__(self, time_encoder: nn.Module) -> None:
            super().__init__()
            self.time_encoder = time_encoder
            self.conv = TransformerConv(dim, dim // 2, heads=2, dropout=0.1, edge_dim=features + dim)

        def forward(self, x: Tensor, last_update: Tensor, edges: Tensor, t: Tensor, message: Tensor) -> Tensor:
            passed = self.time_encoder((last_update[edges[0]] - t).to(x.dtype))
            return self.conv(x, edges, torch.cat([passed, message], -1))  # type: ignore[no-any-return]

    class Predictor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.src, self.dst, self.final = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, 1)

        def forward(self, src: Tensor, dst: Tensor) -> Tensor:
            return self.final((self.src(src) + self.dst(dst)).relu())  # type: ignore[no-any-return]

    kind = _last_messages() if tensors else TGNMemory
    memory = kind(nodes, features, dim, dim, message_module=IdentityMessage(features, dim, dim), aggregator_module=LastAggregator()).to(s.device)
    memory.reset_state()  # its stores move to the device
    embedding, predictor = Embedding(memory.time_enc).to(s.device), Predictor().to(s.device)
    neighbours, place = LastNeighborLoader(nodes, size=10, device=s.device), torch.empty(nodes, dtype=torch.long, device=s.device)
    parameters = {*memory.parameters(), *embedding.parameters(), *predictor.parameters()}
    optimizer, sums = _optimizer(way, parameters, torch.optim.Adam), [0.0]
    loader = TemporalDataLoader(visits, batch_size=s.size(200, 20), neg_sampling_ratio=1.0)

    def batches() -> Any:
        while True:
            memory.reset_state()
            neighbours.reset_state()
            yield from loader

    stream = batches()

    def step() -> None:
        _precision(way)
        batch = next(stream)
        optimizer.zero_grad()
        nearby, edges, numbers = neighbours(batch.n_id)
        place[nearby] = torch.arange(len(nearby), device=s.device)
        with _casting(s, way):
            state, last_update = memory(nearby)
            state = embedding(state, last_update, edges, visits.t[numbers], visits.msg[numbers])
            source = state[place[batch.src]]
            there, elsewhere = (predictor(source, state[place[end]]) for end in (batch.dst, batch.neg_dst))
            loss = F.binary_cross_entropy_with_logits(there, torch.ones_like(there))
            loss = loss + F.binary_cross_entropy_with_logits(elsewhere, torch.zeros_like(elsewhere))
        memory.update_state(batch.src, batch.dst, batch.t, batch.msg)
        neighbours.insert(batch.src, batch.dst)
        loss.backward()
        optimizer.step()
        memory.detach()
        if read:
            sums[0] += loss.item() * batch.num_events

    return step


PROGRAM = _public(
    "tgn_visits",
    "A temporal graph network of torch_geometric, training in FP32 on 200 visits a step, messages in dictionaries.",
    tgn,
    {},
    {"host-bound": {"tensors": True}, "sync-stall": {"read": False}, "precision": {"autocast": BF16}},
)
