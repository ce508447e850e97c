"""How late will a parcel be? A TabNet with ghost batch norms learns three quantiles from the depot's table."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Setup, Step, capture

QUANTILES = (0.5, 0.8, 0.95)
# sender, depots, postcodes, service, vehicle, weekday, …: how many values each column has
CARDINALITIES = (24_000, 11_500, 11_500, 3_200, 410, 410, 96, 60, 52, 31, 24, 24, 14, 12, 9, 7, 5, 3)


def sparsemax(z: Tensor) -> Tensor:
    """Martins and Astudillo, 2016, along the last dimension."""
    ordered, _ = torch.sort(z, dim=-1, descending=True)
    total = ordered.cumsum(dim=-1)
    k = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    support = 1 + k * ordered > total
    size = support.sum(dim=-1, keepdim=True)
    tau = (total.gather(-1, size - 1) - 1) / size
    return torch.clamp(z - tau, min=0)


class GhostBatchNorm(nn.Module):
    def __init__(self, dim: int, virtual: int, momentum: float = 0.02) -> None:
        super().__init__()
        self.virtual = virtual
        self.bn = nn.BatchNorm1d(dim, momentum=momentum)
        self.ceil: Callable[[float], float] = np.ceil

    def forward(self, x: Tensor) -> Tensor:
        chunks = x.chunk(int(self.ceil(x.shape[0] / self.virtual)), 0)
        return torch.cat([self.bn(chunk) for chunk in chunks], dim=0)


class GLU(nn.Module):
    def __init__(self, inside: int, outside: int, virtual: int, fc: nn.Linear | None = None) -> None:
        super().__init__()
        self.fc = fc if fc is not None else nn.Linear(inside, 2 * outside, bias=False)
        self.bn = GhostBatchNorm(2 * outside, virtual)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.bn(self.fc(x)), dim=-1)


class FeatureTransformer(nn.Module):
    """Two layers whose weights all steps share, and two of the step's own."""

    def __init__(self, inside: int, width: int, shared: list[nn.Linear], virtual: int, own: int = 2) -> None:
        super().__init__()
        layers = [GLU(inside if i == 0 else width, width, virtual, fc) for i, fc in enumerate(shared)]
        layers += [GLU(width, width, virtual) for _ in range(own)]
        self.layers = nn.ModuleList(layers)
        self.scale = 0.5**0.5

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = (x + layer(x)) * self.scale
        return x


class AttentiveTransformer(nn.Module):
    def __init__(self, width: int, groups: int, virtual: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, groups, bias=False)
        self.bn = GhostBatchNorm(groups, virtual)

    def forward(self, prior: Tensor, a: Tensor) -> Tensor:
        return sparsemax(self.bn(self.fc(a)) * prior)


class Embeddings(nn.Module):
    """One table per categorical column; numbers go through as they are."""

    def __init__(self, cardinalities: list[int], numbers: int) -> None:
        super().__init__()
        dims = [min(24, max(2, round(1.6 * c**0.3))) for c in cardinalities]
        self.tables = nn.ModuleList(nn.Embedding(c, d) for c, d in zip(cardinalities, dims, strict=False))
        self.width = sum(dims) + numbers
        # which features belong to which column: a column is attended to as a whole
        column = [i for i, d in enumerate(dims) for _ in range(d)] + [len(dims) + i for i in range(numbers)]
        spread = torch.zeros(len(dims) + numbers, self.width)
        spread[torch.tensor(column), torch.arange(self.width)] = 1.0
        self.spread: Tensor
        self.register_buffer("spread", spread)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        parts = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        return torch.cat([*parts, numbers], dim=1)


