import math

import torch


class RankingReport:
    """Ranking quality of scored items, overall and by user segment."""

    def __init__(self, k=10, n_segments=4):
        self.k = k
        self.n_segments = n_segments

    def __call__(self, scores, targets, segments):
        n = scores.shape[0]
        own = scores.gather(1, targets[:, None])
        rank = (scores > own).sum(dim=1) + 1
        others = scores.scatter(1, targets[:, None], -math.inf)
        best_other = others.max(dim=1).values
        hit = rank <= self.k
        gain = torch.where(hit, 1.0 / torch.log2(rank.double() + 1), 0.0)
        margin = (own[:, 0].double() - best_other.double()).mean()
        counts = torch.bincount(segments, minlength=self.n_segments).clamp_min(1)
        hits = torch.bincount(segments[hit], minlength=self.n_segments)
        return {
            "mrr": (1.0 / rank.double()).mean().item(),
            "ndcg": gain.sum().item() / n,
            "margin": margin.item(),
            "worst_segment": (hits.double() / counts).min().item(),
        }


def weight_norm(model):
    with torch.no_grad():
        return math.sqrt(sum(p.pow(2).sum().item() for p in model.parameters()))
