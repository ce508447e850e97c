"""Programs by an author who has not read the rules, the eleventh set: proteins, gliders, cards, furrows, facts, money, subtitles, satellites.

Each fix is what its rule's advice says, alone.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Setup, Step, capture, written

BF16 = torch.bfloat16


# Evolution: which places of a protein touch, by which letters of its family change together (pseudo-likelihood of a Potts model).


class Couplings(nn.Module):
    """One field for each letter at each place, one coupling for each two of them at different places."""

    elsewhere: Tensor

    def __init__(self, columns: int, letters: int, more: int) -> None:
        super().__init__()
        size = columns * letters
        self.columns, self.letters, self.more = columns, letters, more
        self.fields = nn.Parameter(torch.zeros(size + more))
        self.couplings = nn.Parameter(torch.zeros(size + more, size + more))
        place = torch.arange(size + more) // letters
        self.register_buffer("elsewhere", (place[:, None] != place).float())

    def symmetric(self) -> Tensor:
        return 0.5 * (self.couplings + self.couplings.T) * self.elsewhere

    def forward(self, family: Tensor, couplings: Tensor) -> Tensor:
        seen = F.one_hot(family, self.letters).float().flatten(1)
        if self.more:
            seen = F.pad(seen, (0, self.more))
        energy = torch.addmm(self.fields, seen, couplings)
        return energy[:, : self.columns * self.letters].reshape(len(family), self.columns, self.letters)


def protein_contacts(s: Setup, *, tf32: bool = False, more: int = 0, library: bool = False) -> Step:
    """Relatives that are much alike count less."""
    columns, letters, count, batch = s.size(253, 5), s.size(21, 5), s.size(12_000, 20), s.size(4096, 6)
    model = Couplings(columns, letters, more).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    family = torch.randint(letters, (count, columns), device=s.device)
    counts = torch.rand(count, device=s.device)

    def step() -> Tensor:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        these = torch.randint(count, (batch,), device=s.device)
        letter, weight = family[these], counts[these]
        optimizer.zero_grad()
        couplings = model.symmetric()
        energy = model(letter, couplings)
        if library:
            wrong = F.cross_entropy(energy.flatten(0, 1), letter.flatten(), reduction="none").view_as(letter)
        else:
            energy = energy - energy.amax(-1, keepdim=True).detach()
            wrong = torch.log(torch.exp(energy).sum(-1)) - energy.gather(-1, letter[..., None])[..., 0]
        loss = (wrong.sum(1) * weight).sum() / weight.sum() + 0.01 * couplings.square().sum() + 0.01 * model.fields.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


# Oceans: where gliders are that cannot hear a satellite, by how deep the sea is under them (a particle filter over a chart).


def _advance(state: Tensor, doubt: Tensor, noise: Tensor, headings: Tensor, chart: Tensor, heard: Tensor) -> tuple[Tensor, Tensor]:
    """Each guess drifts with its own current; then the depth under it is compared to what the echo said."""
    place, current = state[..., :2], state[..., 2:]
    current = 0.995 * current + 2e-4 * noise[..., 2:]
    place = place + 1e-3 * headings[:, None] + 1e-2 * current + 5e-4 * noise[..., :2]
    place = torch.remainder(place + 1.0, 2.0) - 1.0
    depth = F.grid_sample(chart.expand(len(place), 1, -1, -1), place[:, None], align_corners=True)[:, 0, 0]
    off = (depth - heard[:, None]) / (0.02 + 0.01 * depth.abs())
    return torch.cat([place, current], -1), doubt - 2.5 * torch.log1p(off * off / 4.0)


def _shares(doubt: Tensor, pieces: int) -> Tensor:
    """Softmax over all guesses of a glider; by pieces, each of which has then its share of the whole."""
    if pieces == 1:
        return torch.softmax(doubt, 1)
    parts = doubt.view(len(doubt), pieces, -1)
    return (torch.softmax(parts, -1) * torch.softmax(torch.logsumexp(parts, -1), -1)[..., None]).flatten(1)


def _added_up(share: Tensor, pieces: int) -> Tensor:
    if pieces == 1:
        return torch.cumsum(share, 1)
    parts = torch.cumsum(share.view(len(share), pieces, -1), -1)
    before = F.pad(torch.cumsum(parts[..., -1], -1)[..., :-1], (1, 0))
    return (parts + before[..., None]).flatten(1)


def glider_terrain(s: Setup, *, pieces: int = 1, compiled: bool = False, asked: bool = True) -> Step:
    """Guesses are drawn anew once few of them have all the weight."""
    gliders, count, moments, side = s.size(4, 2), s.size(1 << 20, 64), s.size(6, 2), s.size(2048, 16)
    pieces = min(pieces, s.size(pieces, 8))
    chart = F.interpolate(torch.randn(1, 1, s.size(64, 4), s.size(64, 4), device=s.device), size=(side, side), mode="bicubic")
    angle = torch.rand(gliders, device=s.device) * 2.0 * math.pi
    headings = torch.stack([angle.cos(), angle.sin()], 1)
    echoes = torch.randn(moments, gliders, device=s.device)
    begin = torch.cat([0.5 * torch.randn(gliders, count, 2, device=s.device), 0.01 * torch.randn(gliders, count, 2, device=s.device)], -1)
    even = torch.arange(count, device=s.device)
    advance = s.compile(_advance) if compiled else _advance

    def drawn(state: Tensor, share: Tensor) -> Tensor:
        ends = _added_up(share, pieces)
        points = (even + torch.rand(gliders, 1, device=s.device)) / count
        which = torch.searchsorted(ends, points).clamp(max=count - 1)
        return torch.gather(state, 1, which[..., None].expand(-1, -1, 4))

    @torch.no_grad()
    def step() -> Tensor:
        state, doubt, track = begin, torch.zeros(gliders, count, device=s.device), []
        for heard in echoes:
            state, doubt = advance(state, doubt, torch.randn_like(state), headings, chart, heard)
            share = _shares(doubt, pieces)
            track.append((share[..., None] * state).sum(1))
            poor = share.square().sum(1) > 2.0 / count
            if not asked or poor.any().item():
                state = torch.where(poor[:, None, None], drawn(state, share), state)
                doubt = torch.where(poor[:, None], torch.zeros_like(doubt), doubt)
        return torch.stack(track).cpu()

    return step


# Cards: how to bet after the last card is on the table (counterfactual regrets of all hands at once).


@dataclass
class Spot:
    """Somebody is to act, or (`player` is None) all is over: `folded` has given up, or hands are shown."""

    player: int | None
    put: tuple[float, float]
    folded: int | None = None
    after: list[Spot] = field(default_factory=list)
    regrets: Tensor = field(default_factory=lambda: torch.zeros(0))
    average: Tensor = field(default_factory=lambda: torch.zeros(0))


def _betting(player: int, put: tuple[float, float], raises: int, sizes: tuple[float, ...], opened: bool, *, stack: float = 1200.0) -> Spot:
    spot, other = Spot(player, put), 1 - player
    owed = put[other] - put[player]
    if owed:
        spot.after += [Spot(None, put, folded=player), Spot(None, (put[other], put[other]))]
    else:
        spot.after.append(Spot(None, put) if opened else _betting(other, put, raises, sizes, True))
    if raises and put[other] < stack:
        for most in sorted({min(stack, put[other] + size * 2.0 * put[other]) for size in sizes}):
            new = (most, put[1]) if player == 0 else (put[0], most)
            spot.after.append(_betting(other, new, raises - 1, sizes, True))
    return spot


def _matching(regrets: Tensor) -> Tensor:
    """What was not done often enough is done more; hands without regrets do anything."""
    total = regrets.sum(0)
    return torch.where(total > 0, regrets / total.clamp(min=1e-12), 1.0 / len(regrets))


def _learnt(regrets: Tensor, average: Tensor, plan: Tensor, values: Tensor, reach: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value = (plan * values).sum(0)
    return value, (regrets + values - value).clamp(min=0.0), average + turn * reach * plan


class River:
    """Both players' hands, and which of them cannot be held at once."""

    def __init__(self, cards: int, sizes: tuple[float, ...], raises: int, device: torch.device, compiler: Callable[..., Any] | None) -> None:
        hands = torch.tensor(list(itertools.combinations(range(cards), 2)), device=device)
        self.hands = len(hands)
        shared = (hands[:, None, :, None] == hands[None, :, None, :]).any(-1).any(-1)
        strength = torch.randint(self.hands // 3, (self.hands,), device=device)
        self.possible = (~shared).float()
        self.beats = torch.sign(strength[:, None] - strength).float() * self.possible
        self.matching = compiler(_matching) if compiler else _matching
        self.learnt = compiler(_learnt) if compiler else _learnt
        self.turn, self.worth = torch.ones((), device=device), torch.zeros((), device=device)
        self.even = torch.full((self.hands,), 1.0 / self.hands, device=device)
        self.root = _betting(0, (50.0, 50.0), raises, sizes, False)
        self._give(self.root, device)

    def _give(self, spot: Spot, device: torch.device) -> None:
        if spot.after:
            spot.regrets, spot.average = torch.zeros(2, len(spot.after), self.hands, device=device).unbind()
        for child in spot.after:
            self._give(child, device)

    def worth_of(self, spot: Spot, me: int, mine: Tensor, theirs: Tensor) -> Tensor:
        """What each of my hands wins from here, while what I should rather have done is written down."""
        if spot.folded is not None:
            return (spot.put[spot.folded] if spot.folded != me else -spot.put[me]) * (self.possible @ theirs)
        if spot.player is None:
            return spot.put[me] * (self.beats @ theirs)
        plan = self.matching(spot.regrets)
        if spot.player != me:
            worth = [self.worth_of(child, me, mine, theirs * part) for child, part in zip(spot.after, plan, strict=True)]
            return torch.stack(worth).sum(0)
        values = torch.stack([self.worth_of(child, me, mine * part, theirs) for child, part in zip(spot.after, plan, strict=True)])
        value, regrets, average = self.learnt(spot.regrets, spot.average, plan, values, mine, self.turn)
        spot.regrets.copy_(regrets)
        spot.average.copy_(average)
        return value

    @torch.no_grad()
    def iterate(self) -> None:
        for me in (0, 1):
            value = self.worth_of(self.root, me, self.even, self.even)
            if me == 0:
                self.worth.copy_(value @ self.even)
        self.turn.add_(1.0)


def river_regrets(s: Setup, *, graphed: bool = False, compiled: bool = False, log: bool = True) -> Step:
    """One iteration of CFR+; what the game is worth to whoever acts first is logged."""
    game = River(s.size(47, 6), (0.5, 1.0, 2.0)[: s.size(3, 1)], s.size(3, 2), s.device, s.compile if compiled else None)
    iterate: Step = capture(game.iterate, s) if graphed else game.iterate
    worths: list[float] = []

    def step() -> Tensor:
        torch.set_float32_matmul_precision("highest")
        iterate()
        if log:
            worths.append(game.worth.item())
        return game.worth

    return step


# Fields: how far each plant is from a tractor's two cameras, better and better by a recurrent network.


class Bend(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1), nn.InstanceNorm2d(outer), nn.ReLU(inplace=True))
        self.two = nn.Sequential(nn.Conv2d(outer, outer, 3, 1, 1), nn.InstanceNorm2d(outer), nn.ReLU(inplace=True))
        self.past = nn.Conv2d(inner, outer, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.past(x) + self.two(self.one(x)))


