"""Programs by an author who has not read the rules: holiday flats, lifts of an office tower, stock rooms, insurance claims.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import math
import random
from itertools import count as counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Prefetcher, Setup, Step, capture, written
from .written_24 import Later

BF16 = torch.bfloat16


# Flats: whether a guest opens an offered flat, by those that were looked at before (deep interest network).


class Dice(nn.Module):
    """Between the value and a share of it, by where it stands in the batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(0)
        var = (x - mean).pow(2).mean(0)
        gate = torch.sigmoid((x - mean) / torch.sqrt(var + 1e-8))
        return gate * x + (1.0 - gate) * self.share * x


class Interest(nn.Module):
    """How much each flat that was looked at says about the offered one."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4 * width, 2 * inner), nn.Linear(2 * inner, inner), nn.Linear(inner, 1)
        self.dice_one, self.dice_two = Dice(2 * inner), Dice(inner)

    def forward(self, offered: Tensor, seen: Tensor, known: Tensor) -> Tensor:
        offered = offered[:, None].expand_as(seen)
        x = torch.cat([offered, seen, offered - seen, offered * seen], -1).flatten(0, 1)
        x = self.three(self.dice_two(self.two(self.dice_one(self.one(x)))))
        weight = x.view(seen.shape[:2]) * known
        return (weight[..., None] * seen).sum(1)


class Flats(nn.Module):
    def __init__(self, flats: int, regions: int, width: int, inner: int) -> None:
        super().__init__()
        self.flat, self.region = nn.Embedding(flats, width, padding_idx=0), nn.Embedding(regions, width, padding_idx=0)
        self.interest = Interest(2 * width, inner)
        self.top = nn.Sequential(
            nn.Linear(6 * width, 5 * inner), Dice(5 * inner), nn.Linear(5 * inner, 2 * inner), Dice(2 * inner), nn.Linear(2 * inner, 1)
        )

    def forward(self, flat: Tensor, region: Tensor) -> Tensor:
        """The last of each guest's flats is the offered one."""
        x = torch.cat([self.flat(flat), self.region(region)], -1)
        offered, seen = x[:, -1], x[:, :-1]
        wish = self.interest(offered, seen, (flat[:, :-1] > 0).float())
        return self.top(torch.cat([offered, wish, offered * wish], -1))[:, 0]


def holiday_flats(
    s: Setup,
    *,
    tf32: bool = False,
    fused: bool = False,
    none: bool = False,
    compiled: bool = False,
    ahead: bool = False,
    read: bool = True,
) -> Step:
    """Training in FP32 on guests who looked at up to 100 flats; gradients are filled with zeros; loss and hits are read."""
    guests, past, flats, regions = s.size(2048, 4), s.size(100, 5), s.size(800_000, 60), s.size(6000, 9)
    rng = np.random.default_rng(28)
    batches = []
    for _ in range(4):
        flat = (flats * rng.random((guests, past + 1)) ** 3).astype(np.int64).clip(1)
        flat[:, :-1][np.arange(past) < rng.integers(0, past, (guests, 1))] = 0
        opened = (rng.random(guests) < 0.3).astype(np.float32)
        batches.append(tuple(torch.from_numpy(part) for part in (flat, flat * 7 % regions, opened)))
    queue = Prefetcher([tuple(s.pin(part) for part in batch) for batch in batches], s) if ahead else None
    with s.device:
        model, noted = Flats(flats, regions, s.size(64, 4), s.size(40, 3)), torch.zeros(2)
    network = s.compile(model, dynamic=False) if compiled else model
    optimizer, turn, log = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused or None), counter(), [0.0, 0.0]

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        flat, region, opened = queue.next() if queue else (part.to(s.device) for part in batches[next(turn) % len(batches)])
        optimizer.zero_grad(set_to_none=none)
        guess = network(flat, region)
        loss = F.binary_cross_entropy_with_logits(guess, opened)
        loss.backward()
        optimizer.step()
        hits = ((guess > 0) == (opened > 0.5)).float().mean()
        if read:
            log[0], log[1] = log[0] + loss.item(), log[1] + hits.item()
        else:
            noted.add_(torch.stack([loss.detach(), hits]))
        return loss.detach()

    return step


