"""launch-gap"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import Setup, Step, written_pair


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Linear(inner, outer), act()]
    return nn.Sequential(*layers[:-1])


FP16 = torch.float16


def retrieve_rerank(s: Setup, *, batched: bool = False, late: bool = False, half: bool = False, empties: bool = True, queries: int = 16) -> Step:
    dim, many, kept, shown = s.size(384, 8), s.size(400_000, 60), s.size(100, 5), s.size(10, 2)
    queries = s.size(queries, queries // 8)
    corpus = F.normalize(torch.randn(many, dim, device=s.device), dim=1).to(FP16 if half else torch.float32)
    asked = F.normalize(torch.randn(queries, dim, device=s.device), dim=1)
    judge = _mlp(3 * dim, s.size(512, 8), s.size(256, 8), 1).to(s.device).eval()

    @torch.no_grad()
    def step() -> list[list[int]]:
        found = (asked.to(corpus.dtype) @ corpus.T).topk(kept).indices
        if batched:
            documents = corpus[found].float()
            query = asked[:, None].expand_as(documents)
            relevant = judge(torch.cat([query, documents, query * documents], -1)).squeeze(-1)
            answer: list[list[int]] = found.gather(1, relevant.topk(shown).indices).tolist()
        else:
            kept_back: list[Tensor] = []
            answer = []
            for i in range(queries):
                documents = corpus[found[i]].float()
                query = asked[i].expand_as(documents)
                relevant = judge(torch.cat([query, documents, query * documents], -1)).squeeze(-1)
                best = found[i][relevant.topk(shown).indices]
                if late:
                    kept_back.append(best)
                else:
                    answer.append(best.tolist())
            if late:
                answer = torch.stack(kept_back).tolist()
        if empties and s.cuda:
            torch.cuda.empty_cache()
        return answer

    return step


PROGRAM = written_pair(
    "retrieve_rerank",
    "launch-gap",
    "The 100 nearest of 400,000 documents in FP32, a re-ranker query by query, and memory given back after each request.",
    "re-rank all queries at once",
    retrieve_rerank,
    {"batched": True},
    alone={"sync-stall": {"late": True}, "allocator": {"empties": False}, "precision": {"half": True}, "low-arithmetic-intensity": {"queries": 64}},
    shared={"low-arithmetic-intensity": 4.0},
    top=("launch-gap", "sync-stall", "allocator"),
)
