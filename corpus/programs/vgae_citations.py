"""A variational graph autoencoder of torch_geometric on 3,327 papers, FP32: pairs without a link are drawn on the host."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workloads.base import Setup, Step
from workloads.public import _public


class Encoder(nn.Module):
    def __init__(self, wide: int, thin: int) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.first, self.mean, self.spread = GCNConv(wide, 2 * thin, cached=True), GCNConv(2 * thin, thin, cached=True), GCNConv(2 * thin, thin, cached=True)

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x, edges).relu()
        return self.mean(x, edges), self.spread(x, edges)


def missing_links(s: Setup, *, sampled_ahead: bool = False, read: bool = True, adam: bool | None = None) -> Step:
    """The library's example autoencoder.py --variational: Python and NumPy draw pairs of papers that do not cite each other."""
    from torch_geometric.nn import VGAE
    from torch_geometric.utils import negative_sampling

    papers, half = s.size(3327, 30), s.size(3870, 40)
    model = VGAE(Encoder(s.size(3703, 20), 16)).to(s.device).train()
    x = (torch.rand(papers, s.size(3703, 20), device=s.device) < 0.01).float()
    one, other = torch.randint(papers, (2, half), device=s.device)
    edges = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
    ahead = [negative_sampling(edges, papers) for _ in range(8)] if sampled_ahead else []
    optimizer, turns, losses = torch.optim.Adam(model.parameters(), lr=0.01, fused=adam), iter(range(10**9)), [0.0]

    def step() -> None:
        torch.set_float32_matmul_precision("highest")
        optimizer.zero_grad()
        z = model.encode(x, edges)
        loss = model.recon_loss(z, edges, ahead[next(turns) % len(ahead)] if ahead else None) + model.kl_loss() / papers
        loss.backward()
        optimizer.step()
        if read:
            losses[0] = float(loss.detach())

    return step


PROGRAM = _public(
    "vgae_citations",
    "A variational graph autoencoder of torch_geometric on 3,327 papers, FP32: pairs without a link are drawn on the host.",
    missing_links,
    {},
    {"host-bound": {"sampled_ahead": True}, "sync-stall": {"read": False}, "optimizer-foreach": {"adam": True}},
)
