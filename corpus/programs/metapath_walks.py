"""MetaPath2Vec of torch_geometric, training in FP32 on walks of 128 authors, drawn in this process; the loss is read."""

from __future__ import annotations

from typing import Any

import torch

from workloads.base import Setup, Step
from workloads.public import _forever, _public


def metapath2vec(s: Setup, *, workers: bool = False, pinned: bool = False, read: bool = True) -> Step:
    """The library's example metapath2vec.py: walks from author to paper to venue and back, as they are and drawn at random, are embedded."""
    from torch_geometric.nn import MetaPath2Vec

    authors, papers, venues = s.size(160_000, 40), s.size(300_000, 60), s.size(3883, 5)
    writes = torch.stack([torch.randint(authors, (s.size(900_000, 200),)), torch.randint(papers, (s.size(900_000, 200),))])
    shown = torch.stack([torch.arange(papers), torch.randint(venues, (papers,))])
    edges = {
        ("author", "writes", "paper"): writes, ("paper", "published_in", "venue"): shown,
        ("venue", "publishes", "paper"): shown.flip(0), ("paper", "written_by", "author"): writes.flip(0),
    }  # fmt: skip
    model = MetaPath2Vec(
        edges, embedding_dim=s.size(128, 8), metapath=list(edges), walk_length=s.size(50, 8), context_size=s.size(7, 3), walks_per_node=s.size(5, 2),
        num_negative_samples=s.size(5, 2), num_nodes_dict={"author": authors, "paper": papers, "venue": venues}, sparse=True,
    ).to(s.device)  # fmt: skip
    model.train()
    options, batches = _forever(s, workers and s.cuda)
    options |= {"pin_memory": s.cuda} if pinned else {}
    stream = batches(model.loader(batch_size=s.size(128, 4), shuffle=True, drop_last=True, **options))
    optimizer: Any = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)
    sums = [0.0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        real, drawn = next(stream)
        optimizer.zero_grad()
        loss = model.loss(real.to(s.device, non_blocking=pinned or workers), drawn.to(s.device, non_blocking=pinned or workers))
        loss.backward()
        optimizer.step()
        if read:
            sums[0] += loss.item()

    return step


PROGRAM = _public(
    "metapath_walks",
    "MetaPath2Vec of torch_geometric, training in FP32 on walks of 128 authors, drawn in this process; the loss is read.",
    metapath2vec,
    {},
    {"data-loading": {"workers": True}, "memcpy": {"pinned": True}, "sync-stall": {"read": False}},
)