class TabNet(nn.Module):
    def __init__(self, cardinalities: list[int], numbers: int, n_d: int, n_a: int, steps: int, virtual: int, outputs: int, gamma: float = 1.3) -> None:
        super().__init__()
        self.n_d, self.steps, self.gamma = n_d, steps, gamma
        self.embeddings = Embeddings(cardinalities, numbers)
        inside, width, groups = self.embeddings.width, n_d + n_a, len(cardinalities) + numbers
        self.first = nn.BatchNorm1d(inside, momentum=0.01)
        shared = [nn.Linear(inside, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)]
        self.splitter = FeatureTransformer(inside, width, shared, virtual)
        self.transformers = nn.ModuleList(FeatureTransformer(inside, width, shared, virtual) for _ in range(steps))
        self.attention = nn.ModuleList(AttentiveTransformer(n_a, groups, virtual) for _ in range(steps))
        self.head = nn.Linear(n_d, outputs, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                gain = float(np.sqrt((module.in_features + module.out_features) / np.sqrt(4 * module.in_features)))
                nn.init.xavier_normal_(module.weight, gain=gain)

    def forward(self, categories: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(self.embeddings(categories, numbers))
        spread = self.embeddings.spread
        prior = torch.ones(x.shape[0], spread.shape[0], device=x.device)
        a = self.splitter(x)[:, self.n_d :]
        decision = torch.zeros(x.shape[0], self.n_d, device=x.device)
        entropy = torch.zeros((), device=x.device)
        for transformer, attend in zip(self.transformers, self.attention, strict=False):
            mask = attend(prior, a)
            entropy = entropy + torch.mean(torch.sum(mask * torch.log(mask + 1e-15), dim=1))
            prior = prior * (self.gamma - mask)
            out = transformer(x * (mask @ spread))
            decision = decision + F.relu(out[:, : self.n_d])
            a = out[:, self.n_d :]
        return self.head(decision), entropy / self.steps


def pinball(prediction: Tensor, target: Tensor, quantiles: Tensor) -> Tensor:
    difference = target[:, None] - prediction
    return torch.maximum(quantiles * difference, (quantiles - 1) * difference).mean()


class ParcelTable:
    """The depot's table in memory, already label-encoded and scaled."""

    def __init__(self, rows: int, cardinalities: list[int], numbers: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        columns = [np.minimum(self.rng.geometric(min(1.0, 8.0 / c), rows) - 1, c - 1) for c in cardinalities]
        self.categories = np.stack(columns, axis=1).astype(np.int64)
        self.numbers = self.rng.standard_normal((rows, numbers), dtype=np.float32)
        late = 0.8 * self.numbers[:, 0] - 0.5 * self.numbers[:, 3] * (self.categories[:, -1] == 1) + 0.02 * self.categories[:, 8]
        noise = self.rng.gamma(1.5, 0.6, rows)
        self.target = (late + noise).astype(np.float32)

    def batches(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        while True:
            order = self.rng.permutation(len(self.target))
            for start in range(0, len(order) - size + 1, size):
                rows = order[start : start + size]
                yield self.categories[rows], self.numbers[rows], self.target[rows]


class Batches(torch.utils.data.IterableDataset):
    """The table's batches in their order, for one worker."""

    def __init__(self, table: ParcelTable, size: int) -> None:
        self.table, self.size = table, size

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for parts in self.table.batches(self.size):
            yield tuple(torch.from_numpy(part) for part in parts)


def parcel_delays(s: Setup, *, graphed: bool = False, compiled: bool = False, worker: bool = False) -> Step:
    cardinalities = [20, 20, 9, 9, 9, 7, 5, 12, 40, 3] if s.tiny else list(CARDINALITIES)
    numbers = s.size(26, 6)
    batch, virtual = s.size(8192, 64), s.size(1024, 16)
    table = ParcelTable(s.size(1_800_000, 400), cardinalities, numbers, seed=3)
    feed = table.batches(batch)
    if worker:
        feed = iter(torch.utils.data.DataLoader(Batches(table, batch), batch_size=None, num_workers=1, prefetch_factor=4, persistent_workers=True, generator=torch.Generator()))

    width = s.size(48, 8)
    model = TabNet(cardinalities, numbers, n_d=width, n_a=width, steps=s.size(3, 2), virtual=virtual, outputs=len(QUANTILES))
    model = model.to(s.device).train()
    if graphed or compiled:
        for module in model.modules():
            if isinstance(module, GhostBatchNorm):
                module.ceil = math.ceil  # np.ceil breaks the compiler's graph
        model = s.compile(model)
    if graphed:
        # the rate is a tensor, so that the schedule changes what the graph reads
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(5e-3, device=s.device), fused=True, capturable=s.cuda)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2000, gamma=0.9)
    quantiles = torch.tensor(QUANTILES, device=s.device)
    sparsity = 1e-3

    def update(categories: Tensor, numbers_: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for p in model.parameters():
            p.grad = None
        prediction, entropy = model(categories, numbers_)
        loss = pinball(prediction, target, quantiles) - sparsity * entropy
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), entropy.detach(), prediction.detach()

    kept: dict[str, object] = {}

    def replay(*batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same update as one CUDA graph, from copies of the batch that stay where they are."""
        if not kept:
            kept["batch"] = [part.clone() for part in batch]
            before = copy.deepcopy(model.state_dict())

            def whole() -> None:
                kept["results"] = update(*kept["batch"])

            kept["update"] = capture(whole, s)
            if s.cuda:  # undo the steps that warmed up
                model.load_state_dict(before)
                for values in optimizer.state.values():
                    for value in values.values():
                        value.zero_()
        for to, part in zip(kept["batch"], batch, strict=False):
            to.copy_(part)
        kept["update"]()
        return kept["results"]

    def step() -> dict[str, float]:
        categories, numbers_, target = (torch.as_tensor(part).to(s.device) for part in next(feed))
        loss, entropy, prediction = (replay if graphed else update)(categories, numbers_, target)
        schedule.step()
        covered = (target[:, None] <= prediction).float().mean(dim=0)
        return {"loss": loss.item(), "entropy": entropy.item(), "covered": covered.tolist()}

    return step
