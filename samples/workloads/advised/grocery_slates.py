"""Serving of recommended shelves in an online grocer's shop: retrieve, rank, diversify.

A batch of requests comes with each customer's recent purchases and context. A user tower with attention over the history makes a query; the
nearest 400 of all products that are in stock in the customer's region are candidates; a deep-and-cross network estimates the probabilities
of a click and of a purchase; and a determinantal point process picks a shelf of 24 that is both relevant and varied (fast greedy MAP
inference, Chen et al., 2018). One step answers one batch of requests and gives lists of product numbers with scores.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..base import Setup, Step

REGIONS, DEVICES, SLOTS = 12, 4, 28


@dataclass
class Requests:
    """What the gateway hands over, on the host."""

    customer: np.ndarray
    history: np.ndarray
    length: np.ndarray
    age_days: np.ndarray
    region: np.ndarray
    device: np.ndarray
    slot: np.ndarray
    dense: np.ndarray


class UserTower(nn.Module):
    def __init__(self, items: nn.Embedding, customers: int, width: int, heads: int) -> None:
        super().__init__()
        self.items = items
        self.customer = nn.Embedding(customers, width)
        self.age = nn.Linear(1, width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.region, self.device, self.slot = nn.Embedding(REGIONS, 16), nn.Embedding(DEVICES, 8), nn.Embedding(SLOTS, 8)
        self.out = nn.Sequential(nn.Linear(2 * width + 32, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, customer: Tensor, history: Tensor, padded: Tensor, age: Tensor, region: Tensor, device: Tensor, slot: Tensor) -> Tensor:
        bought = self.items(history) + self.age(torch.log1p(age).unsqueeze(-1))
        profile = self.customer(customer)
        read, _ = self.attention(profile.unsqueeze(1), bought, bought, key_padding_mask=padded, need_weights=False)
        taste = self.norm(profile + read.squeeze(1))
        return self.out(torch.cat((taste, profile, self.region(region), self.device(device), self.slot(slot)), -1))


class CrossLayer(nn.Module):
    """A layer of DCN-v2 with a matrix of low rank."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        return first * self.up(self.down(x)) + x


class Ranker(nn.Module):
    def __init__(self, width: int, brands: int, aisles: int, dense: int, hidden: tuple[int, ...], rank: int) -> None:
        super().__init__()
        self.brand, self.aisle = nn.Embedding(brands, 32), nn.Embedding(aisles, 16)
        self.bucket = nn.Embedding(16, 8)
        inputs = 3 * width + 32 + 16 + 8 + dense
        self.norm = nn.BatchNorm1d(dense)
        self.cross = nn.ModuleList(CrossLayer(inputs, rank) for _ in range(3))
        layers: list[nn.Module] = []
        for before, after in zip((inputs, *hidden), hidden, strict=False):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
        self.deep = nn.Sequential(*layers)
        self.click, self.purchase = nn.Linear(hidden[-1] + inputs, 1), nn.Linear(hidden[-1] + inputs, 1)

    def forward(self, user: Tensor, item: Tensor, brand: Tensor, aisle: Tensor, bucket: Tensor, dense: Tensor) -> tuple[Tensor, Tensor]:
        features = (user, item, user * item, self.brand(brand), self.aisle(aisle), self.bucket(bucket), self.norm(dense))
        first = torch.cat(features, -1)
        x = first
        for layer in self.cross:
            x = layer(first, x)
        both = torch.cat((x, self.deep(first)), -1)
        return torch.sigmoid(self.click(both).float()).squeeze(-1), torch.sigmoid(self.purchase(both).float()).squeeze(-1)