# Lifts: which lift of an office tower goes where, learnt from what was tried (implicit quantiles, prioritised replay).


class Tried:
    """What was tried, drawn by how wrong the guess was, with a tree of sums in Python."""

    def __init__(self, room: int, senses: int, actions: int, count: int) -> None:
        self.rng, self.room, self.count = np.random.default_rng(3), room, count
        sensed = self.rng.standard_normal((room + 1, senses), dtype=np.float32)
        action, reward = self.rng.integers(0, actions, room), self.rng.standard_normal(room).astype(np.float32)
        left = np.where(self.rng.random(room) < 0.02, 0.0, 0.99).astype(np.float32)
        sums = np.zeros(2 * room)
        sums[room:] = self.rng.random(room) + 0.1
        for at in range(room - 1, 0, -1):
            sums[at] = sums[2 * at] + sums[2 * at + 1]
        self.fill(sums, sensed, action, reward, left)

    def fill(self, sums: np.ndarray, sensed: np.ndarray, action: np.ndarray, reward: np.ndarray, left: np.ndarray) -> None:
        self.sums = sums.tolist()
        self.rows = list(zip(sensed[:-1], action, reward, sensed[1:], left, strict=True))

    def place(self, mass: float) -> int:
        at = 1
        while at < self.room:
            at *= 2
            if mass >= self.sums[at]:
                mass -= self.sums[at]
                at += 1
        return at

    def drawn(self, masses: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        places = [self.place(mass) for mass in masses.tolist()]
        rows = [self.rows[place - self.room] for place in places]
        return np.array(places), np.array([self.sums[place] for place in places]), [np.stack(part) for part in zip(*rows, strict=True)]

    def draw(self) -> tuple[np.ndarray, list[np.ndarray]]:
        whole = float(self.sums[1])
        masses = (np.arange(self.count) + self.rng.random(self.count)) * (whole / self.count)
        places, chance, parts = self.drawn(masses)
        weight = (self.room * chance / whole) ** -0.4
        return places, [*parts, (weight / weight.max()).astype(np.float32)]

    def note(self, places: np.ndarray, wrong: np.ndarray) -> None:
        for at, value in zip(places.tolist(), ((wrong.astype(np.float64) + 1e-3) ** 0.6).tolist(), strict=True):
            self.sums[at] = value
            while at > 1:
                at //= 2
                self.sums[at] = self.sums[2 * at] + self.sums[2 * at + 1]


class TriedArrays(Tried):
    """The same with numpy: all draws go down the tree together."""

    def fill(self, sums: np.ndarray, *parts: np.ndarray) -> None:
        self.sums, (sensed, *others) = sums, parts
        self.parts = [sensed[:-1], *others[:2], sensed[1:], others[2]]

    def drawn(self, masses: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        places = np.ones(self.count, np.int64)
        for _ in range(self.room.bit_length() - 1):
            places = 2 * places
            right = masses >= self.sums[places]
            masses = masses - np.where(right, self.sums[places], 0.0)
            places = places + right
        return places, self.sums[places], [part[places - self.room] for part in self.parts]

    def note(self, places: np.ndarray, wrong: np.ndarray) -> None:
        self.sums[places] = (wrong.astype(np.float64) + 1e-3) ** 0.6
        for _ in range(self.room.bit_length() - 1):
            places = places // 2
            self.sums[places] = self.sums[2 * places] + self.sums[2 * places + 1]


class NoisyLinear(nn.Module):
    def __init__(self, inner: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(inner**-0.5 * (2.0 * torch.rand(out, inner) - 1.0))
        self.bias = nn.Parameter(torch.zeros(out))
        self.weight_noise = nn.Parameter(torch.full((out, inner), 0.5 * inner**-0.5))
        self.bias_noise = nn.Parameter(torch.full((out,), 0.5 * inner**-0.5))
        self.register_buffer("before", torch.zeros(inner))
        self.register_buffer("after", torch.zeros(out))

    def renew(self) -> None:
        for noise in (self.before, self.after):
            drawn = torch.randn_like(noise)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.weight_noise * torch.outer(self.after, self.before), self.bias + self.bias_noise * self.after)


class Dispatcher(nn.Module):
    """What each action will bring, at the chances asked for."""

    def __init__(self, senses: int, width: int, waves: int, actions: int) -> None:
        super().__init__()
        first, second = nn.Linear(senses, width), nn.Linear(width, width)
        self.body = nn.Sequential(first, nn.LayerNorm(width), nn.ReLU(), second, nn.LayerNorm(width), nn.ReLU())
        self.chance = nn.Linear(waves, width)
        self.value = nn.Sequential(NoisyLinear(width, width), nn.ReLU(), NoisyLinear(width, 1))
        self.gain = nn.Sequential(NoisyLinear(width, width), nn.ReLU(), NoisyLinear(width, actions))
        self.register_buffer("waves", math.pi * torch.arange(1.0, waves + 1.0))

    def renew(self) -> None:
        for layer in (*self.value, *self.gain):
            if isinstance(layer, NoisyLinear):
                layer.renew()

    def forward(self, x: Tensor, chances: Tensor) -> Tensor:
        x = self.body(x)[:, None] * F.relu(self.chance(torch.cos(chances[..., None] * self.waves)))
        gain = self.gain(x)
        return self.value(x) + gain - gain.mean(-1, keepdim=True)


def lift_dispatch(
    s: Setup,
    *,
    arrays: bool = False,
    read: bool = True,
    fused: bool = False,
    together: bool = False,
    pinned: bool = False,
    graphed: bool = False,
) -> Step:
    """Training with TF32 products on 512 kept moves; a second network follows tensor by tensor; errors go back into a tree."""
    count, senses, width, waves, actions = s.size(512, 4), s.size(160, 5), s.size(512, 8), s.size(64, 4), s.size(24, 3)
    many = s.size(64, 4)
    tried = (TriedArrays if arrays else Tried)(s.size(65_536, 32), senses, actions, count)
    with s.device:
        model, target = (Dispatcher(senses, width, waves, actions) for _ in range(2))
        told = torch.zeros(count + 2)
        empty = (torch.zeros(count, senses), torch.zeros(count, dtype=torch.long), torch.zeros(count), torch.zeros(count, senses))
        inputs = (*empty, torch.zeros(count), torch.zeros(count))
    target.load_state_dict(model.state_dict())
    hosts = [[s.pin(torch.zeros_like(part, device="cpu")) for part in inputs] for _ in range(2)]
    leading, following = list(model.parameters()), list(target.parameters())
    way: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    optimizer = torch.optim.Adam(leading, lr=1e-4, eps=1e-3 / count, capturable=graphed and s.cuda, **way)
    later, waiting, turn = None if read else Later((count + 2,), s), [], counter()
    log = [0.0, 0.0]

    def learn(now: Tensor, action: Tensor, reward: Tensor, then: Tensor, left: Tensor, weight: Tensor) -> None:
        model.renew()
        target.renew()
        rows = torch.arange(count, device=s.device)
        with torch.no_grad():
            best = model(then, torch.rand(count, many // 2, device=s.device)).mean(1).argmax(-1)
            goal = target(then, torch.rand(count, many, device=s.device))[rows, :, best]
            goal = reward[:, None] + left[:, None] * goal
        chances = torch.rand(count, many, device=s.device)
        guess = model(now, chances)[rows, :, action]
        off = goal[:, None] - guess[:, :, None]
        huber = torch.where(off.abs() <= 1.0, 0.5 * off.pow(2), off.abs() - 0.5)
        loss = (weight * ((chances[:, :, None] - (off < 0).float()).abs() * huber).mean(2).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(leading, 10.0)
        optimizer.step()
        with torch.no_grad():
            if together:
                torch._foreach_lerp_(following, leading, 0.005)
            else:
                for old, new in zip(following, leading, strict=True):
                    old.copy_(0.995 * old + 0.005 * new)
            told.copy_(torch.cat([off.detach().abs().mean((1, 2)), loss.detach()[None], guess.detach().mean()[None]]))

    torch.set_float32_matmul_precision("high")
    work = capture(lambda: learn(*inputs), s) if graphed else None

    def moved(parts: list[np.ndarray]) -> list[Tensor]:
        if not pinned:
            return [torch.from_numpy(part).to(s.device) for part in parts]
        host = hosts[next(turn) % 2]
        for place, part in zip(host, parts, strict=True):
            place.copy_(torch.from_numpy(part))
        return [place.to(s.device, non_blocking=True) for place in host]

    def step() -> list[float]:
        torch.set_float32_matmul_precision("high")
        places, parts = tried.draw()
        batch = moved(parts)
        if work:
            for place, part in zip(inputs, batch, strict=True):
                place.copy_(part)
            work()
        else:
            learn(*batch)
        if later is None:
            log[:] = told[count].item(), told[count + 1].item()
            tried.note(places, told[:count].cpu().numpy())
            return log
        waiting.append(places)
        *wrong, loss, guess = later.put(told)
        if len(waiting) > 1:
            log[:] = loss, guess
            tried.note(waiting.pop(0), np.array(wrong))
        return log

    return step


# Stock: how much of each article a shop orders each day, learnt through a simulation of eight weeks.


def evened(x: Tensor, gain: Tensor, bias: Tensor, library: bool) -> Tensor:
    if library:
        return F.layer_norm(x, x.shape[-1:], gain, bias, 1e-5)
    mean = x.mean(-1, keepdim=True)
    var = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5) * gain + bias


class Buyer(nn.Module):
    def __init__(self, senses: int, width: int, library: bool) -> None:
        super().__init__()
        self.library = library
        self.one, self.two, self.three = nn.Linear(senses, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.gain_one, self.gain_two = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.bias_one, self.bias_two = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(evened(self.one(x), self.gain_one, self.bias_one, self.library))
        x = F.silu(evened(self.two(x), self.gain_two, self.bias_two, self.library))
        return F.softplus(self.three(x))[:, 0]


class Day(nn.Module):
    """One day of all articles: order, receive, sell, forecast, pay."""

    def __init__(self, senses: int, width: int, library: bool) -> None:
        super().__init__()
        self.buyer = Buyer(senses, width, library)

    def forward(
        self, stock: Tensor, coming: Tensor, usual: Tensor, spread: Tensor, empty: Tensor, price: Tensor, date: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        scale = usual + 1.0
        date = date.expand(len(stock), -1)
        senses = torch.stack([stock / scale, spread / scale, torch.log1p(usual), torch.log(price), empty / 7.0], 1)
        order = self.buyer(torch.cat([senses, coming / scale[:, None], date], 1).float()).float() * scale
        stock = stock + coming[:, 0]
        coming = torch.cat([coming[:, 1:], order[:, None]], 1)
        sold = torch.minimum(stock, wanted)
        lost, stock = wanted - sold, stock - sold
        off = wanted - usual
        usual, spread = usual + 0.1 * off, 0.9 * spread + 0.1 * off.abs()
        empty = torch.where(stock < 0.5, empty + 1.0, torch.zeros_like(empty))
        old = 0.02 * F.relu(stock - 14.0 * scale)
        cost = 0.01 * price * stock + 0.4 * price * lost + 0.3 * (1.0 - torch.exp(-order)) + old * price
        return stock, coming, usual, spread, empty, cost


def rushed(stock: Tensor, empty: Tensor, usual: Tensor, cost: Tensor, price: Tensor, late: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Articles that were out of stock for days come by taxi."""
    more = torch.where(late, usual, torch.zeros_like(usual))
    return stock + more, empty.masked_fill(late, 0.0), cost + 0.6 * price * more


def stock_rooms(
    s: Setup,
    *,
    asked: bool = True,
    ahead: bool = False,
    library: bool = False,
    compiled: bool = False,
    graphed: bool = False,
    autocast: bool = False,
) -> Step:
    """Training with TF32 products through 56 days of 65,536 articles; each day's sales come from numpy, and each day's cost is read."""
    articles, days, lead, width = s.size(65_536, 12), s.size(56, 6), s.size(7, 3), s.size(64, 8)
    rng = np.random.default_rng(14)
    level = rng.gamma(1.5, 4.0, articles)
    waves = [1.0 + 0.4 * np.sin(np.arange(days)[:, None] * 2.0 * np.pi / 7.0 + n) for n in range(3)]
    sales = [rng.poisson(level * wave).astype(np.float32) for wave in waves]
    queue = Prefetcher([(s.pin(torch.from_numpy(sale)),) for sale in sales], s) if ahead else None
    with s.device:
        day = Day(5 + lead + 2, width, library)
        price = 1.0 + torch.rand(articles) * 20.0
        begin, usual = torch.rand(articles) * 30.0, torch.from_numpy(level).float().to(s.device)
        coming, zero, paid, held = torch.rand(articles, lead) * 8.0, torch.zeros(articles), torch.zeros(days), torch.zeros(days, articles)
        angle = torch.arange(days) * (2.0 * math.pi / 7.0)
        dates = torch.stack([angle.sin(), angle.cos()], 1)
    simulate = s.compile(day, dynamic=False) if compiled else day
    optimizer, turn = torch.optim.AdamW(day.parameters(), lr=1e-3, capturable=graphed and s.cuda), counter()
    waits = asked and not graphed

    def lived(sale: np.ndarray | Tensor) -> list[float]:
        optimizer.zero_grad()
        state, costs, read = (begin, coming, usual, usual, zero), [], []
        for n in range(days):
            wanted = sale[n] if isinstance(sale, Tensor) else torch.tensor(sale[n], device=s.device)
            with torch.autocast(s.device.type, BF16, enabled=autocast):
                *now, cost = simulate(*state, price, dates[n : n + 1], wanted)
            stock, on_way, mean, spread, empty = now
            late = empty >= 3.0
            if not waits or late.any():
                stock, empty, cost = rushed(stock, empty, mean, cost, price, late)
            state = (stock, on_way, mean, spread, empty)
            costs.append(cost.mean())
            if waits:
                read.append(costs[-1].item())
        every = torch.stack(costs)
        every.mean().backward()
        nn.utils.clip_grad_norm_(day.parameters(), 1.0)
        optimizer.step()
        paid.copy_(every.detach())
        return read

    torch.set_float32_matmul_precision("high")
    work = capture(lambda: lived(held), s) if graphed else None

    def step() -> list[float]:
        torch.set_float32_matmul_precision("high")
        if queue:
            sale: Any = queue.next()[0]
        else:
            sale = sales[next(turn) % len(sales)]
        if work:
            held.copy_(torch.from_numpy(sale))
            work()
            return paid.tolist()
        return lived(sale) if waits else (lived(sale), paid.tolist())[1]

    return step


# Claims: which claims of an insurance somebody should look at, by differentiable trees (NODE) in a service.


def entmax(x: Tensor) -> Tensor:
    """Entmax with alpha 1.5 over the first axis: a softmax with true zeros."""
    x = (x - x.amax(0, keepdim=True)) / 2.0
    ordered = x.sort(0, descending=True).values
    many = torch.arange(1, len(x) + 1, device=x.device, dtype=x.dtype)[:, None]
    mean, square = ordered.cumsum(0) / many, (ordered**2).cumsum(0) / many
    delta = (1.0 - many * (square - mean**2)) / many
    edge = mean - torch.sqrt(delta.clamp(min=0.0))
    last = (edge <= ordered).sum(0, keepdim=True) - 1
    return (x - edge.gather(0, last)).clamp(min=0.0) ** 2


class Trees(nn.Module):
    """Trees that ask the same question everywhere on a level."""

    def __init__(self, senses: int, trees: int, depth: int, out: int) -> None:
        super().__init__()
        self.trees, self.depth = trees, depth
        self.choice = nn.Parameter(torch.randn(senses, trees * depth))
        self.edge, self.sharp = nn.Parameter(torch.randn(trees, depth)), nn.Parameter(torch.zeros(trees, depth))
        self.answer = nn.Parameter(50.0 * torch.randn(trees, out, 2**depth))
        bits = torch.arange(2**depth)[None] >> torch.arange(depth)[:, None] & 1
        self.register_buffer("bits", torch.stack([bits, 1 - bits], -1).float())
        self.chosen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        chosen = entmax(self.choice) if self.chosen is None else self.chosen
        asked = (x @ chosen).view(-1, self.trees, self.depth)
        asked = (asked - self.edge) * torch.exp(-self.sharp)
        yes = torch.stack([-asked, asked], -1)
        yes = (0.5 * yes + 0.5).clamp(0.0, 1.0)
        here = torch.einsum("btdc,dlc->btdl", yes, self.bits).prod(2)
        return torch.einsum("btl,tol->bto", here, self.answer)


class Grove(nn.Module):
    """Each layer sees the fields and all earlier layers' answers."""

    def __init__(self, numbers: int, words: list[int], width: int, layers: int, trees: int, depth: int, out: int) -> None:
        super().__init__()
        self.words = nn.ModuleList(nn.Embedding(many, width) for many in words)
        senses = numbers + width * len(words)
        self.layers = nn.ModuleList(Trees(senses + n * trees * out, trees, depth, out) for n in range(layers))

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        x = torch.cat([numbers, *(table(words[:, n]) for n, table in enumerate(self.words))], 1)
        answers = []
        for layer in self.layers:
            answers.append(layer(x))
            x = torch.cat([x, answers[-1].flatten(1)], 1)
        return torch.sigmoid(torch.cat(answers, 1).mean(1))


class Claims:
    """Claims as they come, as dictionaries, and what the service makes of them."""

    def __init__(self, plain: int, amounts: int, words: int) -> None:
        rng = random.Random(28)
        names = (("n", plain), ("eur", amounts), ("is", words))
        self.plain, self.amounts, self.words = ([f"{kind}_{n}" for n in range(many)] for kind, many in names)
        self.known = [{f"kind {v}": v + 1 for v in range(rng.randrange(5, 90))} for _ in self.words]
        self.middle, self.wide = [rng.uniform(3.0, 7.0) for _ in self.amounts], [rng.uniform(1.0, 3.0) for _ in self.amounts]

    def came(self, many: int, seed: int) -> list[dict[str, Any]]:
        rng = random.Random(seed)
        return [
            {name: rng.gauss(0.0, 1.0) for name in self.plain}
            | {name: rng.lognormvariate(5.0, 2.0) for name in self.amounts}
            | {name: f" Kind {rng.randrange(90)}" for name in self.words}
            for _ in range(many)
        ]

    def columns(self, claims: list[dict[str, Any]], raw: bool) -> tuple[list[list[float]], list[list[int]]]:
        numbers = [[claim[name] for claim in claims] for name in self.plain]
        for name, middle, wide in zip(self.amounts, self.middle, self.wide, strict=True):
            if raw:
                numbers.append([claim[name] for claim in claims])
            else:
                numbers.append([min(max((math.log1p(max(claim[name], 0.0)) - middle) / wide, -4.0), 4.0) for claim in claims])
        pairs = zip(self.words, self.known, strict=True)
        return numbers, [[known.get(claim[name].strip().lower(), 0) for claim in claims] for name, known in pairs]


def claims_grove(
    s: Setup,
    *,
    on_device: bool = False,
    at_once: bool = False,
    kept: bool = False,
    graphed: bool = False,
    asked: bool = True,
) -> Step:
    """Inference in FP32 with TF32 products on 256 claims; Python makes columns of them, each is copied; entmax runs in each call."""
    many, plain, amounts, words = s.size(256, 5), s.size(40, 3), s.size(16, 2), s.size(14, 2)
    kinds, service = s.size(3, 2), Claims(plain, amounts, words)
    requests, turn = [service.came(many, n) for n in range(4)], counter()
    with s.device:
        sizes = [len(known) + 1 for known in service.known]
        model = Grove(plain + amounts, sizes, s.size(8, 2), s.size(3, 2), s.size(256, 3), s.size(6, 2), kinds).eval()
        middle, wide = torch.tensor(service.middle), torch.tensor(service.wide)
        inputs = torch.zeros(many, plain + amounts), torch.zeros(many, words, dtype=torch.long)
        scores = torch.zeros(many, kinds)
    if kept:
        with torch.no_grad():
            for layer in model.layers:
                layer.chosen = entmax(layer.choice)
    pinned = [s.pin(torch.zeros_like(part, device="cpu")) for part in inputs]

    def scored() -> None:
        scores.copy_(model(*inputs))

    def arrived(columns: list[list[Any]], place: Tensor, host: Tensor) -> None:
        if at_once:
            host.copy_(torch.from_numpy(np.array(columns, np.float32 if host.is_floating_point() else np.int64).T))
            place.copy_(host, non_blocking=True)
        else:
            place.copy_(torch.stack([torch.tensor(column, device=s.device) for column in columns], 1))

    torch.set_float32_matmul_precision("high")
    with torch.no_grad():
        numbers, kind_of = (torch.tensor(columns, device=s.device).T for columns in service.columns(requests[0], False))
        limits = model(numbers, kind_of).quantile(0.97, 0).tolist()
        work = capture(scored, s) if graphed else scored

    @torch.no_grad()
    def step() -> list[tuple[int, int, float]]:
        torch.set_float32_matmul_precision("high")
        for columns, place, host in zip(service.columns(requests[next(turn) % len(requests)], on_device), inputs, pinned, strict=True):
            arrived(columns, place, host)
        if on_device:
            money = inputs[0][:, plain:]
            money.copy_(((torch.log1p(money.clamp(min=0.0)) - middle) / wide).clamp(-4.0, 4.0))
        work()
        if not asked:
            found = scores.tolist()
            return [(kind, n, row[kind]) for kind in range(kinds) for n, row in enumerate(found) if row[kind] > limits[kind]]
        alarms = []
        for kind in range(kinds):
            column = scores[:, kind]
            if (column > limits[kind]).any():
                alarms += [(kind, n, column[n].item()) for n in torch.nonzero(column > limits[kind])[:, 0].tolist()]
        return alarms

    return step


WORKLOADS = (
    written(
        "holiday_flats", "Training of a deep interest network on 2048 guests, 100 flats each, FP32; Dice written out; zeros filled in.",
        "TF32 products; fused Adam; set_to_none; torch.compile; pinned batches ahead; nothing is read", holiday_flats,
        {
            "precision": {"tf32": True}, "optimizer-foreach": {"fused": True}, "grad-zeroing": {"none": True},
            "unfused-elementwise": {"compiled": True}, "memcpy": {"ahead": True}, "sync-stall": {"read": False},
        },
    ),
    written(
        "lift_dispatch", "Training of an implicit quantile network on 512 moves, TF32; a tree of sums in Python; Adam(foreach=False).",
        "tree in numpy; errors read a step later; fused Adam; all tensors follow by one call; pinned copies; CUDA graph", lift_dispatch,
        {
            "host-bound": {"arrays": True}, "sync-stall": {"read": False}, "optimizer-foreach": {"fused": True},
            "other/target": {"together": True}, "memcpy": {"pinned": True}, "graph-candidate": {"graphed": True},
        },
    ),
    written(
        "stock_rooms", "Orders of 65,536 articles learnt through 56 simulated days, TF32; sales come by day; each day is asked and read.",
        "costs read once, taxis by masks; sales pinned ahead; F.layer_norm; torch.compile of a day; CUDA graph; bf16", stock_rooms,
        {
            "sync-stall": {"asked": False}, "memcpy": {"ahead": True}, "unfused-norm": {"library": True},
            "unfused-elementwise": {"compiled": True}, "graph-candidate": {"graphed": True}, "precision/bf16": {"autocast": True},
        },
    ),
    written(
        "claims_grove", "NODE scores 256 claims, TF32: Python makes columns, each copied alone; entmax in each call; alarms are read.",
        "logarithms on the GPU; pinned copies at once; choices made once; CUDA graph of trees; one read", claims_grove,
        {
            "host-bound": {"on_device": True}, "memcpy": {"at_once": True}, "other/choices": {"kept": True},
            "graph-candidate": {"graphed": True}, "sync-stall": {"asked": False},
        },
    ),
)  # fmt: skip
