import math

import torch


class RankingReport:
    """Ranking quality of scored items, overall and by user segment."""

    def __init__(self, k=10, n_segments=4):
        self.k = k
        self.n_segments = n_segments

    def __call__(self, scores, targets, segments):
        mrr = ndcg = margin = 0.0
        hits = [0] * self.n_segments
        counts = [0] * self.n_segments
        n = scores.shape[0]
        for i in range(n):
            row = scores[i]
            target = targets[i].item()
            own = row[target].item()
            rank = 1
            best_other = -math.inf
            for j, s in enumerate(row.tolist()):
                if j == target:
                    continue
                if s > own:
                    rank += 1
                if s > best_other:
                    best_other = s
            mrr += 1.0 / rank
            if rank <= self.k:
                ndcg += 1.0 / math.log2(rank + 1)
            margin += own - best_other
            seg = segments[i].item()
            counts[seg] += 1
            if rank <= self.k:
                hits[seg] += 1
        by_segment = [h / max(c, 1) for h, c in zip(hits, counts)]
        return {
            "mrr": mrr / n,
            "ndcg": ndcg / n,
            "margin": margin / n,
            "worst_segment": min(by_segment),
        }


def weight_norm(model):
    with torch.no_grad():
        return math.sqrt(sum(p.pow(2).sum().item() for p in model.parameters()))