def varied_shelf(relevance: Tensor, vectors: Tensor, places: int, theta: float, by_number: bool = False) -> Tensor:
    """Greedy MAP inference of a DPP for each request: relevance is [requests, candidates], vectors likewise with unit vectors.

    by_number: what is chosen is crossed out by scatter_, which takes a number and sends nothing to the device.
    """
    requests, candidates = relevance.shape
    alpha = theta / (2 * (1 - theta))
    quality = torch.exp(alpha * relevance)
    kernel = quality.unsqueeze(2) * torch.bmm(vectors, vectors.transpose(1, 2)) * quality.unsqueeze(1)
    gains = torch.diagonal(kernel, dim1=1, dim2=2).clone()
    factors = torch.zeros(requests, places, candidates, device=relevance.device)
    rows = torch.arange(requests, device=relevance.device)
    chosen = []
    for place in range(places):
        best = gains.argmax(1)
        chosen.append(best)
        if place == places - 1:
            break
        already = factors[rows, :place, best]
        projected = torch.einsum("rp,rpc->rc", already, factors[:, :place])
        update = (kernel[rows, best] - projected) / gains[rows, best].clamp(min=1e-10).sqrt().unsqueeze(1)
        factors[:, place] = update
        gains = gains - update.square()
        if by_number:
            gains.scatter_(1, best.unsqueeze(1), -float("inf"))
        else:
            gains[rows, best] = -float("inf")
    return torch.stack(chosen, 1)


def varied_shelf_in_one_graph(relevance: Tensor, vectors: Tensor, places: int, theta: float) -> Tensor:
    """The same as varied_shelf, for torch.compile: nothing of size zero in the first pass, no value that comes from the host."""
    requests, candidates = relevance.shape
    alpha = theta / (2 * (1 - theta))
    quality = torch.exp(alpha * relevance)
    kernel = quality.unsqueeze(2) * torch.bmm(vectors, vectors.transpose(1, 2)) * quality.unsqueeze(1)
    gains = torch.diagonal(kernel, dim1=1, dim2=2).clone()
    factors = torch.zeros(requests, places, candidates, device=relevance.device)
    rows = torch.arange(requests, device=relevance.device)
    chosen = []
    for place in range(places):
        best = gains.argmax(1)
        chosen.append(best)
        if place == places - 1:
            break
        update = kernel[rows, best]
        if place > 0:
            update = update - torch.einsum("rp,rpc->rc", factors[rows, :place, best], factors[:, :place])
        update = update / gains[rows, best].clamp(min=1e-10).sqrt().unsqueeze(1)
        factors[:, place] = update
        gains = (gains - update.square()).scatter(1, best.unsqueeze(1), -float("inf"))
    return torch.stack(chosen, 1)