def _looker(width: int, outer: int) -> nn.Sequential:
    start = [nn.Conv2d(3, width, 7, 2, 3), nn.InstanceNorm2d(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*start, Bend(width, width, 1), Bend(width, 2 * width, 2), Bend(2 * width, 2 * width, 2), nn.Conv2d(2 * width, outer, 1))


class Better(nn.Module):
    """One round: what the two pictures have in common around where they are thought to match, and a gated unit that remembers."""

    def __init__(self, width: int, levels: int, radius: int) -> None:
        super().__init__()
        self.levels, self.radius = levels, radius
        self.alike = nn.Sequential(nn.Conv2d(levels * (2 * radius + 1), width, 1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.moved = nn.Sequential(nn.Conv2d(1, width // 2, 7, padding=3), nn.ReLU(), nn.Conv2d(width // 2, width // 2, 3, padding=1), nn.ReLU())
        self.joined = nn.Conv2d(width + width // 2, width - 1, 3, padding=1)
        self.update, self.reset, self.new = (nn.Conv2d(3 * width, width, 3, padding=1) for _ in range(3))
        self.head = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.Conv2d(2 * width, 1, 3, padding=1))

    def look(self, pyramid: tuple[Tensor, ...], apart: Tensor) -> Tensor:
        count, _, height, breadth = apart.shape
        at = (torch.arange(breadth, device=apart.device) - apart).view(-1, 1, 1, 1)
        around = torch.arange(-self.radius, self.radius + 1, device=apart.device).view(1, 1, -1, 1)
        found = []
        for level, row in enumerate(pyramid):
            x = 2.0 * (at / 2**level + around) / (row.shape[-1] - 1) - 1.0
            place = torch.cat([x, torch.zeros_like(x)], -1)
            found.append(F.grid_sample(row, place, align_corners=True).view(count, height, breadth, -1))
        return torch.cat(found, -1).permute(0, 3, 1, 2).contiguous()

    def forward(self, h: Tensor, given: Tensor, apart: Tensor, pyramid: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        seen = torch.relu(self.joined(torch.cat([self.alike(self.look(pyramid, apart)), self.moved(apart)], 1)))
        x = torch.cat([given, seen, apart], 1)
        both = torch.cat([h, x], 1)
        z, r = torch.sigmoid(self.update(both)), torch.sigmoid(self.reset(both))
        h = (1.0 - z) * h + z * torch.tanh(self.new(torch.cat([r * h, x], 1)))
        return h, apart + self.head(h)


class Furrows(nn.Module):
    def __init__(self, width: int, levels: int, radius: int, rounds: int) -> None:
        super().__init__()
        self.width, self.levels, self.rounds = width, levels, rounds
        self.eyes, self.context = _looker(width // 2, 2 * width), _looker(width // 2, 2 * width)
        self.better = Better(width, levels, radius)
        self.round: Callable[..., tuple[Tensor, Tensor]] = self.better
        self.replayed = False

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        one, two = self.eyes(torch.cat([left, right])).float().chunk(2)
        alike = torch.einsum("nchx,nchy->nhxy", one, two) / math.sqrt(one.shape[1])
        row = alike.reshape(-1, 1, 1, alike.shape[-1])
        pyramid = [row]
        for _ in range(self.levels - 1):
            pyramid.append(F.avg_pool2d(pyramid[-1], (1, 2), (1, 2)))
        h, given = self.context(left).split(self.width, 1)
        h, given = torch.tanh(h), torch.relu(given)
        apart = torch.zeros_like(one[:, :1])
        for _ in range(self.rounds):
            h, apart = self.round(h, given, apart, tuple(pyramid))
            if self.replayed:
                h, apart = h.clone(), apart.clone()  # the next replay writes where they lie
        return 8.0 * F.interpolate(apart, scale_factor=8.0, mode="bilinear")


def furrow_depth(s: Setup, *, compiled: bool = False, empties: bool = True, autocast: bool = False, last: bool = False) -> Step:
    """One pair of pictures a step; cameras differ from tractor to tractor, so memory is given back after each pair."""
    height, breadth = s.size(384, 64), s.size(640, 96)
    model = Furrows(s.size(128, 8), s.size(4, 2), s.size(4, 1), s.size(16, 2)).to(s.device).eval()
    layout = torch.channels_last if last else torch.contiguous_format
    if last:
        model = model.to(memory_format=layout)  # type: ignore[call-overload]
    if compiled:
        model.round, model.replayed = s.compile(model.better, mode="reduce-overhead"), True
    pairs = [torch.randint(256, (2, 3, height, breadth), dtype=torch.uint8) for _ in range(4)]
    turn = [0]

    @torch.no_grad()
    def step() -> Tensor:
        torch.set_float32_matmul_precision("high")
        turn[0] += 1
        pair = (pairs[turn[0] % 4].to(s.device).float() / 127.5 - 1.0).contiguous(memory_format=layout)
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            apart = model(pair[:1], pair[1:])
        depth = (120.0 / apart.float().abs().clamp(min=0.5)).cpu()
        if empties and s.cuda:
            torch.cuda.empty_cache()
        return depth

    return step


# Facts: who is whose aunt and what is where, as rotations in a complex space.


def _distance(head: Tensor, turn: Tensor, tail: Tensor) -> Tensor:
    """How far a thing, turned by a relation, is from another: RotatE."""
    head_re, head_im = head.chunk(2, -1)
    tail_re, tail_im = tail.chunk(2, -1)
    turn_re, turn_im = torch.cos(turn), torch.sin(turn)
    re = head_re * turn_re - head_im * turn_im - tail_re
    im = head_re * turn_im + head_im * turn_re - tail_im
    return torch.stack([re, im]).norm(dim=0).sum(-1)


class Facts(nn.Module):
    def __init__(self, things: int, relations: int, width: int, margin: float, distance: Callable[..., Tensor]) -> None:
        super().__init__()
        self.margin, self.distance = margin, distance
        self.reach = (margin + 2.0) / width
        self.things = nn.Parameter(torch.empty(things, 2 * width).uniform_(-self.reach, self.reach))
        self.relations = nn.Parameter(torch.empty(relations, width).uniform_(-self.reach, self.reach))

    def forward(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        head, tail = (F.embedding(part, self.things) for part in (head, tail))
        turn = F.embedding(relation, self.relations) * (math.pi / self.reach)
        return self.margin - self.distance(head, turn, tail)


def fact_rotations(s: Setup, *, compiled: bool = False, fused: bool = False, autocast: bool = False) -> Step:
    """Wrong tails weigh the more the likelier they seem."""
    things, relations, width = s.size(40_943, 30), s.size(237, 4), s.size(500, 6)
    batch, wrong = s.size(512, 3), s.size(256, 4)
    model = Facts(things, relations, width, 9.0, s.compile(_distance) if compiled else _distance).to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-5, fused=True if fused else None)
    known = torch.stack([torch.randint(most, (s.size(86_835, 20),), device=s.device) for most in (things, relations, things)], 1)

    def step() -> Tensor:
        head, relation, tail = known[torch.randint(len(known), (batch,), device=s.device)].T[..., None]
        others = torch.randint(things, (batch, wrong), device=s.device)
        optimizer.zero_grad()
        with torch.autocast(s.device.type, BF16, enabled=autocast):
            right, false = model(head, relation, tail), model(head, relation, others)
        weight = torch.softmax(false, 1).detach()
        loss = -0.5 * (F.logsigmoid(right).mean() + (weight * F.logsigmoid(-false)).sum(1).mean())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


# Banks: which accounts pass on money that others stole, by whom they pay (GraphSAGE, with neighbours drawn for each batch).


class Payments:
    """Whom each account paid: a list for each, and the same end to end."""

    def __init__(self, accounts: int, features: int) -> None:
        draw = np.random.default_rng(0)
        self.degree = 1 + draw.geometric(0.07, accounts)
        self.starts = np.cumsum(self.degree) - self.degree
        self.paid = draw.integers(0, accounts, int(self.degree.sum()))
        self.lists = [part.tolist() for part in np.split(self.paid, self.starts[1:])]
        self.about = draw.standard_normal((accounts, features), dtype=np.float32)
        self.stolen = (draw.random(accounts) < 0.05).astype(np.float32)
        self.draw, self.random = draw, random.Random(0)

    def drawn(self, accounts: np.ndarray, count: int) -> np.ndarray:
        return np.array([self.random.choices(self.lists[account], k=count) for account in accounts.tolist()]).ravel()

    def drawn_together(self, accounts: np.ndarray, count: int) -> np.ndarray:
        which = (self.draw.random((len(accounts), count)) * self.degree[accounts][:, None]).astype(np.int64)
        return self.paid[self.starts[accounts][:, None] + which].ravel()


class Hops(nn.Module):
    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.near = nn.ModuleList([nn.Linear(features, width), nn.Linear(width, width)])
        self.far = nn.ModuleList([nn.Linear(features, width), nn.Linear(width, width)])
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.head = nn.Linear(width, 1)

    def forward(self, hops: list[Tensor]) -> Tensor:
        for near, far, norm in zip(self.near, self.far, self.norms, strict=True):
            means = [more.view(len(few), -1, more.shape[-1]).mean(1) for few, more in itertools.pairwise(hops)]
            hops = [F.relu(norm(near(few) + far(mean))) for few, mean in zip(hops[:-1], means, strict=True)]
        return self.head(hops[0])[:, 0]


def money_mules(s: Setup, *, together: bool = False, kept: bool = False, read: bool = True) -> Step:
    """The loss of each batch goes into a running mean that is shown beside the bar of progress."""
    accounts, features, batch, count = s.size(200_000, 50), s.size(64, 5), s.size(512, 4), s.size(10, 3)
    graph = Payments(accounts, features)
    model = Hops(features, s.size(128, 8)).to(s.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    table = torch.from_numpy(graph.about).to(s.device) if kept else None
    heavy, shown = torch.tensor(19.0, device=s.device), [0.0]

    def about(numbers: np.ndarray) -> Tensor:
        if table is not None:
            return table[torch.from_numpy(numbers).to(s.device)]
        return torch.from_numpy(graph.about[numbers]).to(s.device)

    def step() -> Tensor:
        numbers = [graph.draw.integers(0, accounts, batch)]
        for _ in range(2):
            numbers.append((graph.drawn_together if together else graph.drawn)(numbers[-1], count))
        labels = torch.from_numpy(graph.stolen[numbers[0]]).to(s.device)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model([about(each) for each in numbers]), labels, pos_weight=heavy)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if read:
            shown[0] = 0.98 * shown[0] + 0.02 * loss.item()
        return loss.detach()

    return step


# Television: subtitles while people talk, two thirds of a second at a time.


class Hearing(nn.Module):
    """A layer of a Conformer that remembers the keys, values and sounds of the pieces before."""

    def __init__(self, width: int, heads: int, now: int, past: int, taps: int, library: bool) -> None:
        super().__init__()
        self.heads, self.now, self.past, self.taps, self.library = heads, now, past, taps, library
        self.feed = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(2))
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, now, past + now))
        self.before, self.wide = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.taste = nn.Conv1d(width, width, taps, groups=width)
        self.after, self.narrow, self.last = nn.LayerNorm(width), nn.Linear(width, width), nn.LayerNorm(width)

    def memory(self, callers: int, like: Tensor) -> tuple[Tensor, Tensor]:
        width = self.out.in_features
        return like.new_zeros(2, callers, self.heads, self.past, width // self.heads), like.new_zeros(callers, width, self.taps - 1)

    def attend(self, x: Tensor, kept: Tensor) -> Tensor:
        q, *new = self.qkv(self.norm(x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        whole = torch.cat([kept, torch.stack(new)], 3)
        kept.copy_(whole[:, :, :, self.now :])
        k, v = whole
        if self.library:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias.to(q.dtype)[None])
        else:
            scores = torch.einsum("nhtd,nhsd->nhts", q, k) / math.sqrt(q.shape[-1]) + self.bias
            seen = torch.einsum("nhts,nhsd->nhtd", torch.softmax(scores, -1), v)
        return self.out(seen.transpose(1, 2).flatten(2))

    def taste_of(self, x: Tensor, kept: Tensor) -> Tensor:
        sound = torch.cat([kept, F.glu(self.wide(self.before(x)), -1).transpose(1, 2)], 2)
        kept.copy_(sound[:, :, self.now :])
        return self.narrow(F.silu(self.after(self.taste(sound).transpose(1, 2))))

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor]) -> Tensor:
        x = x + 0.5 * self.feed[0](x)
        x = x + self.attend(x, memory[0])
        x = x + self.taste_of(x, memory[1])
        return self.last(x + 0.5 * self.feed[1](x))


class Subtitles(nn.Module):
    def __init__(self, layers: int, width: int, bands: int, pieces: int, layer: Callable[[], Hearing]) -> None:
        super().__init__()
        self.start, self.head = nn.Linear(4 * bands, width), nn.Linear(width, pieces)
        self.layers = nn.ModuleList(layer() for _ in range(layers))

    def forward(self, bands: Tensor, memories: list[tuple[Tensor, Tensor]]) -> Tensor:
        x = self.start(bands.view(len(bands), -1, 4 * bands.shape[-1]))
        for layer, memory in zip(self.layers, memories, strict=True):
            x = layer(x, memory)
        return self.head(x).argmax(-1)


def live_subtitles(s: Setup, *, graphed: bool = False, narrow: bool = False, sdpa: bool = False, callers: int = 1) -> Step:
    """Sixteen moments of four frames a call; repeated pieces and silence are left out of what is shown."""
    width, heads, now, past, bands = s.size(512, 16), s.size(8, 2), s.size(16, 3), s.size(64, 6), s.size(80, 4)
    layer = partial(Hearing, width, heads, now, past, s.size(15, 3), sdpa)
    model = Subtitles(s.size(14, 2), width, bands, s.size(1024, 12), layer).to(s.device).eval()
    if narrow:
        model = model.to(BF16)
    like = torch.zeros((), device=s.device, dtype=BF16)
    with torch.no_grad():
        memories = [each.memory(callers, like) for each in model.layers]  # type: ignore[operator]
    sounds = [torch.randn(callers, 4 * now, bands) for _ in range(4)]
    heard = torch.zeros(callers, 4 * now, bands, device=s.device, dtype=BF16 if narrow else torch.float32)
    best = torch.zeros(callers, now, device=s.device, dtype=torch.int64)
    turn = [0]

    @torch.no_grad()
    def listen() -> None:
        with torch.autocast(s.device.type, BF16, enabled=not narrow):
            best.copy_(model(heard, memories))

    hear: Step = capture(listen, s) if graphed else listen

    def step() -> list[list[int]]:
        turn[0] += 1
        heard.copy_(sounds[turn[0] % 4])
        hear()
        return [[piece for piece, _ in itertools.groupby(line) if piece] for line in best.tolist()]

    return step


# Satellites: fields four times as sharp as a satellite sees them, band by band.


class Sharper(nn.Module):
    """EDSR: what is missing from the bands as they are, by residual blocks without norms."""

    def __init__(self, bands: int, sharp: int, width: int, blocks: int) -> None:
        super().__init__()
        self.sharp = sharp
        self.first = nn.Conv2d(bands, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(blocks))
        self.end = nn.Conv2d(width, width, 3, padding=1)
        rise = [part for _ in range(2) for part in (nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2))]
        self.rise = nn.Sequential(*rise, nn.Conv2d(width, sharp, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        y = first
        for block in self.blocks:
            y = y + 0.1 * block(y)
        return F.interpolate(x[:, : self.sharp], scale_factor=4.0, mode="bicubic") + self.rise(first + self.end(y))


def _unsharp(guess: Tensor, truth: Tensor) -> Tensor:
    """Charbonnier's distance, of values and of edges, and the angle between spectra."""
    def near(a: Tensor, b: Tensor) -> Tensor:
        return torch.sqrt((a - b) ** 2 + 1e-6).mean()

    loss = near(guess, truth)
    for dim in (2, 3):
        loss = loss + 0.5 * near(guess.diff(dim=dim), truth.diff(dim=dim))
    along = (guess * truth).sum(1) / torch.sqrt((guess * guess).sum(1) * (truth * truth).sum(1) + 1e-6)
    return loss + 0.1 * torch.acos(along.clamp(-0.9999, 0.9999)).mean()


def satellite_fields(s: Setup, *, last: bool = False, scaled: bool = True, filled: bool = True, compiled: bool = False) -> Step:
    """Pieces of scenes lie on the GPU as satellites send them, int16."""
    count, side, bands, sharp = s.size(16, 2), s.size(96, 6), s.size(10, 4), s.size(4, 2)
    model = Sharper(bands, sharp, s.size(64, 4), s.size(16, 2)).to(s.device)
    layout = torch.channels_last if last else torch.contiguous_format
    if last:
        model = model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(s.device.type, enabled=scaled and s.cuda)
    coarse = torch.randint(10_000, (s.size(256, 4), bands, side, side), dtype=torch.int16, device=s.device)
    fine = torch.randint(10_000, (s.size(256, 4), sharp, 4 * side, 4 * side), dtype=torch.int16, device=s.device)
    unsharp = s.compile(_unsharp) if compiled else _unsharp

    def step() -> Tensor:
        these = torch.randint(len(coarse), (count,), device=s.device)
        x, truth = ((part[these].float() / 10_000.0).contiguous(memory_format=layout) for part in (coarse, fine))
        optimizer.zero_grad(set_to_none=not filled)
        with torch.autocast(s.device.type, torch.float16 if scaled and s.cuda else BF16):
            guess = model(x)
        loss = unsharp(guess.float(), truth)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


WORKLOADS = (
    written(
        "protein_contacts", "A Potts model of 253 places with 21 letters each, 4096 relatives a step, training in FP32; the likelihood of each letter is written out.",
        "TF32 products; 5320 letters of all places; F.cross_entropy", protein_contacts,
        {"precision/tf32": {"tf32": True}, "gemm-alignment": {"more": 7}, "unfused-norm": {"library": True}}, gpu_bound=True,
    ),
    written(
        "glider_terrain", "Six moments of four particle filters of a million guesses: softmax and running sums over all of them, and a question whether to draw anew.",
        "softmax and running sums in 1024 pieces; torch.compile of how guesses move and weigh; nobody asks, where() chooses", glider_terrain,
        {"small-grid": {"pieces": 1024}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"asked": False}}, gpu_bound=True,
    ),
    written(
        "river_regrets", "One iteration of CFR+ over a tree of bets, 1081 hands at each of its spots, by recursion; the game's worth is read in each.",
        "the iteration as a CUDA graph; torch.compile of regret matching and of what is learnt; the worth is not read", river_regrets,
        {"graph-candidate": {"graphed": True}, "unfused-elementwise": {"compiled": True}, "sync-stall": {"log": False}},
    ),
    written(
        "furrow_depth", "Depth from two pictures of 384 x 640 in sixteen rounds of a gated unit, FP32 with TF32 convolutions, NCHW; empty_cache() after each pair.",
        "torch.compile(mode='reduce-overhead') of a round; no empty_cache(); bf16 autocast; channels_last", furrow_depth,
        {"launch-gap": {"compiled": True}, "allocator": {"empties": False}, "precision": {"autocast": True}, "memory-layout": {"last": True}},
    ),
    written(
        "fact_rotations", "RotatE over 40,943 things in FP32: 512 facts with 256 wrong ones each, turned and compared by a chain, under Adam.",
        "torch.compile of the distance; Adam(fused=True); bf16 autocast", fact_rotations,
        {"unfused-elementwise": {"compiled": True}, "optimizer-foreach": {"fused": True}, "precision": {"autocast": True}}, gpu_bound=True,
    ),
    written(
        "money_mules", "GraphSAGE on 512 accounts: Python draws whom they paid account by account, numpy gathers 56,832 rows, which are copied; the loss is read.",
        "neighbours drawn by numpy all at once; what is known of accounts stays on the GPU; the loss is not read", money_mules,
        {"host-bound": {"together": True}, "memcpy": {"kept": True}, "sync-stall": {"read": False}},
    ),
    written(
        "live_subtitles", "A Conformer of 14 layers with memories hears 64 frames of one caller a call, bf16 autocast over FP32 weights, attention written out.",
        "the call as a CUDA graph; weights in bf16; F.scaled_dot_product_attention; eight callers together", live_subtitles,
        {
            "graph-candidate": {"graphed": True}, "dtype-casts": {"narrow": True}, "unfused-attention": {"sdpa": True},
            "low-arithmetic-intensity": {"callers": 8},
        },
        shared={"low-arithmetic-intensity": 8.0},
    ),
    written(
        "satellite_fields", "EDSR on 16 pieces of 96 x 96 and ten bands, training in fp16 with a GradScaler, NCHW; the loss is written out, gradients are filled with zeros.",
        "channels_last; bf16 without a scaler; set_to_none=True; torch.compile of the loss", satellite_fields,
        {"memory-layout": {"last": True}, "amp-scaler-sync": {"scaled": False}, "grad-zeroing": {"filled": False}, "unfused-elementwise": {"compiled": True}},
        gpu_bound=True,
    ),
)  # fmt: skip