def grocery_slates(
    s: Setup,
    *,
    host_aside: bool = False,
    graphed: bool = False,
    fused: bool = False,
    few_copies: bool = False,
    half: bool = False,
    run_ahead: bool = False,
    grouped: bool = False,
) -> Step:
    """host_aside: requests are put together on a thread, rounding is done on the device. graphed: all on the device is one CUDA graph.
    fused: it is compiled. few_copies: one pinned copy carries a batch, nothing is sent in the loop. half: the ranker is in half precision.
    run_ahead: nothing waits for the device but the reading of the answers, while the next batch is under way.
    grouped: a step answers eight batches together.
    """
    torch.manual_seed(5)
    rng = np.random.default_rng(5)
    products, customers, width = s.size(150_000, 500), s.size(1_000_000, 300), s.size(128, 16)
    brands, aisles = s.size(8_000, 40), s.size(180, 10)
    requests, longest = s.size(96, 4), s.size(100, 12)
    candidates, places = s.size(400, 30), s.size(24, 6)
    item_dense, user_dense = 10, 6

    items = nn.Embedding(products, width)
    tower = UserTower(items, customers, width, s.size(4, 2)).to(s.device).eval()
    ranker = Ranker(width, brands, aisles, item_dense + user_dense, (1024, 512, 256) if not s.tiny else (32, 16), s.size(128, 8)).to(s.device).eval()

    brand = torch.from_numpy(rng.integers(0, brands, products)).to(s.device)
    aisle = torch.from_numpy(rng.integers(0, aisles, products)).to(s.device)
    price = torch.from_numpy(rng.lognormal(1.0, 0.7, products).astype(np.float32)).to(s.device)
    statistics = torch.from_numpy(rng.normal(size=(products, item_dense)).astype(np.float32)).to(s.device)
    in_stock = torch.from_numpy(rng.random((REGIONS, products)) < 0.85).to(s.device)
    bucket_edges = torch.linspace(0.5, 12.0, 15, device=s.device)
    with torch.no_grad():
        index = F.normalize(items.weight, dim=-1).half() if s.cuda else F.normalize(items.weight, dim=-1)
        unit = F.normalize(items.weight, dim=-1)
    low = torch.float16 if s.cuda else torch.bfloat16
    if half:
        ranker = ranker.to(low)
        item_low, statistics = items.weight.detach().to(low), statistics.to(low)
    together = 8 if grouped else 1
    served = requests * together

    def arriving() -> Requests:
        length = np.clip(rng.geometric(1 / (longest * 0.4), requests), 1, longest)
        history = np.minimum(rng.zipf(1.3, (requests, longest)) - 1, products - 1)
        return Requests(
            customer=rng.integers(0, customers, requests),
            history=history.astype(np.int64),
            length=length,
            age_days=rng.exponential(20.0, (requests, longest)).astype(np.float32),
            region=rng.integers(0, REGIONS, requests),
            device=rng.integers(0, DEVICES, requests),
            slot=rng.integers(0, SLOTS, requests),
            dense=rng.normal(size=(requests, user_dense)).astype(np.float32),
        )

    def gathered() -> Requests:
        if not grouped:
            return arriving()
        batches = [arriving() for _ in range(together)]
        return Requests(*(np.concatenate([getattr(batch, field.name) for batch in batches]) for field in fields(Requests)))

    def on_device(array: np.ndarray) -> Tensor:
        if run_ahead:
            return s.pin(torch.from_numpy(array)).to(s.device, non_blocking=True)  # the pinned block is not reused before its copy is done
        return torch.from_numpy(array).to(s.device)

    def as_it_came(batch: Requests) -> tuple[np.ndarray, ...]:
        return tuple(getattr(batch, field.name) for field in fields(Requests))

    def all_on_device(batch: Requests) -> tuple[Tensor, ...]:
        return tuple(on_device(array) for array in as_it_came(batch))

    if few_copies:
        # one pinned buffer for all fields, those of 8 bytes first; the step's end waits for the device, so it is free again by then
        shapes = {
            "customer": (served,), "history": (served, longest), "length": (served,), "region": (served,),
            "device": (served,), "slot": (served,), "age_days": (served, longest), "dense": (served, user_dense),
        }  # fmt: skip
        kinds = {name: (np.float32, torch.float32) if name in ("age_days", "dense") else (np.int64, torch.int64) for name in shapes}
        spans, end = {}, 0
        for name, shape in shapes.items():
            start, end = end, end + int(np.prod(shape)) * np.dtype(kinds[name][0]).itemsize
            spans[name] = slice(start, end)
        buffer = s.pin(torch.empty(end, dtype=torch.uint8))
        fields_of_buffer = {name: buffer.numpy()[spans[name]].view(kinds[name][0]).reshape(shapes[name]) for name in shapes}

    def all_in_one_copy(batch: Requests) -> tuple[Tensor, ...]:
        for name, place in fields_of_buffer.items():
            place[...] = getattr(batch, name)
        sent = buffer.to(s.device, non_blocking=True)
        return tuple(
            sent[spans[field.name]].view(kinds[field.name][1]).view(shapes[field.name]) for field in fields(Requests)
        )

    if few_copies:
        send = all_in_one_copy
    elif graphed or fused or run_ahead:
        send = all_on_device
    else:
        send = as_it_came  # each field is moved where it is used
    moved: Callable[[Any], Tensor] = on_device if send is as_it_came else lambda tensor: tensor

    def shelves(
        customer: Any, history: Any, length: Any, age: Any, region: Any, device: Any, slot: Any, user_side: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The candidates of each request, their values, and which of them were picked."""
        history, length = moved(history), moved(length)
        padded = torch.arange(longest, device=s.device).unsqueeze(0) >= length.unsqueeze(1)
        region = moved(region)
        query = tower(moved(customer), history, padded, moved(age), region, moved(device), moved(slot))

        scores = F.normalize(query, dim=-1).to(index.dtype) @ index.T
        scores = scores.masked_fill(~in_stock[region], float("-inf"))
        found = scores.topk(candidates, dim=1).indices

        flat = found.flatten()
        if half:
            user = query.to(low).repeat_interleave(candidates, 0)
            dense = torch.cat((statistics[flat], moved(user_side).to(low).repeat_interleave(candidates, 0)), 1)
            bucket = torch.bucketize(price[flat], bucket_edges)
            click, purchase = ranker(user, F.embedding(flat, item_low), brand[flat], aisle[flat], bucket, dense)
        else:
            user = query.repeat_interleave(candidates, 0)
            dense = torch.cat((statistics[flat], moved(user_side).repeat_interleave(candidates, 0)), 1)
            bucket = torch.bucketize(price[flat], bucket_edges)
            with torch.autocast(s.device.type, low):
                click, purchase = ranker(user, items(flat), brand[flat], aisle[flat], bucket, dense)
        value = click * 0.2 + purchase * (1.0 + 0.1 * torch.log(price[flat]))
        value = value.view(served, candidates)
        relevance = (value - value.mean(1, keepdim=True)) / value.std(1, keepdim=True).clamp(min=1e-6)

        if graphed or fused:
            picked = varied_shelf_in_one_graph(relevance, unit[found], places, theta=0.7)
        else:
            picked = varied_shelf(relevance, unit[found], places, theta=0.7, by_number=few_copies or run_ahead)
        return found, value, picked

    def answer(*batch: Any) -> tuple[Tensor, Tensor]:
        """The numbers of the products of each shelf, and their values, on the device."""
        found, value, picked = shelves(*batch)
        return found.gather(1, picked), value.gather(1, picked)

    if graphed:
        for table in (index, in_stock, statistics, brand, aisle, price, unit, bucket_edges):
            torch._dynamo.mark_static_address(table)  # they stay where they are: the graph need not copy them
        answer = s.compile(answer, mode="reduce-overhead")
    elif fused:
        answer = s.compile(answer)

    def as_answers(numbers: np.ndarray, values: np.ndarray) -> list[list[dict[str, float]]]:
        return [
            [{"product": int(number), "score": round(float(score), 4)} for number, score in zip(row, row_values, strict=False)]
            for row, row_values in zip(numbers, values, strict=False)
        ]

    @torch.inference_mode()
    def step() -> list[list[dict[str, float]]]:
        if graphed or fused:
            numbers, values = answer(*send(gathered()))
            return as_answers(numbers.cpu().numpy(), values.cpu().numpy())
        found, value, picked = shelves(*send(gathered()))
        return as_answers(found.gather(1, picked).cpu().numpy(), value.gather(1, picked).cpu().numpy())

    if host_aside:
        thread = ThreadPoolExecutor(1)
        ahead = thread.submit(gathered)

        @torch.inference_mode()
        def step_with_thread() -> list[list[dict[str, float]]]:
            nonlocal ahead
            batch, ahead = ahead.result(), thread.submit(gathered)
            numbers, values = answer(*send(batch))
            rounded = values.double().round(decimals=4)
            return [
                [{"product": number, "score": score} for number, score in zip(row, row_values, strict=False)]
                for row, row_values in zip(numbers.tolist(), rounded.tolist(), strict=False)
            ]

        return step_with_thread

    if run_ahead:
        buffers = [
            (s.pin(torch.empty(served, places, dtype=torch.int64)), s.pin(torch.empty(served, places)), torch.cuda.Event() if s.cuda else None)
            for _ in range(2)
        ]
        turn = 0

        def launch() -> tuple[Tensor, Tensor, torch.cuda.Event | None]:
            nonlocal turn
            numbers, values = answer(*send(gathered()))
            host_numbers, host_values, done = buffers[turn % 2]
            turn += 1
            host_numbers.copy_(numbers, non_blocking=True)
            host_values.copy_(values, non_blocking=True)
            if done is not None:
                done.record()
            return host_numbers, host_values, done

        under_way = None

        @torch.inference_mode()
        def step_ahead() -> list[list[dict[str, float]]]:
            nonlocal under_way
            host_numbers, host_values, done = under_way or launch()
            under_way = launch()
            if done is not None:
                done.synchronize()
            return as_answers(host_numbers.numpy(), host_values.numpy())

        return step_ahead

    return step
